"""A transformers cache whose K and V lie packed in the blocks of a prefix.Sequence, and the attention that reads them there.

Use with attn_implementation="terrace". update() packs the new tokens of a layer and hands the unpacked ones on; the attention function,
which transformers calls next, attends from the packed blocks: decode steps and drafts (up to 16 tokens) with cuda_attend, which sees the
new tokens in packed form too; longer runs with cuda_extend, which takes the new tokens as they are. No K or V of the past is unpacked.
"""

import terrace
import torch
from prefix import Sequence
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

QUERIES_MAX = 16  # of cuda_attend
_active = None    # the cache whose update() was called last: the attention function is not told


class PackedCache(Cache):
    """One sequence's. session None: all memory is the process's own."""

    def __init__(self, config, layout, session, gpu, device, tokens_max, salt=b""):
        self.layers = []  # instead of the base class's __init__: its layers' storage is not used
        self.layout, self.device, self.q_heads = layout, device, config.num_attention_heads
        self.heads, self.dim = layout.heads, layout.head_dim
        self.sequence = Sequence(session, layout, gpu, self._allocate, salt)
        self.blocks_max = -(-tokens_max // layout.block_tokens)
        self.table = torch.zeros(self.blocks_max, dtype=torch.int64, device=device)
        self.length, self.step = 0, 0  # tokens packed; of the run under way
        self.kv_tokens = torch.zeros(1, dtype=torch.int32, device=device)
        self.workspace = None

    def _allocate(self, size):
        memory = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return memory.data_ptr(), memory

    def begin(self, prompt):
        """The number of tokens that need no computing."""
        self.sequence.begin(prompt)
        self._upload()
        self.length = self.sequence.reused
        return self.length

    def cut(self, tokens):
        """Where a prompt of so many tokens is to be cut: what is behind its last block that can be reused is computed by itself, and
        attends packed blocks alone before it, so that its text is the same whether those were reused or just computed."""
        return (tokens - 1) // self.layout.block_tokens * self.layout.block_tokens

    def publish(self):
        """After the prefill, when the stream is done."""
        self.sequence.publish()
        self._upload()

    def close(self):
        self.sequence.close()

    def _upload(self):
        addresses = self.sequence.addresses
        self.table[:len(addresses)] = torch.tensor(addresses, dtype=torch.int64)

    # ---- what transformers asks of a cache ----

    def get_seq_length(self, layer_idx=0):
        return self.length

    def get_max_cache_shape(self, layer_idx=0):
        return self.blocks_max * self.layout.block_tokens

    def get_mask_sizes(self, queries, layer_idx=0):
        """queries: how many, or their positions, as versions of transformers differ."""
        return self.length + (queries if isinstance(queries, int) else queries.shape[0]), 0

    def update(self, key_states, value_states, layer_idx, *_, **__):
        global _active
        _active = self
        if key_states.shape[0] != 1:
            raise ValueError("one sequence at a time")
        stream = torch.cuda.current_stream(self.device)
        tokens = key_states.shape[2]
        if layer_idx == 0:
            self._begin_step(tokens, stream)
        self.sequence.wait_layer(layer_idx, stream)
        self.k = key_states[0].transpose(0, 1).contiguous()  # [tokens][heads][dim]
        self.v = value_states[0].transpose(0, 1).contiguous()
        terrace.cuda_encode(self.layout, stream, layer=layer_idx, tokens=tokens, slots=self.slots, blocks=self.table,
                            block_count=self.blocks_max, k=self.k, v=self.v, k_stride=self.heads * self.dim,
                            v_stride=self.heads * self.dim, dtype=terrace.dtype_of(self.k))
        if layer_idx == self.layout.layers - 1:
            self.length += tokens
        return key_states, value_states

    def _begin_step(self, tokens, stream):
        self.step, self.past = tokens, self.length
        if self.sequence.room(self.length + tokens):
            self._upload()
        self.slots = torch.arange(self.length, self.length + tokens, dtype=torch.int64, device=self.device)
        self.kv_tokens.fill_(self.length + tokens)
        self.planned = False

    # ---- attention ----

    def _workspace(self, size):
        if self.workspace is None or self.workspace.numel() < size:
            self.workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
        return dict(workspace=self.workspace, workspace_bytes=self.workspace.numel())

    def attend(self, layer, query, scaling):
        """query [1][q_heads][tokens][dim] to [1][tokens][q_heads][dim]."""
        stream = torch.cuda.current_stream(self.device)
        q = query[0].transpose(0, 1).contiguous()
        out = torch.empty_like(q)
        dtype = terrace.dtype_of(q)
        common = dict(layer=layer, sequences=1, q_heads=self.q_heads, scale=scaling, q=q, q_dtype=dtype, blocks=self.table,
                      blocks_stride=self.blocks_max, out=out, out_dtype=dtype)
        if self.step <= QUERIES_MAX:
            shape = dict(sequences=1, queries=self.step, q_heads=self.q_heads)
            options = dict(common, queries=self.step, kv_tokens=self.kv_tokens,
                           **self._workspace(terrace.cuda_attend_workspace(self.layout, **shape)))
            if not self.planned:
                terrace.cuda_attend_plan(self.layout, stream, **options)
                self.planned = True
            terrace.cuda_attend(self.layout, stream, **options)
        else:
            shape = dict(sequences=1, total_queries=self.step, q_heads=self.q_heads)
            starts = torch.tensor([0, self.step], dtype=torch.int32, device=self.device)
            past = torch.tensor([self.past], dtype=torch.int32, device=self.device)
            stride = self.heads * self.dim
            terrace.cuda_extend(self.layout, stream, total_queries=self.step, query_starts=starts, prefix_tokens=past, k=self.k,
                                v=self.v, k_stride=stride, v_stride=stride, kv_dtype=terrace.dtype_of(self.k), **common,
                                **self._workspace(terrace.cuda_extend_workspace(self.layout, **shape)))
        return out[None]


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """transformers' attention function: causal, from the active cache's blocks."""
    return _active.attend(module.layer_idx, query, scaling if scaling is not None else query.shape[-1] ** -0.5), None


ALL_ATTENTION_FUNCTIONS.register("terrace", attention)


def layout_of(config, name, format, block_tokens):
    """The layout of all layers of a model; `name` tells it from others: model, revision, dtype."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return terrace.Layout("%s rope %s" % (name, getattr(config, "rope_theta", "")), layers=config.num_hidden_layers,
                          heads=config.num_key_value_heads, head_dim=dim, block_tokens=block_tokens, k_format=format)
