"""Which engines may share bytes: the text whose hash is the layout's fingerprint.

vLLM's block hashes have tokens, cache salt, images, and an adapter's name and path. All else that the bytes of a page
depend on stands here: the model's weights and its configuration (with rope), dtypes, the page format with the
attention backend that wrote it, the hash algorithm, the place of this worker among the parallel ones, and vLLM's
version.

Weights are named by what they are, not by their path: local files by their bytes or by the commit of the hub's cache
that they lie in, a hub's model by its commit. A configuration that comes from another repository (--hf-config-path)
names no weights. Code that lies beside local weights counts with them. Up to FULL_BYTES all of them are hashed. Of
larger models it is the head of each file, SAMPLES pieces spread over it, its size, and its time of change."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import logging
import os
import re
from typing import Any, Optional

logger = logging.getLogger("vllm.terrace")
FULL_BYTES = 2 << 30
SAMPLES, SAMPLE_BYTES, HEAD_BYTES = 256, 4096, 1 << 20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
_LENGTH_MATTERS = re.compile(r'"(rope_type|type)": "(?!default"|linear"|llama3"|yarn")')  # rope that depends on max_model_len
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash", "architectures_source")

HASH_WAIT_S = 0.02  # in which most adapters are hashed
Stamp = list[tuple[str, int, int, int, int]]


def _hash_file(digest: hashlib._Hash, path: str, full: bool) -> None:
    size = os.path.getsize(path)
    digest.update(b"%s %d;" % (os.path.basename(path).encode(), size))
    with open(path, "rb") as file:
        if full:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
            return
        digest.update(file.read(HEAD_BYTES))
        for i in range(SAMPLES):
            file.seek(i * max(size - SAMPLE_BYTES, 0) // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    digest.update(b"%d;" % os.stat(path).st_mtime_ns)


def files_of(path: str) -> list[str]:
    """A file, or a folder's weights, JSON files and code."""
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        return []
    return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(_WEIGHTS + (".json", ".py")))


def has_weights(path: str) -> bool:
    """Whether files_of() has weights: a file, or in a folder one of a kind that is known."""
    return os.path.isfile(path) or any(file.endswith(_WEIGHTS) for file in files_of(path))


def stamp_of(path: str) -> Stamp:
    """What changes when one of these files is written or replaced."""
    stats = [(name, os.stat(name)) for name in files_of(path)]
    return [(name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats]


def _bytes_of(files: list[str]) -> int:
    return sum(map(os.path.getsize, files))


def digest_of(path: str) -> Optional[str]:
    """What the bytes of these files are: hex. None: there are none."""
    files = files_of(path)
    if not files:
        return None
    digest = hashlib.sha256()
    full = _bytes_of(files) <= FULL_BYTES
    for file in files:
        _hash_file(digest, file, full)
    return digest.hexdigest()


Hashed = tuple[Optional[Stamp], Optional["concurrent.futures.Future[Optional[str]]"]]


class Adapters:
    """What the bytes of LoRA adapters are, by path. A thread hashes them, once; the first call waits for it, for a
    moment. digest() may be called by one thread."""

    def __init__(self) -> None:
        self._thread: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._known: dict[str, Hashed] = {}  # (the stamp of the files at the first request, their digest)

    def digest(self, path: str) -> Optional[bytes]:
        """None: they are still hashed, cannot be read, or have changed since the first request, when vLLM may have the
        old ones or the new ones."""
        try:
            files = stamp_of(path)
            if path not in self._known:
                self._thread = self._thread or concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="terrace-hash")
                hashed = self._thread.submit(self._hash, path, files)
                self._known[path] = files, hashed
                concurrent.futures.wait([hashed], HASH_WAIT_S)
            known, digest = self._known[path]
            if digest is not None and known == files:
                text = digest.result() if digest.done() else None
                return text.encode() if text else None
        except OSError as e:
            logger.debug("an adapter cannot be read: %s", e)
        self._known[path] = (None, None)
        return None

    @staticmethod
    def _hash(path: str, files: Stamp) -> Optional[str]:
        """None: their kind is not known, or they have changed meanwhile."""
        digest = digest_of(path) if has_weights(path) else None
        return digest if stamp_of(path) == files else None

    def close(self) -> None:
        """What is not hashed yet will not be."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _commit_of_snapshot(model: str) -> Optional[str]:
    """The commit of the hub's cache that a local path lies in, with the folder inside the repository."""
    found = re.search(r"/snapshots/([0-9a-f]{40}(/.*)?)$", os.path.realpath(model)) if os.path.exists(model) else None
    return found.group(1) if found else None


def sampled(model: str) -> bool:
    """Whether weights_of() looks at parts of a model's files alone, and at their times."""
    return _commit_of_snapshot(model) is None and _bytes_of(files_of(model)) > FULL_BYTES


