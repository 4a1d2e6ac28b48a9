"""The structs and functions of terrace.h, for this package. Nothing here is for users.

Struct fields stand in the header's order; tests/e2e/test_python.py compares every size and offset with what a C compiler says.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import operator
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t,
                    c_uint8, c_uint32, c_uint64, c_void_p)
from typing import Any

# Of numbers; ctypes itself cuts off what does not fit.
_RANGES = {kind: range(-bool(signed) << bits - bool(signed), 1 << bits - bool(signed))
           for kind, bits, signed in ((c_int, 32, True), (c_int32, 32, True), (c_int64, 64, True), (c_uint32, 32, False), (c_uint64, 64, False))}


def fitting(kind: Any, value: Any) -> Any:
    """The value; ValueError if it is a number that such a member or argument cannot have."""
    if kind in _RANGES:
        value = operator.index(value)
        if value not in _RANGES[kind]:
            raise ValueError("%d does not fit: it is not within %d and %d" % (value, _RANGES[kind][0], _RANGES[kind][-1]))
    return value


class _Argument:
    """An argument's type, for ctypes: a number that fits."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def from_param(self, value: Any) -> Any:
        return self._kind(fitting(self._kind, value))


class Sized(Structure):
    """A struct that begins with its size."""

    def __init__(self, **values: Any) -> None:
        kinds: dict[str, Any] = dict(self._fields_)
        super().__init__(ctypes.sizeof(type(self)), **{name: fitting(kinds[name], value) for name, value in values.items()})


class Layout(Sized):
    _fields_ = [("size", c_size_t), ("fingerprint", c_uint8 * 32), ("first_layer", c_uint32), ("layers", c_uint32),
                ("first_head", c_uint32), ("heads", c_uint32), ("total_heads", c_uint32), ("head_dim_k", c_uint32),
                ("head_dim_v", c_uint32), ("block_tokens", c_uint32), ("k_format", c_int), ("v_format", c_int), ("window", c_uint32),
                ("int4_rounding", c_int), ("rope_dim", c_uint32), ("rope_format", c_int), ("opaque_bytes", c_uint64),
                ("opaque_name", c_char * 64)]


class Keys(Structure):
    _fields_ = [("bytes", c_void_p), ("count", c_uint32), ("key_bytes", c_uint32)]


class ConnectOptions(Sized):
    _fields_ = [("size", c_size_t), ("address", c_char_p), ("timeout_us", c_uint64), ("busy_poll_us", c_uint64),
                ("no_borrow", c_bool), ("no_local_calls", c_bool), ("no_adaptive_poll", c_bool), ("reserved", c_uint8 * 5),
                ("tls_cert", c_char_p), ("tls_key", c_char_p), ("tls_ca", c_char_p), ("tls_name", c_char_p)]


class Token(Structure):
    _fields_ = [("bytes", c_uint8 * 16)]


class SessionOptions(Sized):
    _fields_ = [("size", c_size_t), ("tenant", c_char_p), ("engine", c_char_p), ("gpu", c_bool), ("gpu_write_back", c_bool),
                ("unchained_keys", c_bool), ("local_only", c_bool), ("reserved", c_uint8 * 4), ("unit_tokens", c_uint32), ("tokens_per_second", c_uint32),
                ("rules", c_void_p)]


class LayoutRule(Structure):
    _fields_ = [("size", c_size_t), ("keep_last", c_uint32), ("partial", c_bool), ("sparse", c_bool), ("reserved", c_uint8 * 2)]


class CallOptions(Sized):
    _fields_ = [("size", c_size_t), ("first_position", c_uint32), ("reserved", c_uint32)]


class GpuInfo(Sized):
    _fields_ = [("size", c_size_t), ("uuid", c_uint8 * 16), ("bytes", c_uint64)]


class Completion(Structure):
    _fields_ = [("done", CFUNCTYPE(None, c_void_p, c_void_p)), ("arg", c_void_p), ("eventfd", c_int), ("reserved", c_uint32)]


class LeaseOptions(Sized):
    _fields_ = [("size", c_size_t), ("mode", c_int), ("gpu", c_int32), ("gpu_or_host", c_bool), ("reserved", c_uint8 * 3),
                ("first_position", c_uint32)]


class WarmOptions(Sized):
    _fields_ = [("size", c_size_t), ("gpu", c_int32), ("wait", c_bool), ("reserved", c_uint8 * 3),
                ("first_position", c_uint32), ("reserved_also", c_uint32)]


class BlockInfo(Sized):
    _fields_ = [("size", c_size_t), ("parent", c_void_p), ("position", c_uint64), ("tokens", c_uint32), ("role", c_int),
                ("turn", c_uint32), ("parent_bytes", c_uint32)]


