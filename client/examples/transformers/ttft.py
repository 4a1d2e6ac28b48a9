"""Time to the first token of a long prompt by the tier that has its beginning, of a transformers model: see tiers.py.

    python3 ttft.py --terraced PATH [--model NAME] [--tokens 16384] [--rounds 3] [--format tq4]

Prints a JSON object a tier. Without --model it is a Llama of 1.2e9 random weights, for machines that have no other: its text means
nothing, but is the same from every tier.
"""

import argparse
import json
import random
import sys

import generate
import packed_cache
import terrace
import tiers
import torch
import transformers

GENERATED = 16
RANDOM = dict(vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
              num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--terraced", required=True)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", default="tq4")
    parser.add_argument("--block-tokens", type=int, default=32)
    return parser.parse_args()


def random_model(tokens):
    config = transformers.LlamaConfig(max_position_embeddings=tokens + GENERATED, **RANDOM)
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="terrace").eval()
    finally:
        torch.set_default_dtype(before)


class Engine:
    def __init__(self, options):
        self.model = generate.load(options.model) if options.model else random_model(options.tokens)
        config = self.model.config
        tokens = min(options.tokens, config.max_position_embeddings - GENERATED)
        rng = random.Random(1)
        self.prompt = [rng.randrange(3, config.vocab_size) for _ in range(tokens)]
        self.layout = packed_cache.layout_of(config, "ttft %s" % (options.model or "random"), options.format, options.block_tokens)

    def run(self, session, gpu, salt):
        cache = packed_cache.PackedCache(self.model.config, self.layout, session, gpu, self.model.device,
                                         len(self.prompt) + GENERATED, salt)
        try:
            out, first = generate.run(self.model, self.prompt, cache, GENERATED)
            return out, first, cache.sequence.reused
        finally:
            torch.cuda.synchronize()
            cache.close()


def main():
    options = arguments()
    torch.cuda.set_device(0)
    try:
        rows = tiers.measure(Engine(options), options.terraced, options.rounds)
    except terrace.Unsupported as error:
        print("skipped: %s" % error, file=sys.stderr)
        sys.exit(77)
    for row in rows:
        print(json.dumps({"bench": "ttft", "engine": "transformers", "model": options.model or "random 1.2e9", "format": options.format,
                          "wanted_tokens": options.tokens, **row}), flush=True)


if __name__ == "__main__":
    main()
