"""Stand-ins for the few names of vLLM that terrace.vllm imports, so that recorded calls can be replayed where vLLM is
not installed. Their shapes are those of vllm_interface.json, which test_contract.py compares with installed
packages."""

import enum
import sys
import types


class _Base:
    pass


def _record(*names):
    def __init__(self, *values, **named):
        for name, value in zip(names, values):
            setattr(self, name, value)
        self.__dict__.update(named)
    return type("Record", (), {"__init__": __init__})


class ReqContext:
    def __init__(self, req_id):
        self.req_id, self._offload_key_positions = req_id, {}


class FullAttentionSpec:
    pass


class Matchers:
    """The TierFilter of a request that allows these media."""

    def __init__(self, *media):
        self._media = media

    def allows(self, medium, locality):
        return medium in self._media


class OffloadingConnector:
    """vllm_config has its two sides."""

    def __init__(self, vllm_config, role, kv_cache_config):
        self.connector_scheduler, self.connector_worker = vllm_config.scheduler_side, vllm_config.worker_side
        self._connector_metadata = self._kv_cache_manager = None

    def on_new_request(self, request):
        pass

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.connector_scheduler.look(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output):
        return OffloadingConnectorMetadata()

    def build_connector_worker_meta(self):
        return None

    def update_connector_output(self, connector_output):
        pass

    def get_transfer_results(self, finished_req_ids):
        return _Results(set(), set(), set())


class OffloadingConnectorMetadata:
    pass


class OffloadingWorkerMetadata:
    def __init__(self, completed_jobs=None, transfer_stats=None):
        self.completed_jobs, self.transfer_stats = completed_jobs or {}, transfer_stats or []

    def aggregate(self, other):
        return OffloadingWorkerMetadata({**self.completed_jobs, **other.completed_jobs},
                                        self.transfer_stats + other.transfer_stats)


_Results = _record("finished_sending", "finished_recving", "failed_recving")


def _module(name, **names):
    sys.modules[name] = module = types.ModuleType(name)
    module.__dict__.update(names)
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, module)


def install():
    """Puts them into sys.modules."""
    base = types.ModuleType("vllm.v1.kv_offload.base")
    base.LoadStoreSpec = base.OffloadingManager = base.OffloadingWorker = _Base
    base.LookupResult = enum.Enum("LookupResult", "MISS HIT HIT_PENDING RETRY")
    base.Medium = enum.Enum("Medium", "CPU STORAGE")
    base.Locality = enum.Enum("Locality", "LOCAL REMOTE")
    base.PrepareStoreOutput = _record("keys_to_store", "store_spec", "evicted_keys")
    base.TransferResult = _record("job_id", "success", "transfer_size", "transfer_time")
    base.RequestOffloadingContext = _record("policy")
    base.OffloadingEvent = _record("keys", "medium", "removed", "locality")
    base.get_offload_block_hash = lambda key: key[:-4]
    base.get_offload_group_idx = lambda key: int.from_bytes(key[-4:], "big")
    base.OffloadingSpec, base.OffloadingCounterMetadata = _Base, _record("documentation")
    for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.distributed", "vllm.distributed.kv_transfer",
                 "vllm.distributed.kv_transfer.kv_connector"):
        _module(name)
    sys.modules[base.__name__] = sys.modules["vllm.v1.kv_offload"].base = base
    v1 = "vllm.distributed.kv_transfer.kv_connector.v1"
    _module(v1, KVConnectorRole=enum.Enum("KVConnectorRole", "SCHEDULER WORKER"))
    _module(v1 + ".base", KVConnectorTransferResults=_Results)
    _module(v1 + ".offloading_connector", OffloadingConnector=OffloadingConnector)
    _module("vllm.v1.kv_cache_interface", FullAttentionSpec=FullAttentionSpec)
    _module(v1 + ".offloading")
    _module(v1 + ".offloading.common", OffloadingWorkerMetadata=OffloadingWorkerMetadata)