class ReserveOptions(Sized):
    _fields_ = [("size", c_size_t), ("gpu", c_int32), ("first_position", c_uint32), ("cells", c_void_p)]


class AttendFeatures(Sized):
    _fields_ = [("size", c_size_t), ("window", c_uint32), ("softcap", c_float), ("sinks", c_void_p), ("alibi", c_void_p),
                ("tree_bias", c_void_p), ("ranges", c_void_p), ("range_count", c_uint32), ("out_scale", c_float),
                ("alibi_sqrt", c_bool), ("reserved", c_uint8 * 7)]


class AttendOptions(Sized):
    _fields_ = [("size", c_size_t), ("layer", c_uint32), ("queries", c_uint32), ("q_heads", c_uint32), ("q_dtype", c_int),
                ("q", c_void_p), ("blocks", c_void_p), ("block_count", c_uint32), ("kv_tokens", c_uint32), ("first_pos", c_int64),
                ("out", c_void_p), ("out_dtype", c_int), ("scale", c_float), ("lse", c_void_p), ("features", c_void_p),
                ("causal", c_bool), ("reserved", c_uint8 * 7)]


class CudaFeatures(Sized):
    _fields_ = [("size", c_size_t), ("window", c_uint32), ("softcap", c_float), ("sinks", c_void_p), ("alibi", c_void_p),
                ("tree_bias", c_void_p), ("ranges", c_void_p), ("out_scale", c_void_p), ("range_count", c_uint32),
                ("alibi_sqrt", c_bool), ("reserved", c_uint8 * 3)]


class CudaAttendOptions(Sized):
    _fields_ = [("size", c_size_t), ("layer", c_uint32), ("sequences", c_uint32), ("queries", c_uint32), ("q_heads", c_uint32),
                ("scale", c_float), ("q_dtype", c_int), ("out_dtype", c_int), ("blocks_stride", c_uint32), ("q", c_void_p),
                ("blocks", c_void_p), ("kv_tokens", c_void_p), ("features", c_void_p), ("out", c_void_p), ("lse", c_void_p),
                ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("settled", c_bool), ("reserved", c_uint8 * 3),
                ("split_tokens", c_uint32)]


class CudaExtendOptions(Sized):
    _fields_ = [("size", c_size_t), ("layer", c_uint32), ("sequences", c_uint32), ("total_queries", c_uint32), ("q_heads", c_uint32),
                ("scale", c_float), ("q_dtype", c_int), ("out_dtype", c_int), ("kv_dtype", c_int), ("query_starts", c_void_p),
                ("prefix_tokens", c_void_p), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("k_stride", c_size_t),
                ("v_stride", c_size_t), ("blocks", c_void_p), ("blocks_stride", c_uint32), ("tree_stride", c_uint32),
                ("features", c_void_p), ("out", c_void_p), ("lse", c_void_p), ("workspace", c_void_p), ("workspace_bytes", c_size_t)]


class CudaCodecOptions(Sized):
    _fields_ = [("size", c_size_t), ("layer", c_uint32), ("tokens", c_uint32), ("slots", c_void_p), ("blocks", c_void_p),
                ("block_count", c_uint32), ("dtype", c_int), ("k", c_void_p), ("v", c_void_p), ("k_stride", c_size_t),
                ("v_stride", c_size_t), ("rows", c_void_p)]


class WatchEvent(Sized):
    _fields_ = [("size", c_size_t), ("epoch", c_uint64), ("sequence", c_uint64), ("kind", c_int), ("key", c_uint8 * 32),
                ("key_bytes", c_uint32), ("layout", c_uint32), ("state", c_int), ("whole_key", c_uint8 * 64)]


# C's names of these structs.
STRUCTS = {
    "terrace_layout": Layout, "terrace_keys": Keys, "terrace_connect_options": ConnectOptions, "terrace_token": Token,
    "terrace_session_options": SessionOptions, "terrace_gpu_info": GpuInfo, "terrace_completion": Completion,
    "terrace_warm_options": WarmOptions, "terrace_lease_options": LeaseOptions, "terrace_block_info": BlockInfo, "terrace_reserve_options": ReserveOptions,
    "terrace_layout_rule": LayoutRule, "terrace_call_options": CallOptions,
    "terrace_attend_features": AttendFeatures, "terrace_attend_options": AttendOptions, "terrace_cuda_features": CudaFeatures,
    "terrace_cuda_attend_options": CudaAttendOptions, "terrace_cuda_extend_options": CudaExtendOptions,
    "terrace_cuda_codec_options": CudaCodecOptions, "terrace_watch_event": WatchEvent,
}

