"""A Llama of random weights that copies: what it says next is sure, and depends on what stands thousands of tokens back.

A model of random weights alone has near ties among its logits, and another order of the same sums gives another text. Here two heads are
made by hand. Head 0 of layer 0 looks at the token before (its keys and queries are turned by a position of one, at frequencies that no
two distances share); head 0 of layer 1 finds the place whose token before is the present one, and says what stands there. All else, 16
layers of it, has random weights and costs what it costs in any Llama, but adds little to the residual stream; it does reach the logits, so
that these tell any change of any block, though the text does not mind it.

    tokens     a code of 128 signs each, in the residual stream's elements 0 to 127, and a constant in element CONSTANT
    layer 0    adds the code of the token before in elements BEFORE on
    layer 1    adds, four times as loud, the code of the token to come in elements NEXT on
    logits     products of those with all codes: 128 for the right one, below 50 for 32000 others
"""

import random

import torch
import transformers

CODE, CONSTANT, BEFORE, NEXT = 128, 128, 256, 384
LOUD, PEAK, QUIET = 4.0, 64.0, 1 / 16  # of what layer 1 says; logits of the two heads where they look; of all other outputs
SHAPE = dict(vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, tie_word_embeddings=False, attention_bias=False, mlp_bias=False)


def model(positions, device="cuda", **over):
    """A transformers.LlamaForCausalLM in bf16, for so many tokens in all."""
    config = transformers.LlamaConfig(max_position_embeddings=positions, **{**SHAPE, **over})
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            out = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="terrace").eval()
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        _make(out, config)
    return out


def prompt(tokens, vocabulary, rng):
    """Tokens that are all different, but for the last, which stands at a third of it too; and what the model is to say: what followed there."""
    out = rng.sample(range(3, vocabulary), tokens - 1)
    out.append(out[tokens // 3])
    return out, out[tokens // 3 + 1:]


def _make(llama, config):
    first, second = llama.model.layers[0], llama.model.layers[1]
    half = config.head_dim // 2
    for layer in llama.model.layers:
        layer.self_attn.o_proj.weight.mul_(QUIET)
        layer.mlp.down_proj.weight.mul_(QUIET)
    codes = _codes(config.vocab_size).to(llama.lm_head.weight)
    embedding = llama.model.embed_tokens.weight
    embedding.zero_()
    embedding[:, :CODE] = codes
    embedding[:, CONSTANT] = 8.0
    llama.lm_head.weight[:, NEXT:NEXT + CODE] = codes / 10
    # The first half of a head's pairs turn with the position, the second do not.
    turns = llama.model.rotary_emb.inv_freq
    turns.zero_()
    turns[:half // 2] = _frequencies(half // 2).to(turns)
    for layer in (first, second):
        for matrix in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            matrix.weight[:_heads(matrix, layer, config) * config.head_dim] = 0
        layer.self_attn.o_proj.weight[:, :config.head_dim] = 0
    _look_before(first.self_attn, config, turns)
    _look_for_match(second.self_attn, config)


def _heads(matrix, layer, config):
    """How many heads of a projection share head 0's keys and values."""
    return config.num_attention_heads // config.num_key_value_heads if matrix is layer.self_attn.q_proj else 1


def _codes(count):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 2, (count, CODE), generator=generator).float() * 2 - 1


def _frequencies(count):
    rng = random.Random(3)
    return torch.tensor([rng.uniform(0.05, 3.1) for _ in range(count)])


def _scale(squares, config):
    """What the norm before a layer multiplies a residual stream by whose squares sum up to that."""
    return (config.hidden_size / squares) ** 0.5


def _look_before(heads, config, turns):
    """q and k are constants; k is turned by one more position, so that they are in line with the key one before."""
    half = config.head_dim // 2
    norm = _scale(CODE + 64, config)
    size = (PEAK * config.head_dim ** 0.5 / (half // 2)) ** 0.5 / (8 * norm)
    pairs = torch.arange(half // 2)
    turns = turns[:half // 2].float().cpu()
    heads.q_proj.weight[pairs, CONSTANT] = size
    heads.k_proj.weight[pairs, CONSTANT] = (size * torch.cos(turns)).to(heads.k_proj.weight)
    heads.k_proj.weight[pairs + half, CONSTANT] = (size * torch.sin(turns)).to(heads.k_proj.weight)
    code = torch.arange(CODE)
    heads.v_proj.weight[code, code] = 1 / norm
    heads.o_proj.weight[BEFORE + code, code] = 1


def _look_for_match(heads, config):
    """q is the present token's code, k that of the token before, as far as they fit into the pairs that do not turn."""
    half = config.head_dim // 2
    norm = _scale(2 * CODE + 64, config)
    still = torch.cat([torch.arange(half // 2, half), torch.arange(half + half // 2, 2 * half)])
    size = (PEAK * config.head_dim ** 0.5 / half) ** 0.5 / norm
    code = torch.arange(CODE)
    heads.q_proj.weight[still, code[:half]] = size
    heads.k_proj.weight[still, BEFORE + code[:half]] = size
    heads.v_proj.weight[code, code] = 1 / norm
    heads.o_proj.weight[NEXT + code, code] = LOUD
