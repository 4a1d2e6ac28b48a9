"""A vLLM engine, or several, in a process of its own: `vllm_engine.py`, with the Python of a virtual environment that
has vLLM.

One JSON list a line of standard input, [command, name, argument...], has one line of JSON in answer. vLLM's own output
goes to standard error. Engines compute in float32, so that texts do not depend on how many tokens a step has; but
options["dtype"] is another. With VLLM_ENABLE_V1_MULTIPROCESSING=0 in the environment scheduler and worker are in this
process, else each is in one of its own.

    ["start", name, options]              an engine over options["model"], with Terrace if there is options["terrace"],
                                          its extra configuration; options["more"]: arguments of vLLM's;
                                          options["connector"]: another connector, arguments of KVTransferConfig
                                          options["env"]: environment
                                          options["record"]: a file that gets what vLLM asks of the manager, for
                                          test_contract.py
                                          options["audit"]: a file that gets a sum of each page that was stored or loaded
                                          options["loads_fail"]: each load fails, as of a worker that does not reach the
                                          daemon
    ["generate", name, prompts, options]  prompts of token ids, one after the other or, with options["at_once"], together:
                                          {"tokens", "cached", "seconds"}, a prompt each; seconds of all together if at once
                                          options["adapter"]: [name, number, path] of a LoRA adapter
    ["reset", name]                       empties vLLM's own prefix cache
    ["metrics", name]                     {name: value} of counters
    ["stop", name]
"""

import gc
import hashlib
import json
import os
import sys
import time

REPLIES = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def record(path):
    """Every call of the manager's from now on goes into the file too, a JSON list a line: [method, request, keys, places, result]."""
    from terrace.vllm.manager import TerraceManager
    out = open(path, "w", encoding="utf-8")

    def wrapped(name, function, with_keys):
        def call(self, *arguments):
            result = function(self, *arguments)
            context = arguments[-1]
            keys = [] if not with_keys else [arguments[0]] if isinstance(arguments[0], bytes) else list(arguments[0])
            said = {"lookup": lambda: result.name, "prepare_store": lambda: [key.hex() for key in result.keys_to_store]}.get(name, lambda: None)
            places = {key.hex(): end for key, end in context._offload_key_positions.items()}
            json.dump([name, context.req_id.split("-")[0], [key.hex() for key in keys], places, said()], out)
            out.write("\n")
            out.flush()
            return result
        return call
    for name, with_keys in (("on_new_request", False), ("lookup", True), ("prepare_load", True), ("complete_load", True),
                            ("prepare_store", True), ("complete_store", True), ("on_request_finished", False)):
        setattr(TerraceManager, name, wrapped(name, getattr(TerraceManager, name), with_keys))


def audit(path):
    """Every page that is stored or loaded from now on has a JSON list a line: ["store" or "load", layout and key, sum of its
    bytes in vLLM's memory]. A page whose bytes change while it is stored has the sum "torn", and a load that fails has no line."""
    from terrace.vllm.worker import TerraceWorker, by_group
    out = open(path, "a", encoding="utf-8")

    def sums(self, transfer, block_ids):
        for group, chosen in by_group(transfer, block_ids).items():
            for i in chosen:
                digest = hashlib.sha256()
                for tensor, size in self._pages[group]._refs:
                    digest.update(tensor[block_ids[i], :size].contiguous().numpy().tobytes())
                yield "%d %s" % (group, transfer.keys[i][0].hex()), digest.hexdigest()

    def wrapped(name, function):
        def call(self, transfer, block_ids):
            before = list(sums(self, transfer, block_ids)) if name == "store" else None
            copied, whole = function(self, transfer, block_ids)
            after = list(sums(self, transfer, block_ids)) if whole else []
            for n, (key, value) in enumerate(after):
                json.dump([name, key, value if before is None or before[n][1] == value else "torn"], out)
                out.write("\n")
            out.flush()
            return copied, whole
        return call
    for name in ("store", "load"):
        attribute = "_%s_pages" % name
        setattr(TerraceWorker, attribute, wrapped(name, getattr(TerraceWorker, attribute)))


class Engines:
    def __init__(self):
        self.engines = {}

    def start(self, name, options):
        os.environ.update(options.get("env", {}))
        from vllm import LLM
        from vllm.config import KVTransferConfig
        more = dict(options.get("more", {}))
        if "record" in options:
            record(options["record"])
        if "audit" in options and "terrace" in options:
            audit(options["audit"])
        if options.get("loads_fail"):
            from terrace.vllm.worker import TerraceWorker
            TerraceWorker._load_pages = lambda self, transfer, block_ids: (0, False)
        if options.get("terrace") is not None:
            more["kv_transfer_config"] = KVTransferConfig(kv_connector="TerraceConnector", kv_connector_module_path="terrace.vllm",
                                                          kv_role="kv_both", kv_connector_extra_config=options["terrace"])
        if "connector" in options:
            more["kv_transfer_config"] = KVTransferConfig(kv_role="kv_both", **options["connector"])
        self.engines[name] = LLM(model=options["model"], enforce_eager=True, max_model_len=2048, max_num_seqs=64,
                                 dtype=options.get("dtype", "float32"), disable_log_stats=False, block_size=32, **more)
        return "OK"

    def generate(self, name, prompts, options):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        params = SamplingParams(temperature=0, max_tokens=options.get("max_tokens", 16), ignore_eos=True)
        salt = {"cache_salt": options["salt"]} if "salt" in options else {}
        more = {"lora_request": LoRARequest(*options["adapter"])} if "adapter" in options else {}
        texts = [{"prompt_token_ids": prompt, **salt} for prompt in prompts]
        outputs, seconds = [], []
        for batch in [texts] if options.get("at_once") else [[text] for text in texts]:
            began = time.monotonic()
            outputs += self.engines[name].generate(batch, params, use_tqdm=False, **more)
            seconds.append(time.monotonic() - began)
        return {"tokens": [list(o.outputs[0].token_ids) for o in outputs], "cached": [o.num_cached_tokens for o in outputs],
                "seconds": seconds}

    def reset(self, name):
        return bool(self.engines[name].reset_prefix_cache())

    def metrics(self, name):
        return {m.name: m.value for m in self.engines[name].get_metrics() if isinstance(getattr(m, "value", None), (int, float))}

    def stop(self, name):
        engine = self.engines.pop(name)
        engine.llm_engine.engine_core.shutdown()
        del engine
        gc.collect()
        return "OK"


def main():
    engines = Engines()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = getattr(engines, command)(*arguments)
        except Exception as e:  # the test says what it thinks of it
            answer = {"error": "%s: %s" % (type(e).__name__, e)}
        print(json.dumps(answer), file=REPLIES, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
