"""Packed blocks on the CPU: encode, decode, attend, merge. terrace_kernels.h is the manual of the numbers.

Memory is anything with a buffer, a contiguous tensor of the CPU, or an address. Of memory whose size is known the size is checked: ValueError.
An address is believed. Every call works in the calling thread, keeps nothing, and lets other Python threads run meanwhile.
"""

from __future__ import annotations

from typing import Any

from . import _abi as abi
from ._abi import lib
from ._arguments import Memory, fill, sized
from .layout import Dtype, Layout
from .status import check

_SIZES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2}  # of E4M3, and of what is none, 1


def _key_dims(layout: abi.Layout) -> int:
    """Elements of a key and of a query: those of a rope part come behind the latent's."""
    return int(layout.head_dim_k + layout.rope_dim)


def _sides(layout: abi.Layout, n: int, k: Memory, v: Memory, dtype: Dtype, write: bool) -> Any:
    """Addresses of the two sides' vectors, and what keeps them."""
    size = _SIZES.get(dtype, 1)
    return sized(k, "k", n * _key_dims(layout), size, write), sized(v, "v", n * layout.head_dim_v, size, write)


def encode(layout: Layout, block: Memory, layer: int, head: int, first_token: int, n: int, k: Memory = None, v: Memory = None,
           dtype: Dtype = Dtype.F32) -> None:
    """Packs n tokens of one layer and head into a block (terrace_encode).

    block: layout.block_bytes bytes, writable. layer, head: counted from the layout's first. first_token: of the block.
    k, v: [n][head_dim] and [n][head_dim_v] elements of `dtype`, dense; None: that side is left as it is. With a rope part k is [n][576].
    Invalid: an index or a value that makes no sense; Unsupported: an opaque layout.
    """
    c = layout._c()
    to, *kept = sized(block, "block", lib.terrace_block_bytes(c), 1, write=True)
    (from_k, *more), (from_v, *most) = _sides(c, n, k, v, dtype, False)
    check(lib.terrace_encode(c, to, layer, head, first_token, n, from_k, _key_dims(c), from_v, c.head_dim_v, dtype))
    del kept, more, most


def decode(layout: Layout, block: Memory, layer: int, head: int, first_token: int, n: int, k: Memory = None, v: Memory = None,
           dtype: Dtype = Dtype.F32) -> None:
    """The inverse of encode(): unpacks n tokens of a block into k and v, which are writable; None: that side is not wanted."""
    c = layout._c()
    source, *kept = sized(block, "block", lib.terrace_block_bytes(c), 1)
    (to_k, *more), (to_v, *most) = _sides(c, n, k, v, dtype, True)
    check(lib.terrace_decode(c, source, layer, head, first_token, n, to_k, _key_dims(c), to_v, c.head_dim_v, dtype))
    del kept, more, most


def attend(layout: Layout, **options: Any) -> None:
    """Attention of one layer from packed blocks (terrace_attend): the members of struct terrace_attend_options by name.

    blocks: a list of blocks, block_count of them (None: all). q: [queries][q_heads][dims] of q_dtype. out: [queries][q_heads][head_dim_v]
    of out_dtype, written. lse: [queries][q_heads] floats, written; may be left out. features: attend_features().
    TypeError for a name that is no member, ValueError for memory that is too small, Invalid and Unsupported as terrace.h says.
    """
    c, shape, blocks = abi.AttendOptions(), layout._c(), options.get("blocks")
    queries, q_heads, features = options.get("queries", 0), options.get("q_heads", 0), options.get("features")
    if isinstance(blocks, (list, tuple)):
        options.setdefault("block_count", len(blocks))
        if options["block_count"] > len(blocks):
            raise ValueError("block_count: %d of %d blocks that were given" % (options["block_count"], len(blocks)))
    rows = queries * q_heads
    kept = fill(c, options, {
        "q": (rows * _key_dims(shape), _SIZES.get(options.get("q_dtype", Dtype.F32), 1)),
        "out": (rows * shape.head_dim_v, _SIZES.get(options.get("out_dtype", Dtype.F32), 1), True),
        "lse": (rows, 4, True), "blocks": (lib.terrace_block_bytes(shape), 1)}, lists=("blocks",))
    if features:
        arrays = {"sinks": q_heads, "alibi": q_heads, "tree_bias": queries * queries, "ranges": 2 * features.range_count}
        for name, count in arrays.items():
            sized(features.values.get(name), name, count, 4)
    check(lib.terrace_attend(shape, c))
    del kept


def attend_features(**options: Any) -> Any:
    """The members of struct terrace_attend_features by name, for attend(features=...). It keeps the memory that it is given."""
    c: Any = abi.AttendFeatures()
    c.kept, c.values = fill(c, options), options
    return c


def merge(rows: int, d: int, out_a: Memory, lse_a: Memory, out_b: Memory, lse_b: Memory) -> None:
    """Merges attention over other tokens into that of the same queries (terrace_merge).

    out_a, out_b: [rows][d] floats. lse_a, lse_b: [rows] floats, natural logarithms. Those of a are written.
    An infinite LSE, of either sign, is of a row that saw no token, and a NaN makes the row NaN: terrace.h says what to do with the
    LSEs of PyTorch.
    """
    arrays = [sized(memory, name, count, 4, name[-1] == "a") for name, memory, count in
              (("out_a", out_a, rows * d), ("lse_a", lse_a, rows), ("out_b", out_b, rows * d), ("lse_b", lse_b, rows))]
    check(lib.terrace_merge(rows, d, *[address for address, _ in arrays]))
