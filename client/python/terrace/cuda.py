"""Packed blocks on a GPU: the operations of the CUDA plugin, on a stream. terrace_kernels.h is the manual.

Each takes the members of its C struct by name, addresses as numbers or tensors of the device, and dtypes as Dtype. It puts work on the stream
and returns: what is passed must live until the stream has got there, as with any CUDA call. stream: a number, or a torch.cuda.Stream.
TypeError for a name that is no member; Invalid and Unsupported as terrace_kernels.h says; Unsupported without the plugin.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Type

from . import _abi as abi
from ._abi import lib
from ._arguments import Stream, fill, stream_number
from .layout import Dtype, Layout
from .status import check


def cuda_load(path: Optional[str] = None) -> None:
    """Loads the CUDA plugin; None: libterrace_cuda.so.0 where the loader looks. The wheel does not bring it.

    Unsupported, with the reason: there is none, or the current device will not do.
    """
    check(lib.terrace_cuda_load(path.encode() if path else None))


def dtype_of(tensor: Any) -> Dtype:
    """The Dtype of a torch tensor. KeyError: no call takes it."""
    return {"torch.float32": Dtype.F32, "torch.float16": Dtype.F16, "torch.bfloat16": Dtype.BF16,
            "torch.float8_e4m3fn": Dtype.E4M3}[str(tensor.dtype)]


def cuda_features(**options: Any) -> Any:
    """The members of struct terrace_cuda_features by name, for the option `features`. It keeps the memory that it is given."""
    c: Any = abi.CudaFeatures()
    c.kept = fill(c, options)
    return c


def _cuda(function: Callable[..., int], struct: Type[abi.Sized], layout: Layout, stream: Stream, options: dict[str, Any]) -> None:
    c = struct()
    kept = fill(c, options)
    check(function(layout._c(), c, stream_number(stream)))
    del kept


def _workspace(function: Callable[..., int], struct: Type[abi.Sized], layout: Layout, options: dict[str, Any]) -> int:
    c, out = struct(), ctypes.c_size_t()
    kept = fill(c, options)
    check(function(layout._c(), c, out))
    del kept
    return out.value


def cuda_attend_workspace(layout: Layout, **options: Any) -> int:
    """Bytes of workspace that cuda_attend() needs for a shape (sequences, queries, q_heads)."""
    return _workspace(lib.terrace_cuda_attend_workspace, abi.CudaAttendOptions, layout, options)


def cuda_attend_plan(layout: Layout, stream: Stream, **options: Any) -> None:
    """Plans a step by kv_tokens, once for all its layers (terrace_cuda_attend_plan)."""
    _cuda(lib.terrace_cuda_attend_plan, abi.CudaAttendOptions, layout, stream, options)


def cuda_attend(layout: Layout, stream: Stream, **options: Any) -> None:
    """The planned attention of one layer (terrace_cuda_attend)."""
    _cuda(lib.terrace_cuda_attend, abi.CudaAttendOptions, layout, stream, options)


def cuda_extend_workspace(layout: Layout, **options: Any) -> int:
    """Bytes of workspace that cuda_extend() needs for a shape (sequences, total_queries, q_heads)."""
    return _workspace(lib.terrace_cuda_extend_workspace, abi.CudaExtendOptions, layout, options)


def cuda_extend(layout: Layout, stream: Stream, **options: Any) -> None:
    """Attention of many new tokens over their packed prefix and themselves (terrace_cuda_extend)."""
    _cuda(lib.terrace_cuda_extend, abi.CudaExtendOptions, layout, stream, options)


def cuda_encode(layout: Layout, stream: Stream, **options: Any) -> None:
    """Packs K and V of tokens into blocks (terrace_cuda_encode)."""
    _cuda(lib.terrace_cuda_encode, abi.CudaCodecOptions, layout, stream, options)


def cuda_decode(layout: Layout, stream: Stream, **options: Any) -> None:
    """Unpacks K and V of tokens from blocks, to rows in order or those that `rows` names (terrace_cuda_decode)."""
    _cuda(lib.terrace_cuda_decode, abi.CudaCodecOptions, layout, stream, options)
