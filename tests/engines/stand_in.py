"""Stand-ins for the few names of vLLM that terrace.vllm's manager and worker import, so that recorded calls can be
replayed where vLLM is not installed. Their shapes are those of vllm_interface.json, which test_contract.py compares
with installed packages."""

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
    for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[base.__name__] = sys.modules["vllm.v1.kv_offload"].base = base