_STATUSES = POINTER(c_int)
_HANDLE = POINTER(c_void_p)
_COMPLETION = POINTER(Completion)
# NAME: (type of the result, types of the arguments...)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "status_text": (c_char_p, c_int),
    "error": (c_char_p,),
    "version": (c_char_p,),
    "format_parse": (c_int, c_char_p, POINTER(c_int)),
    "format_name": (c_char_p, c_int),
    "fingerprint": (None, c_void_p, c_size_t, c_void_p),
    "layout_problem": (c_char_p, POINTER(Layout)),
    "block_bytes": (c_uint64, POINTER(Layout)),
    "chain_hash": (None, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    "connect": (c_int, POINTER(ConnectOptions), _HANDLE),
    "disconnect": (None, c_void_p),
    "session_open": (c_int, c_void_p, POINTER(Layout), c_uint32, POINTER(SessionOptions), _HANDLE),
    "session_attach": (c_int, c_void_p, POINTER(Token), _HANDLE),
    "session_token": (None, c_void_p, POINTER(Token)),
    "session_close": (None, c_void_p),
    "session_reopen": (c_int, c_void_p, c_uint64),
    "session_epoch": (c_uint64, c_void_p),
    "session_borrows": (c_bool, c_void_p),
    "session_layout_count": (c_uint32, c_void_p),
    "session_layout": (c_int, c_void_p, c_uint32, POINTER(Layout)),
    "session_gpu_count": (c_uint32, c_void_p),
    "session_gpu": (c_int, c_void_p, c_uint32, POINTER(GpuInfo)),
    "session_gpu_of": (c_int, c_void_p, c_uint32, POINTER(c_int32)),
    "session_gpu_ready": (c_int, c_void_p, c_uint32, c_uint32, c_uint64),
    "op_done": (c_bool, c_void_p),
    "op_cancel": (None, c_void_p),
    "session_unit": (c_uint32, c_void_p),
    "session_prefix_multiple": (c_uint32, c_void_p),
    "lookup_with_async": (c_int, c_void_p, POINTER(Keys), POINTER(CallOptions), c_uint64, _COMPLETION, _HANDLE),
    "lookup_finish": (c_int, c_void_p, POINTER(c_uint32), c_void_p),
    "load_estimate": (c_int, c_void_p, c_void_p, c_uint32, POINTER(c_uint64)),
    "lookup_with": (c_int, c_void_p, POINTER(Keys), POINTER(CallOptions), c_uint64, POINTER(c_uint32), c_void_p),
    "lease_with": (c_int, c_void_p, POINTER(Keys), POINTER(LeaseOptions), c_uint64, _HANDLE),
    "lease_with_async": (c_int, c_void_p, POINTER(Keys), POINTER(LeaseOptions), c_uint64, _COMPLETION, _HANDLE),
    "lease_finish": (c_int, c_void_p, _HANDLE),
    "lease_count": (c_uint32, c_void_p),
    "lease_block": (c_void_p, c_void_p, c_uint32, c_uint32),
    "lease_tokens": (c_uint32, c_void_p, c_uint32),
    "lease_block_tokens": (c_uint32, c_void_p, c_uint32, c_uint32),
    "lease_addresses": (c_int, c_void_p, c_uint32, c_void_p),
    "lease_wait_layer": (c_int, c_void_p, c_uint32, c_void_p),
    "lease_check": (c_int, c_void_p),
    "release": (None, c_void_p),
    "release_after": (c_int, c_void_p, c_void_p),
    "reserve_with": (c_int, c_void_p, POINTER(Keys), POINTER(BlockInfo), POINTER(ReserveOptions), c_uint64, _STATUSES, _HANDLE),
    "reserve_with_async": (c_int, c_void_p, POINTER(Keys), POINTER(BlockInfo), POINTER(ReserveOptions), c_uint64, _COMPLETION, _HANDLE),
    "reserve_finish": (c_int, c_void_p, _STATUSES, _HANDLE),
    "reserve_open_with": (c_int, c_void_p, POINTER(BlockInfo), POINTER(ReserveOptions), c_uint64, _HANDLE),
    "reservation_count": (c_uint32, c_void_p),
    "reservation_block": (c_void_p, c_void_p, c_uint32, c_uint32),
    "reservation_addresses": (c_int, c_void_p, c_uint32, c_void_p),
    "commit": (c_int, c_void_p, c_uint64, _STATUSES, _HANDLE),
    "commit_async": (c_int, c_void_p, c_uint64, _COMPLETION, _HANDLE),
    "commit_after": (c_int, c_void_p, c_void_p, c_uint64, _COMPLETION, _HANDLE),
    "commit_finish": (c_int, c_void_p, _STATUSES),
    "commit_open": (c_int, c_void_p, c_void_p, c_uint32, c_uint32, c_uint64),
    "abort": (None, c_void_p),
    "put": (c_int, c_void_p, c_uint32, c_void_p, c_uint32, POINTER(BlockInfo), c_void_p, c_uint64),
    "put_async": (c_int, c_void_p, c_uint32, c_void_p, c_uint32, POINTER(BlockInfo), c_void_p, c_uint64, _COMPLETION, _HANDLE),
    "put_finish": (c_int, c_void_p),
    "get_async": (c_int, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, c_uint64, _COMPLETION, _HANDLE),
    "get_finish": (c_int, c_void_p, POINTER(c_uint32)),
    "get": (c_int, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, POINTER(c_uint32), c_uint64),
    "warm_with": (c_int, c_void_p, POINTER(Keys), POINTER(WarmOptions), c_uint64, POINTER(c_uint32)),
    "warm_with_async": (c_int, c_void_p, POINTER(Keys), POINTER(WarmOptions), c_uint64, _COMPLETION, _HANDLE),
    "warm_finish": (c_int, c_void_p, POINTER(c_uint32)),
    "flush_async": (c_int, c_void_p, POINTER(Keys), c_uint64, _COMPLETION, _HANDLE),
    "flush_finish": (c_int, c_void_p, _STATUSES),
    "flush": (c_int, c_void_p, POINTER(Keys), c_uint64, _STATUSES),
    "delete": (c_int, c_void_p, POINTER(Keys), c_uint64, _STATUSES),
    "touch_with": (c_int, c_void_p, POINTER(Keys), POINTER(CallOptions), c_uint64),
    "report_with": (c_int, c_void_p, POINTER(Keys), POINTER(CallOptions), c_int, c_int32, c_uint64, c_uint64),
    "watch_open": (c_int, c_void_p, c_bool, _HANDLE),
    "watch_next": (c_int, c_void_p, c_uint64, POINTER(WatchEvent)),
    "watch_close": (None, c_void_p),
    "encode": (c_int, POINTER(Layout), c_void_p, c_uint32, c_uint32, c_uint32, c_uint32, c_void_p, c_size_t, c_void_p,
               c_size_t, c_int),
    "decode": (c_int, POINTER(Layout), c_void_p, c_uint32, c_uint32, c_uint32, c_uint32, c_void_p, c_size_t, c_void_p,
               c_size_t, c_int),
    "attend": (c_int, POINTER(Layout), POINTER(AttendOptions)),
    "merge": (c_int, c_uint32, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p),
    "cuda_load": (c_int, c_char_p),
    "cuda_attend_workspace": (c_int, POINTER(Layout), POINTER(CudaAttendOptions), POINTER(c_size_t)),
    "cuda_attend_plan": (c_int, POINTER(Layout), POINTER(CudaAttendOptions), c_void_p),
    "cuda_attend": (c_int, POINTER(Layout), POINTER(CudaAttendOptions), c_void_p),
    "cuda_extend_workspace": (c_int, POINTER(Layout), POINTER(CudaExtendOptions), POINTER(c_size_t)),
    "cuda_extend": (c_int, POINTER(Layout), POINTER(CudaExtendOptions), c_void_p),
    "cuda_encode": (c_int, POINTER(Layout), POINTER(CudaCodecOptions), c_void_p),
    "cuda_decode": (c_int, POINTER(Layout), POINTER(CudaCodecOptions), c_void_p),
}


def path() -> str:
    """Where the library is looked for: $LIBTERRACE, else the one that the wheel brought, else libterrace where the loader looks."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libterrace.so.0")
    return os.environ.get("LIBTERRACE") or (beside if os.path.exists(beside) else "") or \
        ctypes.util.find_library("terrace") or "libterrace.so.0"


class Library:
    """libterrace's functions as attributes. It is loaded when the first one is used; OSError, with what to do, if that fails."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("terrace_"):
            raise AttributeError(name)
        self.__dict__.update(_load())
        return self.__dict__[name]


def _load() -> dict[str, Any]:
    file = path()
    try:
        library = ctypes.CDLL(file)
    except OSError as e:
        raise OSError("%s (LIBTERRACE names the library's file where the loader does not look)" % e) from None
    functions = {}
    for name, (result, *arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, "terrace_" + name)
        except AttributeError:
            raise OSError("%s has no function terrace_%s: it is not the libterrace of this package's version. Install both from one "
                          "release, or unset LIBTERRACE" % (file, name)) from None
        function.restype = result
        function.argtypes = [_Argument(kind) if kind in _RANGES else kind for kind in arguments]
        functions["terrace_" + name] = function
    return functions


lib = Library()
