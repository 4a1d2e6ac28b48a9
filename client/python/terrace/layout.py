"""Layouts, keys, and what is said of blocks: plain values, which no daemon is asked for."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from . import _abi as abi
from ._abi import lib
from ._arguments import bytes_of
from .status import check

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class State(enum.IntEnum):
    """enum terrace_state: where a block is."""

    ABSENT = 0
    HOST = 1  # in host memory, perhaps on a disk or a GPU too
    DISK = 2  # on a disk only
    GPU = 3   # on a GPU, and not in host memory
    NONE = 4  # the layout can have no block there


class Role(enum.IntEnum):
    """enum terrace_role: who wrote the tokens of a block."""

    UNKNOWN = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    TOOL = 4


class Event(enum.IntEnum):
    """enum terrace_event: what has happened to a sequence, for Session.report()."""

    NONE = 0
    TURN_END = 1
    TOOL_CALL = 2
    SESSION_END = 3


class Dtype(enum.IntEnum):
    """enum terrace_dtype: of vectors that are encoded, decoded or attended."""

    F32 = 0
    F16 = 1
    BF16 = 2
    E4M3 = 3  # a byte; only attend() writes it


@dataclasses.dataclass(frozen=True)
class Layout:
    """One KV group of a model: struct terrace_layout. ValueError, with the reason, if it is not sound.

    fingerprint: text or bytes that name whatever must not be mixed: model, weights revision, rope settings.
    layers, heads: of the model, in this layout. heads are KV heads; total_heads is the model's, None: heads.
    head_dim, head_dim_v: elements of a vector of K and of V; None: V's are K's.
    block_tokens: tokens of a block, a multiple of 16.
    k_format, v_format: "fp16", "bf16", "fp8", "int4_pth", "tq4", "tq3", "tq2"; v_format None: as K; "none": V is a view of K.
    first_layer, first_head: where the layout begins in the model.
    window: of a sliding window, in tokens; 0: full attention.
    int4_bf16: with "int4_pth", that the model's dtype is bf16, and not fp16.
    rope_format: of multi-head latent attention alone ("fp16", "bf16", "fp8"): head_dim is 512, heads 1, v_format "none".
    opaque_bytes, opaque_name: of Layout.opaque() alone.
    """

    fingerprint: Union[str, bytes, ReadableBuffer]
    layers: int
    heads: int
    head_dim: int
    block_tokens: int = 16
    k_format: str = "tq4"
    v_format: Optional[str] = None
    head_dim_v: Optional[int] = None
    total_heads: Optional[int] = None
    first_layer: int = 0
    first_head: int = 0
    window: int = 0
    int4_bf16: bool = False
    opaque_bytes: int = 0
    opaque_name: str = ""
    rope_format: str = "none"

    def __post_init__(self) -> None:
        problem = lib.terrace_layout_problem(self._c())
        if problem:
            raise ValueError(problem.decode())

    def _c(self) -> abi.Layout:
        text = self.fingerprint.encode() if isinstance(self.fingerprint, str) else bytes_of(self.fingerprint)
        out = abi.Layout(first_layer=self.first_layer, layers=self.layers, first_head=self.first_head, heads=self.heads,
                         total_heads=self.total_heads or self.heads, head_dim_k=self.head_dim,
                         head_dim_v=self.head_dim_v or self.head_dim, block_tokens=self.block_tokens,
                         k_format=_format(self.k_format), v_format=_format(self.v_format or self.k_format),
                         window=self.window, int4_rounding=int(self.int4_bf16),
                         rope_dim=64 if self.rope_format != "none" else 0, rope_format=_format(self.rope_format),
                         opaque_bytes=self.opaque_bytes,
                         opaque_name=self.opaque_name.encode()[:abi.Layout.opaque_name.size])
        lib.terrace_fingerprint(text, len(text), ctypes.addressof(out.fingerprint))
        return out

    @classmethod
    def opaque(cls, fingerprint: Union[str, bytes, ReadableBuffer], name: str, block_bytes: int, layers: int = 0,
               **more: Any) -> Layout:
        """A layout of an engine's own bytes, which no call of this package looks into.

        name: of their format, with its version, as in "vllm/int4_per_token_head/1".
        block_bytes: bytes of a block, a multiple of 16.
        layers: equal parts of a block, which come to a GPU one by one; 0: the block has no parts.
        more: other members by name, as block_tokens and heads.
        """
        return cls(fingerprint, layers, more.pop("heads", 0), 0, k_format="opaque", v_format="none",
                   opaque_bytes=block_bytes, opaque_name=name, **more)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return int(lib.terrace_block_bytes(self._c()))


def _format(name: str) -> int:
    out = ctypes.c_int()
    if name == "none":
        return 0
    check(lib.terrace_format_parse(name.encode(), out))
    return out.value


def chain_hash(parent: Optional[ReadableBuffer], tokens: Sequence[int], salt: ReadableBuffer = b"") -> bytes:
    """The key of a block, 16 bytes, for engines that have no hashes of their own (terrace_chain_hash).

    parent: the key of the block before, 16 bytes; None: there is none. ValueError if it is of another length.
    tokens: the block's token numbers, 32 bits each.
    salt: bytes that tell adapters, images or tenants apart.
    """
    above, more = None if parent is None else bytes_of(parent), bytes_of(salt)
    if above is not None and len(above) != 16:
        raise ValueError("parent: not the 16 bytes of a key of chain_hash()")
    ids = array.array("I", tokens)
    out = ctypes.create_string_buffer(16)
    address, _ = ids.buffer_info()
    lib.terrace_chain_hash(above, address, len(ids), more, len(more), out)
    return out.raw


def chain(tokens: Sequence[int], block_tokens: int, salt: ReadableBuffer = b"") -> list[bytes]:
    """The keys of all full blocks of a sequence: chain_hash() of each block of `block_tokens` tokens and the key before."""
    keys: list[bytes] = []
    for at in range(0, len(tokens) // block_tokens * block_tokens, block_tokens):
        keys.append(chain_hash(keys[-1] if keys else None, tokens[at:at + block_tokens], salt))
    return keys


@dataclasses.dataclass
class Rule:
    """What a session says of a layout besides its window: struct terrace_layout_rule.

    keep_last: not 0: a prefix needs only so many of its last blocks; 1: the layout is a state.
    partial: the layout may have blocks that are not full.
    sparse: a block that was never stored is not missing.
    """

    keep_last: int = 0
    partial: bool = False
    sparse: bool = False


@dataclasses.dataclass
class BlockInfo:
    """What a block is in its sequence: struct terrace_block_info. It helps eviction and has no bearing on what a key means.

    parent: the key of the block before; None: it is the first.
    position: index of its first token.
    tokens: its valid tokens; 0: all.
    role, turn: who wrote the tokens, and in which turn of the conversation.
    """

    parent: Optional[bytes] = None
    position: int = 0
    tokens: int = 0
    role: Role = Role.UNKNOWN
    turn: int = 0