def weights_of(model: str, revision: Optional[str], commit: Optional[str]) -> str:
    """A text that names the weights. commit: of the repository `model`, where it is known. Raises ValueError where
    nothing would tell two revisions apart."""
    snapshot = _commit_of_snapshot(model)
    if snapshot:
        return "commit " + snapshot
    digest = digest_of(model)
    if digest:
        return "bytes " + digest
    if commit:
        return "commit " + commit
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return "commit " + revision
    raise ValueError("terrace.vllm cannot tell which revision of %r this is: give the model as a local folder, or --revision with a full "
                     "commit hash, so that two revisions never share blocks" % model)


def weights_of_model(model: Any, identity: str, load_format: str = "auto") -> str:
    """weights_of() a vLLM model's configuration. identity: what the user says of it, terrace.identity. load_format:
    vLLM's; "dummy" reads no weights."""
    elsewhere = getattr(model, "model_weights", "")
    if elsewhere:  # an object store; the folder has the other files alone
        if not identity:
            raise ValueError("terrace.vllm cannot tell which revision the weights at %s are: name it in terrace.identity"
                             " of kv_connector_extra_config, so that two revisions never share blocks" % elsewhere)
        return "%s, of which terrace.identity says the revision" % elsewhere
    from_other = getattr(model, "hf_config_path", None) not in (None, model.model)
    commit = None if from_other else getattr(model.hf_config, "_commit_hash", None)
    weights = weights_of(model.model, model.revision, commit)
    if weights.startswith("bytes ") and not (identity or load_format == "dummy" or has_weights(model.model)):
        raise ValueError("terrace.vllm finds no weights in %s that it can read (%s): name their revision in "
                         "terrace.identity of kv_connector_extra_config, so that two revisions never share blocks"
                         % (model.model, ", ".join(_WEIGHTS)))
    return weights


def model_config_text(hf_config: Any) -> str:
    """The model's configuration as vLLM uses it, with overrides, rope among it."""
    known = {k: v for k, v in hf_config.to_dict().items() if k not in _VOLATILE}
    return json.dumps(known, sort_keys=True, default=str)


def attention_text(platform: Any, dtype: Any, block_tokens: int, head_dim: int, cache_dtype: Any) -> str:
    """The attention backend's own form of pages. That of a CPU depends on the instructions that it has."""
    if not platform.is_cpu():
        return os.environ.get("VLLM_ATTENTION_BACKEND", "default")
    from vllm.v1.attention.backends import cpu_attn
    return "cpu %s" % cpu_attn._get_attn_isa(dtype, block_tokens, head_dim, cache_dtype)


def group_text(number: int, group: Any) -> str:
    """A KV group: its layers and their form. Of a group with several forms the scheduler's configuration has the first form in
    the place of all, and the worker's has all; so it is the first in both."""
    forms = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return "group %d %r %r" % (number, group.layer_names, next(iter(forms.values())) if forms else group.kv_cache_spec)


def group_bytes(group: Any) -> Optional[int]:
    """Bytes of a block of a KV group of one form, all its layers, without padding between them; None: there are several."""
    spec = group.kv_cache_spec
    if hasattr(spec, "kv_cache_specs"):
        return None
    return int(getattr(spec, "unpadded_page_size_bytes", spec.page_size_bytes)) * len(group.layer_names)


def _weights_of_draft(speculative: Any, identity: str, load_format: str) -> str:
    """The model whose layers guess tokens and have KV of their own."""
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None:
        return ""
    return weights_of_model(draft, identity, load_format) + model_config_text(draft.hf_config)


def text_of(vllm_config: Any, kv_cache_config: Any, more: str = "") -> str:
    """The fingerprint's text of an engine, without its groups' own parts."""
    import vllm
    from vllm.platforms import current_platform
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    load_format = str(vllm_config.load_config.load_format)
    draft_load = getattr(vllm_config.speculative_config, "draft_load_config", None) or vllm_config.load_config
    formats = [load_format, str(draft_load.load_format)]
    parts = {
        "vllm": vllm.__version__,
        "weights": weights_of_model(model, more, load_format),
        "draft": _weights_of_draft(vllm_config.speculative_config, more, formats[1]),
        "config": model_config_text(model.hf_config),
        "dtype": str(model.dtype), "cache_dtype": str(cache.cache_dtype), "quantization": str(model.quantization),
        "quantization_config": str(model.quantization_config),
        "skip_layers": sorted(cache.kv_cache_dtype_skip_layers),  # whose pages are not of cache_dtype
        "load_format": formats, "seed": str(model.seed) if "dummy" in formats else "",
        "loader": str(vllm_config.load_config.model_loader_extra_config), "code": str(model.code_revision),
        "max_model_len": str(model.max_model_len) if _LENGTH_MATTERS.search(model_config_text(model.hf_config)) else "",
        "hashes": cache.prefix_caching_hash_algo,
        "parallel": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size,
                     parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size],
        "platform": current_platform.device_name, "page": str(kv_cache_config.kv_cache_layout),
        "attention": attention_text(current_platform, model.dtype, kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                                    model.get_head_size(), cache.cache_dtype)
        + str(getattr(vllm_config, "attention_config", "")),
        "more": more,
    }
    return json.dumps(parts, sort_keys=True)
