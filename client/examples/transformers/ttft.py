"""Time to the first token of a long prompt by the tier that has its beginning, of a transformers model: see tiers.py.

    python3 ttft.py --terraced PATH [--model NAME] [--tokens 16384] [--rounds 3] [--format tq4]

Prints a JSON object a tier; exit code 1 if a text is not what it must be. Row recompute is transformers alone, with its own cache and
attention. Without --model it is copier.py's Llama of 1.1e9 weights, for machines that have no other: the prompt's last token stands at a
third of it too, and every row must say what followed there. The rows with packed blocks must have the same logits, bit for bit, whether
the blocks were just computed or came from a tier; logits_differ is how far theirs are from recompute's, of the distance between the best
two: it is the format's error (and that of another order of sums, which is all there is with --format bf16).
"""

import argparse
import hashlib
import json
import random
import sys

import copier
import generate
import packed_cache
import terrace
import tiers
import torch
import transformers

GENERATED = 16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--terraced", required=True)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", default="tq4")
    parser.add_argument("--block-tokens", type=int, default=32)
    return parser.parse_args()


class PlainCache(transformers.DynamicCache):
    """transformers' own, as generate.run wants one."""

    def begin(self, prompt):
        return 0

    def cut(self, tokens):
        return 0

    def publish(self):
        pass


class Engine:
    def __init__(self, options):
        self.model = generate.load(options.model) if options.model else copier.model(options.tokens + GENERATED)
        config, rng = self.model.config, random.Random(1)
        tokens = min(options.tokens, config.max_position_embeddings - GENERATED)
        if options.model:
            self.prompt, self.answer = [rng.randrange(3, config.vocab_size) for _ in range(tokens)], None
        else:
            self.prompt, follows = copier.prompt(tokens, config.vocab_size, rng)
            self.answer = follows[:GENERATED]
        self.layout = packed_cache.layout_of(config, "ttft %s" % (options.model or "copier"), options.format, options.block_tokens)
        self.logits = {}  # by hash

    def _run(self, cache):
        ids, first, logits = generate.run(self.model, self.prompt, cache, GENERATED)
        logits = logits.float().cpu()
        name = hashlib.sha256(logits.numpy().tobytes()).hexdigest()[:16]
        self.logits[name] = logits
        if self.answer and ids != self.answer:
            raise RuntimeError("the model says %s, not %s" % (ids, self.answer))
        return ids, first, name

    def compute(self):
        """Without Terrace."""
        self.model.config._attn_implementation = "sdpa"  # which each layer looks at when it is called
        try:
            return self._run(PlainCache())
        finally:
            self.model.config._attn_implementation = "terrace"

    def run(self, session, gpu, salt):
        cache = packed_cache.PackedCache(self.model.config, self.layout, session, gpu, self.model.device,
                                         len(self.prompt) + GENERATED, salt)
        try:
            return *self._run(cache), cache.sequence.reused
        finally:
            torch.cuda.synchronize()
            cache.close()

    def differ(self, name, base):
        """How far logits are from others, in the distance between the best two of those."""
        best = self.logits[base].topk(2).values
        return float((self.logits[name] - self.logits[base]).abs().max() / (best[0] - best[1]))


def main():
    options = arguments()
    torch.cuda.set_device(0)
    engine = Engine(options)
    try:
        rows = tiers.measure(engine, options.terraced, options.rounds)
    except terrace.Unsupported as error:
        print("skipped: %s" % error, file=sys.stderr)
        sys.exit(77)
    for row in rows:
        print(json.dumps({"bench": "ttft", "engine": "transformers", "model": options.model or "copier 1.1e9", "format": options.format,
                          "wanted_tokens": options.tokens, **row, "logits_differ": round(engine.differ(row["logits"], rows[0]["logits"]), 5)}),
              flush=True)
    lossless = options.format == str(engine.model.dtype).replace("torch.bfloat16", "bf16").replace("torch.float16", "fp16")
    if not all(row["same_as_recompute"] for row in rows) and (lossless or engine.answer):
        sys.exit("a text is not recompute's")


if __name__ == "__main__":
    main()
