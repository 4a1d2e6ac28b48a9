"""Arguments for libterrace, made of Python's, for this package. Nothing here is for users.

Memory is a number, a tensor (what has data_ptr()), or anything with a buffer. What libterrace reads and writes by an address it cannot check;
of memory whose size is known, sized() does.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Iterable, Optional, Protocol, Sequence, Union, cast

from . import _abi as abi

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from .layout import BlockInfo, Rule


class Tensor(Protocol):
    """What has an address: a torch tensor, of the CPU or a GPU."""

    def data_ptr(self) -> int: ...


class CudaStream(Protocol):
    """torch.cuda.Stream."""

    @property
    def cuda_stream(self) -> int: ...


# A cudaStream_t as a number, or what has one.
Stream = Union[int, None, CudaStream]
# Memory: an address, a tensor, or anything with a buffer.
Memory = Union[int, None, Tensor, "ReadableBuffer"]
PathLike = Union[str, bytes, "os.PathLike[str]"]

_DAY = 86400  # the longest time that a call is given


def microseconds(seconds: Optional[float]) -> int:
    """0, which is the connection's default, for None."""
    if seconds is None:
        return 0
    if seconds < 0:
        raise ValueError("timeout: a time is not negative")
    return max(1, int(min(seconds, _DAY) * 1e6))


def path_of(path: Optional[PathLike]) -> Optional[bytes]:
    """A path as the library takes it; None stays None."""
    return os.fsencode(path) if path else None


def bytes_of(value: ReadableBuffer) -> bytes:
    """Of a number bytes() would make zeros."""
    return bytes(memoryview(value))


def keys_of(keys: Iterable[ReadableBuffer]) -> abi.Keys:
    """terrace_keys, which keeps its memory."""
    if isinstance(keys, (bytes, bytearray, memoryview)):
        raise TypeError("keys: a list of them, not one: put it into a list")
    names = [bytes_of(k) for k in keys]
    if not names or len({len(k) for k in names}) != 1:
        raise ValueError("keys: at least one, and all of one length")
    memory = ctypes.create_string_buffer(b"".join(names), len(names) * len(names[0]))
    out = abi.Keys(ctypes.addressof(memory), len(names), len(names[0]))
    out.kept = memory
    return out


def infos_of(infos: Optional[Sequence[BlockInfo]], count: int) -> Any:
    """An array of terrace_block_info, which keeps its memory."""
    if infos is None:
        return None
    if len(infos) != count:
        raise ValueError("infos: not as many as keys: give one for each, or None")
    out: Any = (abi.BlockInfo * count)()
    out.kept = []
    for c, info in zip(out, infos):
        c.size = ctypes.sizeof(abi.BlockInfo)
        for name, kind in abi.BlockInfo._fields_[2:-1]:
            setattr(c, name, abi.fitting(kind, getattr(info, name)))
        if info.parent:
            parent = ctypes.create_string_buffer(info.parent, len(info.parent))
            out.kept.append(parent)
            c.parent, c.parent_bytes = ctypes.addressof(parent), len(info.parent)
    return out


def rules_of(rules: Optional[Sequence[Rule]], count: int) -> tuple[Optional[int], object]:
    """The address of an array of terrace_layout_rule, and what keeps it."""
    if rules is None:
        return None, None
    if len(rules) != count:
        raise ValueError("rules: not as many as layouts: give one for each, or None")
    size = ctypes.sizeof(abi.LayoutRule)
    kept = (abi.LayoutRule * count)(*[abi.LayoutRule(size, abi.fitting(ctypes.c_uint32, r.keep_last), r.partial, r.sparse)
                                      for r in rules])
    return ctypes.addressof(kept), kept


def cells_of(cells: Optional[Sequence[int]], count: int) -> tuple[Optional[int], object]:
    """The address of a word a key, and what keeps it."""
    if cells is None:
        return None, None
    if len(cells) != count:
        raise ValueError("cells: not as many as keys: give one for each, or None")
    kept = (ctypes.c_uint64 * count)(*[abi.fitting(ctypes.c_uint64, c) for c in cells])
    return ctypes.addressof(kept), kept


