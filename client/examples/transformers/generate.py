"""Greedy generation from a transformers model with its K and V in Terrace: see README.md."""

import argparse
import sys
import time

import packed_cache
import prefix
import terrace
import torch
import transformers


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--format", default="tq4")
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--daemon", help="address; without it $TERRACE_ADDRESS, or the usual place")
    parser.add_argument("--device", type=int, default=0)
    return parser.parse_args()


def open_session(options, layout):
    """(client, session, the GPU's number there), or Nones and a word."""
    client = None
    try:
        client = terrace.connect(options.daemon)
        session = client.session([layout], engine="transformers", gpu=True)
        gpu = session.gpu_of(options.device)
        if gpu is not None:
            return client, session, gpu
        words = "the daemon lends no memory of this GPU"
    except terrace.Error as error:
        words = str(error)
    print("%s; going on without it" % words, file=sys.stderr)
    return None, None, None


def load(name):
    """The model on the GPU, in bf16, attending from packed blocks."""
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    dtype = {"dtype" if version >= (4, 56) else "torch_dtype": torch.bfloat16}
    return transformers.AutoModelForCausalLM.from_pretrained(name, attn_implementation="terrace", **dtype).to("cuda").eval()


@torch.inference_mode()
def run(model, ids, cache, tokens):
    """The generated ids, the seconds until the first of them, and its logits."""
    begin, device = time.monotonic(), model.device
    done = cache.begin(ids)
    cut = max(done, cache.cut(len(ids)))
    out, feed = [], ids[done:cut] or ids[cut:]
    while True:
        at = torch.arange(done, done + len(feed), device=device)
        logits = model(torch.tensor([feed], device=device), past_key_values=cache, position_ids=at[None], cache_position=at,
                       use_cache=True, logits_to_keep=1).logits
        done += len(feed)
        if done == cut:
            feed = ids[cut:]
            continue
        out.append(int(logits[0, -1].argmax()))  # waits for the stream
        if len(out) == 1:
            first, told = time.monotonic() - begin, logits[0, -1]
            cache.publish()
        if len(out) == tokens or out[-1] == model.config.eos_token_id:
            return out, first, told
        feed = out[-1:]


def main():
    options = arguments()
    torch.cuda.set_device(options.device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = load(options.model)
    ids = tokenizer(options.prompt).input_ids
    name = "%s %s bf16" % (options.model, getattr(model.config, "_commit_hash", ""))
    layout = packed_cache.layout_of(model.config, name, options.format, options.block_tokens)
    client, session, gpu = open_session(options, layout)
    for tried in (session, None):  # what the daemon loses in the middle is computed again without it
        cache = packed_cache.PackedCache(model.config, layout, tried, gpu, model.device, len(ids) + options.tokens)
        try:
            out, first, _ = run(model, ids, cache, options.tokens)
            break
        except (prefix.Lost, terrace.Error) as error:
            if tried is None:
                raise
            print("%s; beginning anew without the daemon" % error, file=sys.stderr)
        finally:
            torch.cuda.synchronize()
            cache.close()
    print(tokenizer.decode(out))
    print("[%d prompt tokens, %d of them reused, first token after %.0f ms, %d blocks stored]" %
          (len(ids), cache.sequence.reused, first * 1e3, cache.sequence.stored), file=sys.stderr)
    if session:
        session.close()
        client.close()


if __name__ == "__main__":
    main()