def gpu_number(gpu: Optional[int]) -> int:
    """A GPU's number, of the session's; None: host memory."""
    if gpu is not None and gpu < 0:
        raise ValueError("gpu %d: none has that number: give one of session.gpu_of(), or None for host memory" % gpu)
    return -1 if gpu is None else gpu


def stream_number(stream: Stream) -> Optional[int]:
    """The address of a cudaStream_t."""
    return cast("Optional[int]", getattr(stream, "cuda_stream", stream))


# ---- memory ----

class _Buffer(ctypes.Structure):
    """Py_buffer."""
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_Buffer)]


def _readonly_address(view: memoryview) -> tuple[Optional[int], object]:
    buffer = _Buffer()
    _get_buffer(view, ctypes.byref(buffer), 0)
    address = buffer.buf
    _release_buffer(ctypes.byref(buffer))
    return address, view  # a memoryview keeps its memory in place


def pointer(memory: Memory, write: bool = False) -> tuple[Optional[int], object]:
    """The address of memory, and what keeps it: a number, a tensor, a buffer, or None."""
    if memory is None or isinstance(memory, int):
        return memory, None
    if hasattr(memory, "data_ptr"):
        return memory.data_ptr(), memory
    view = memoryview(memory)
    if not view.c_contiguous or (write and view.readonly):
        raise ValueError("memory that is not in one piece, or cannot be written: give a contiguous, writable one")
    if view.readonly:
        # ctypes lends no address of what it may not write; PyObject_GetBuffer does.
        return _readonly_address(view)
    if not view.nbytes:
        return None, view
    kept = (ctypes.c_uint8 * view.nbytes).from_buffer(view)
    return ctypes.addressof(kept), kept


def sized(memory: Memory, name: str, count: int, size: int, write: bool = False) -> tuple[Optional[int], object]:
    """pointer() of memory of the CPU that has room for `count` elements of `size` bytes; ValueError if it has not. A number is believed."""
    if count < 0:  # ctypes would make a large number of it
        raise ValueError("%s: %d elements: a count is not negative" % (name, count))
    if memory is None or isinstance(memory, int):
        return pointer(memory)
    if hasattr(memory, "data_ptr"):
        tensor: Any = memory
        item, have = tensor.element_size(), tensor.numel() * tensor.element_size()
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ValueError("%s: a tensor that is not in one piece, or not the CPU's: .contiguous().cpu() makes one" % name)
    else:
        view = memoryview(cast("ReadableBuffer", memory))
        item, have = view.itemsize, view.nbytes
    if item not in (1, size) and size > 1:
        raise ValueError("%s: elements of %d bytes, not %d" % (name, item, size))
    if have < count * size:
        raise ValueError("%s: %d bytes, of the %d that the call uses" % (name, have, count * size))
    return pointer(memory, write)


def fill(options: abi.Sized, values: dict[str, Any], sizes: Optional[dict[str, Any]] = None,
         lists: Sequence[str] = ()) -> list[object]:
    """Sets fields of a struct from keyword arguments; returns what must live as long. lists: fields that are arrays of pointers, which may be
    given so. sizes: what sized() wants to know of fields of which it is known, or of each in such a list."""
    kept: list[object] = []
    kinds: dict[str, Any] = dict(options._fields_)

    def address(name: str, value: Memory) -> tuple[Optional[int], object]:
        return sized(value, name, *sizes[name]) if sizes and name in sizes else pointer(value)

    for name, value in values.items():
        if name not in kinds or name in ("size", "reserved"):
            raise TypeError("no option %r: terrace.h has the names" % name)
        if isinstance(value, abi.Sized):
            kept.append(value)
            value = ctypes.addressof(value)
        elif isinstance(value, (list, tuple)):
            if name not in lists:  # its numbers would be taken for addresses
                raise TypeError("%s: memory, not a list" % name)
            pointers = [address(name, v) for v in value]
            value = (ctypes.c_void_p * len(pointers))(*[p for p, _ in pointers])
            kept += [value, pointers]
            value = ctypes.addressof(value)
        elif kinds[name] is ctypes.c_void_p:
            value, keep = address(name, value)
            kept.append(keep)
        setattr(options, name, abi.fitting(kinds[name], value))
    return kept
