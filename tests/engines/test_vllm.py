#!/usr/bin/python3
"""vLLM on a CPU, served by Terrace: `test_vllm.py TERRACED LIBTERRACE PYTHON MODEL [TEST]`, with the Python that has
vLLM. See run.sh. With `--record FILE` in the place of TEST it makes vllm_calls.jsonl anew, which test_contract.py
replays.

An engine needs a minute to start, most of it to import. vLLM has one KV connector a process, also for engines that
have none, so each engine with Terrace has a process of its own, and those without share one. Prompts are held-out
tokens of the model's; texts are compared as tokens, greedy."""

import json
import math
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

TERRACED, LIBRARY, PYTHON, MODEL = sys.argv[1:5]
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "client", "python")]
sys.dont_write_bytecode = True
os.environ["LIBTERRACE"] = LIBRARY
import terrace  # noqa: E402
from daemon import Daemon, wait_for  # noqa: E402

LONG = os.environ.pop("TERRACE_LONG", "") == "1"  # terraced refuses variables that it does not know
START_S = 900  # ends a start that hangs, and proves nothing: a machine may be slow
ALWAYS = {"terrace.load": "always", "terrace.call_ms": 60000}  # for tests that count what came, also on a busy machine
BLOCK = 32
SYSTEM = 1024  # tokens of the prompt that requests share
FLAGS = ("--host-bytes", "256MiB")
LOGS = os.environ.get("LOGS") or tempfile.mkdtemp(prefix="terrace-engines-logs-")
with open(os.path.join(MODEL, "val_tokens.u16"), "rb") as _file:
    _bytes = _file.read()
TOKENS = list(struct.unpack("<%dH" % (len(_bytes) // 2), _bytes))


def requests(count, system=0, length=40):
    """Prompts with a common beginning, `system`."""
    begin = 2048 * system
    return [TOKENS[begin:begin + SYSTEM] + TOKENS[begin + SYSTEM + length * n:begin + SYSTEM + length * (n + 1)] for n in range(count)]


def safetensors(path, shapes, seed, scale):
    """Writes a file of random numbers, {name: shape}."""
    of, head, data = random.Random(seed), {}, bytearray()
    for name, shape in shapes.items():
        count = math.prod(shape)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack("<%df" % count, *(of.gauss(0, scale) for _ in range(count)))
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def hybrid(folder):
    """Writes a small Gemma 3 of random weights into a folder: three layers with a window of 128 tokens between three without."""
    hidden, inner, layers, heads, kv, size, words = 128, 256, 6, 2, 1, 64, 4096
    os.makedirs(folder)
    shapes = {"model.embed_tokens.weight": [words, hidden], "model.norm.weight": [hidden]}
    for n in range(layers):
        layer = "model.layers.%d." % n
        for name, shape in (("q_proj", [heads * size, hidden]), ("k_proj", [kv * size, hidden]), ("v_proj", [kv * size, hidden]),
                            ("o_proj", [hidden, heads * size]), ("q_norm", [size]), ("k_norm", [size])):
            shapes["%sself_attn.%s.weight" % (layer, name)] = shape
        for name, shape in (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner])):
            shapes["%smlp.%s_proj.weight" % (layer, name)] = shape
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            shapes["%s%s_layernorm.weight" % (layer, name)] = [hidden]
    safetensors(os.path.join(folder, "model.safetensors"), shapes, 1, .1)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": hidden, "head_dim": size,
                   "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
                   "num_key_value_heads": kv, "vocab_size": words, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
                   "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
                   "query_pre_attn_scalar": size, "rope_theta": 10000.0, "rope_local_base_freq": 10000.0,
                   "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "bos_token_id": 0, "eos_token_id": 1,
                   "torch_dtype": "float32"}, file)
    return folder


def adapter(folder, seed):
    """Writes a LoRA adapter of the model's into a folder: 8 ranks of random numbers for attention's matrices."""
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    hidden, size, rank = config["hidden_size"], config["head_dim"], 8
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {}
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            name = "base_model.model.model.layers.%d.self_attn.%s_proj.lora_" % (layer, name)
            shapes[name + "A.weight"], shapes[name + "B.weight"] = [rank, columns], [rows, rank]
    os.makedirs(folder, exist_ok=True)
    safetensors(os.path.join(folder, "adapter_model.safetensors"), shapes, seed, .1)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16, "bias": "none",
                   "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "base_model_name_or_path": MODEL}, file)
    return folder


def say(text):
    print("    " + text, flush=True)


def environment(daemon):
    """That of engines. Threads that wait for each other at each step make an engine many times slower where other processes want
    the cores; and bound to cores, a worker does not start on a machine of two."""
    return {**os.environ, "LIBTERRACE": LIBRARY, "PYTHONPATH": os.path.join(ROOT, "client", "python"),
            "TERRACE_ADDRESS": daemon.address, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}


class Process:
    """A process with engines."""

    def __init__(self, daemon, one_process=True, log="engine", python=PYTHON):
        self.log = os.path.join(LOGS, log + ".log")
        env = {**environment(daemon), "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if one_process else "1"}
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen([python, os.path.join(HERE, "vllm_engine.py")],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=out, env=env, text=True, start_new_session=True)

    def send(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def receive(self):
        timer = threading.Timer(START_S, self.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            with open(self.log, encoding="utf-8", errors="replace") as log:
                raise AssertionError("the engine has ended:\n" + log.read()[-4000:])
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(answer["error"])
        return answer

    def ask(self, *command):
        self.send(*command)
        return self.receive()

    def kill(self):
        """All of its processes, as a crash would end them."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def logged(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()


def external(engine, name="terrace"):
    """(tokens that vLLM's own cache did not have, those of them that Terrace had), so far."""
    metrics = engine.ask("metrics", name)
    return metrics["vllm:external_prefix_cache_queries"], metrics["vllm:external_prefix_cache_hits"]


class Shows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="terrace-engines-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.daemon = Daemon(TERRACED, *FLAGS, "--disks", os.path.join(cls.folder, "disk") + ":1GiB")
        cls.addClassCleanup(cls.daemon.close)
        cls.started = {}

    def common(self, log, start):
        """An engine of all tests, which begins when the first of them wants it."""
        if log not in self.started:
            process = self.started[log] = Process(self.daemon, log=log)
            self.addClassCleanup(process.kill)
            process.ask("start", *start)
        return self.started[log]

    @property
    def alone(self):
        """vLLM without Terrace."""
        return self.common("alone", ("plain", {"model": MODEL}))

    @property
    def engine(self):
        """vLLM with Terrace."""
        return self.common("engine", ("terrace", {"model": MODEL, "terrace": ALWAYS}))

    @property
    def texts(self):
        """Those of requests(20), of vLLM without Terrace."""
        if "texts" not in self.started:
            self.started["texts"] = self.plain(requests(20))
        return self.started["texts"]

    def plain(self, prompts, **options):
        """The texts of vLLM without Terrace."""
        return self.alone.ask("generate", "plain", prompts, options)["tokens"]

    def without(self, log, prompts, options, start):
        """Lists of texts, one for each of the options, of another engine without Terrace. It has a process of its own: one that
        ends takes the parallel groups of its process with it."""
        process = Process(self.daemon, log=log)
        try:
            process.ask("start", "plain", start)
            return [process.ask("generate", "plain", prompts, one)["tokens"] for one in options]
        finally:
            process.kill()

    def same(self, engine, count=4, name="terrace", **options):
        """The texts are those of vLLM alone, with nothing in vLLM's own cache before each request. The longest request's seconds."""
        longest = 0
        for n, prompt in enumerate(requests(count)):
            engine.ask("reset", name)
            answer = engine.ask("generate", name, [prompt], options)
            self.assertEqual(answer["tokens"][0], self.texts[n], "request %d" % n)
            longest = max(longest, *answer["seconds"])
        return longest

    def hits(self, engine, count=4):
        """The same, and tokens that came from Terrace."""
        before = external(engine)[1]
        self.same(engine, count)
        return external(engine)[1] - before

    def stored(self):
        return sum(value for name, value in self.daemon.stats().items() if re.match("terrace_commits_total", name))

    @staticmethod
    def evicted(daemon):
        return sum(value for name, value in daemon.stats().items() if name.startswith("terrace_evictions_total"))

    def settled(self):
        """Waits until what the engine has stored is there."""
        wait_for(lambda: self.hits(self.engine, 1) > 0, 60, "the engine's blocks are stored")

    maxDiff = 4000

    def test_1_restarted_and_beside(self):
        self.assertEqual(self.engine.ask("generate", "terrace", requests(20), {})["tokens"], self.texts)
        self.settled()
        beside = Process(self.daemon, one_process=False, log="beside")
        self.addCleanup(beside.kill)
        beside.ask("start", "terrace", {"model": MODEL, "terrace": ALWAYS})
        answer = beside.ask("generate", "terrace", requests(20), {})
        self.assertEqual(answer["tokens"], self.texts)
        wanted, came = external(beside)
        blocks = [len(prompt) // BLOCK for prompt in requests(20)]
        possible = blocks[0] * BLOCK + sum((n - SYSTEM // BLOCK) * BLOCK for n in blocks[1:])
        say("a new process, beside the first: %d of %d possible tokens of %d came from Terrace" % (came, possible, wanted))
        self.assertGreaterEqual(came, .9 * possible)
        came = self.hits(beside, 20)
        possible = sum(blocks) * BLOCK
        say("with nothing in vLLM's own cache: %d of %d possible tokens" % (came, possible))
        self.assertGreaterEqual(came, .9 * possible)
        # It stores what is new, and dies of it.
        beside.send("generate", "terrace", requests(20, system=3), {"at_once": True, "max_tokens": 64})
        stored = self.stored()
        wait_for(lambda: self.stored() > stored, 120, "it stores")
        beside.kill()
        say("killed while it stored")
        plain = self.plain(requests(20, system=3))
        self.assertEqual(self.engine.ask("generate", "terrace", requests(20, system=3), {})["tokens"], plain)
        self.assertGreater(self.hits(self.engine), 0)

    def test_2_nothing_to_hit(self):
        figures = {}
        for kind, (length, out) in {"prefill": (1024, 1), "decode": (32, 96)}.items():
            ratios = []
            for turn in range(7 if LONG else 3):
                prompts = [TOKENS[at:at + length] for at in range(turn * 37 + (7 if kind == "decode" else 0), 15000, 2000)]
                seconds = {}
                pair = (("plain", self.alone), ("terrace", self.engine))
                for name, process in pair if turn % 2 else pair[::-1]:
                    process.ask("reset", name)
                    seconds[name] = process.ask("generate", name, prompts, {"at_once": True, "max_tokens": out, "salt": "%s %d" % (kind, turn)})
                self.assertEqual(seconds["plain"]["tokens"], seconds["terrace"]["tokens"])
                ratios.append(seconds["plain"]["seconds"][0] / seconds["terrace"]["seconds"][0])
            figures[kind] = sorted(ratios)
        for kind, ratios in figures.items():
            say("%s-heavy, nothing to hit: throughput %.3f of vLLM's alone (median of %d, %.3f to %.3f)"
                % (kind, ratios[len(ratios) // 2], len(ratios), ratios[0], ratios[-1]))

    def test_3_daemon_killed_and_stopped(self):
        daemon = Daemon(TERRACED, *FLAGS, "--disks", os.path.join(self.folder, "killed") + ":1GiB")
        self.addCleanup(daemon.close)
        engine = self.over(daemon, "killed", **{"terrace.load": "always"})  # of a daemon that has stopped it waits for 250 ms
        self.same(engine)
        wait_for(lambda: self.hits(engine, 1) > 0, 60, "the engine's blocks are stored")
        daemon.kill()
        say("the daemon killed: longest request %.2f s" % self.same(engine))
        daemon.start()
        wait_for(lambda: self.hits(engine, 2) > 0, 120, "the engine has found the new daemon and loads from it")
        self.assertGreater(engine.logged().count("Terrace answers again"), 0)
        daemon.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        timer = threading.Timer(300, daemon.process.send_signal, [signal.SIGCONT])
        timer.start()
        longest = self.same(engine, 2)
        self.assertTrue(timer.is_alive(), "the requests were answered only once the daemon went on")
        time.sleep(max(0, began + 10 - time.monotonic()))
        timer.cancel()
        daemon.process.send_signal(signal.SIGCONT)
        say("the daemon stopped for ten seconds: longest request %.2f s" % longest)
        wait_for(lambda: self.hits(engine, 2) > 0, 120, "the engine has found the daemon again")

    def test_4_never_mixed(self):
        prompts = requests(2, system=5)
        plain = self.plain(prompts)
        came = {}
        for turn, salt in enumerate(("a", "b", "a")):
            self.engine.ask("reset", "terrace")
            before = external(self.engine)[1]
            self.assertEqual(self.engine.ask("generate", "terrace", prompts[:1], {"salt": salt})["tokens"], plain[:1])
            came[turn] = external(self.engine)[1] - before
            time.sleep(.5)  # its stores
        say("tokens from Terrace with salt a, b, a: %d, %d, %d" % (came[0], came[1], came[2]))
        self.assertEqual((came[0], came[1]), (0, 0))
        self.assertGreater(came[2], 0)
        # Another revision: the same names, other weights.
        other = os.path.join(self.folder, "revision", os.path.basename(MODEL))
        shutil.copytree(MODEL, other)
        path = os.path.join(other, "model.safetensors")
        with open(path, "r+b") as file:
            head = struct.unpack("<Q", file.read(8))[0]
            file.seek(8 + head)
            weights = bytearray(file.read())
            for at in range(1, len(weights), 2 * 977):  # the sign of some bf16 weights
                weights[at] ^= 0x80
            file.seek(8 + head)
            file.write(weights)
        theirs = self.without("plain 2", requests(4), [{}], {"model": other})[0]
        self.assertNotEqual(theirs, self.texts[:4])
        revision = Process(self.daemon, log="revision")
        self.addCleanup(revision.kill)
        revision.ask("start", "terrace", {"model": other, "terrace": ALWAYS})
        self.assertEqual(revision.ask("generate", "terrace", requests(4), {})["tokens"], theirs)
        self.assertEqual(external(revision)[1], 0)
        time.sleep(1)
        revision.ask("reset", "terrace")
        self.assertEqual(revision.ask("generate", "terrace", requests(4), {})["tokens"], theirs)
        self.assertGreater(external(revision)[1], 0)
        say("two revisions share nothing, and find their own: %d tokens" % external(revision)[1])
        self.same(self.engine)

    def over(self, daemon, log, options=None, **extra):
        """An engine in a process of its own. extra: options of terrace.vllm's."""
        engine = Process(daemon, log=log)
        self.addCleanup(engine.kill)
        engine.ask("start", "terrace", {"model": MODEL, "terrace": extra, **(options or {})})
        return engine

    def test_5_flipped_bits(self):
        disk = os.path.join(self.folder, "flipped")
        daemon = Daemon(TERRACED, *FLAGS, "--disks", disk + ":256MiB")
        self.addCleanup(daemon.close)
        engine = self.over(daemon, "flipped", **ALWAYS)
        self.same(engine, 2)
        wait_for(lambda: self.hits(engine, 1) > 0, 60, "blocks are stored")
        daemon.stop()  # orderly: all of it is on the disk
        slabs = sorted(os.path.join(disk, name) for name in os.listdir(disk) if name.startswith("slab-"))[::3]
        self.assertGreater(len(slabs), 3)
        for path in slabs:
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 4]))
        answers = engine.logged().count("Terrace answers again")
        daemon.start()
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
        wait_for(lambda: self.same(engine, 1) and engine.logged().count("Terrace answers again") > answers, 60,
                 "the engine has found the daemon again")
        before = external(engine)[1]
        self.same(engine, 4)
        came, corrupt = external(engine)[1] - before, daemon.stats()["terrace_disk_corrupt_total{disk=0}"]
        self.assertGreater(corrupt, 0)
        say("a bit flipped in each of %d slabs: the same texts; the daemon found %d of them, and %d tokens came from it"
            % (len(slabs), corrupt, came))

    def test_6_full(self):
        daemon = Daemon(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "4MiB", "--disks", os.path.join(self.folder, "small") + ":16MiB")
        self.addCleanup(daemon.close)
        engine = self.over(daemon, "full", **ALWAYS)
        prompts = [requests(1, system=system)[0] for system in range(6)]
        plain = self.plain(prompts)
        for prompt, text in zip(prompts * 2, plain * 2):
            for _ in range(2):
                engine.ask("reset", "terrace")
                self.assertEqual(engine.ask("generate", "terrace", [prompt], {})["tokens"], [text])
        wanted, came = external(engine)
        self.assertGreater(self.evicted(daemon), 0)
        self.assertGreater(came, 2 * len(prompts) * BLOCK)
        say("memory and disk full: the same texts, %d of %d tokens from Terrace" % (came, wanted))

    def test_7_slow_disk(self):
        """5 MB/s: a block is 512 KiB, and read in one piece."""
        disk = tempfile.mkdtemp(prefix="terrace-slow-", dir="/tmp")  # the disk that slow_disk.sh slows
        self.addCleanup(shutil.rmtree, disk, True)
        slow = ["sh", os.path.join(ROOT, "tests", "slow_disk.sh"), "1000", "10", "--"]
        if subprocess.run([*slow, "true"], capture_output=True, check=False).returncode == 77:
            self.skipTest("no control group that slows a disk here")
        flags = (*FLAGS, "--disks", disk + ":256MiB")
        with_blocks = Daemon(TERRACED, *flags)
        self.addCleanup(with_blocks.close)
        engine = self.over(with_blocks, "slow")
        systems = list(range(7, 15))
        prompts = [requests(1, system=s)[0] for s in systems]
        plain = self.plain(prompts, max_tokens=1)
        self.assertEqual(engine.ask("generate", "terrace", prompts, {"max_tokens": 1})["tokens"], plain)
        time.sleep(1)
        with_blocks.stop()
        ours = with_blocks.command
        with_blocks.command = lambda: [*slow, *ours()]
        with_blocks.start()
        wait_for(lambda: with_blocks.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
        time.sleep(2)  # the engine finds it again
        seconds = {"plain": [], "terrace": []}
        for prompt, text in zip(prompts, plain):
            for name, process in (("plain", self.alone), ("terrace", engine)):
                process.ask("reset", name)
                answer = process.ask("generate", name, [prompt], {"max_tokens": 1})
                self.assertEqual(answer["tokens"], [text])
                seconds[name] += answer["seconds"]
        wanted, came = external(engine)
        say("a disk of 5 MB/s: first token after %.0f ms, computing alone %.0f ms (sums of %d); %d tokens of %d were loaded"
            % (1e3 * sum(seconds["terrace"]), 1e3 * sum(seconds["plain"]), len(prompts), came, wanted))
        with_blocks.process.kill()

    def loads(self, path):
        """The pages that an engine has loaded, by the file of its sums: [layout and key]. Each has the bytes that were stored."""
        with open(path, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        sums = {}
        for what, key, value in records:
            if what == "store":
                self.assertEqual(sums.setdefault(key, value), value, "a block was stored twice, with other bytes")
        loads = [(key, value) for what, key, value in records if what == "load"]
        self.assertNotIn("torn", sums.values())
        self.assertEqual([(key, sums.get(key)) for key, _ in loads], loads)
        return [key for key, _ in loads]

    def test_8_every_byte(self):
        """In bf16 a text may differ from that of an engine that computed all of its tokens in one step, because sums of another
        length are rounded otherwise. So what is asserted is that each page has the bytes that were stored, and that texts are
        those of a hit in vLLM's own cache, which splits the computing at the same token."""
        path = os.path.join(self.folder, "audit.jsonl")
        engine = self.over(self.daemon, "bytes", {"dtype": "bfloat16", "audit": path}, **ALWAYS)
        prompts = requests(20)
        stored = self.stored()
        computed = engine.ask("generate", "terrace", prompts, {"max_tokens": 32})["tokens"]
        own = engine.ask("generate", "terrace", prompts, {"max_tokens": 32})
        blocks = len(prompts[0]) // BLOCK + sum(len(prompt) // BLOCK - SYSTEM // BLOCK for prompt in prompts[1:])
        wait_for(lambda: self.stored() >= stored + blocks, 60, "all blocks are stored")
        before, ours = external(engine)[1], {"tokens": [], "cached": []}
        for prompt in prompts:
            engine.ask("reset", "terrace")
            for name, values in engine.ask("generate", "terrace", [prompt], {"max_tokens": 32}).items():
                ours.setdefault(name, []).extend(values)
        self.assertEqual(external(engine)[1] - before, sum(own["cached"]))
        self.assertEqual(ours["cached"], own["cached"])
        self.assertEqual(ours["tokens"], own["tokens"])
        loads = self.loads(path)
        self.assertEqual(len(loads), sum(len(prompt) // BLOCK for prompt in prompts))
        say("bf16: %d pages were loaded, each with the bytes that were stored; %d of 20 texts are not those of computing all in one "
            "step, also with vLLM's own cache" % (len(loads), sum(a != b for a, b in zip(computed, ours["tokens"]))))

    def test_9_adapters(self):
        prompts, more = requests(2, system=6), {"more": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}}
        folders = {name: adapter(os.path.join(self.folder, "adapter", name), seed) for seed, name in enumerate("ab")}
        chosen = {name: {"adapter": [name, 1 + n, folders[name]]} for n, name in enumerate("ab")}
        chosen["none"] = {}
        texts = dict(zip(chosen, self.without("plain lora", prompts, chosen.values(), {"model": MODEL, **more})))
        self.assertEqual(len({str(text) for text in texts.values()}), 3)
        engine = self.over(self.daemon, "lora", more, **ALWAYS)

        def came(engine, name, expected):
            """Tokens from Terrace of the first prompt, with nothing in vLLM's own cache."""
            engine.ask("reset", "terrace")
            before = external(engine)[1]
            answer = engine.ask("generate", "terrace", prompts[:1], chosen[name])["tokens"]
            self.assertEqual(answer, texts[expected][:1], name)
            return external(engine)[1] - before
        for name in chosen:
            self.assertEqual(came(engine, name, name), 0, name)
        for name in chosen:
            wait_for(lambda name=name: came(engine, name, name) >= SYSTEM, 60, "the blocks of adapter %s are stored" % name)
        # The bytes of b at the path and under the name of a. The engine that has loaded a has still a.
        adapter(folders["a"], 1)
        self.assertEqual(came(engine, "a", "a"), 0)
        engine.kill()
        engine = self.over(self.daemon, "lora", more, **ALWAYS)
        self.assertEqual(came(engine, "a", "b"), 0)
        wait_for(lambda: came(engine, "b", "b") >= SYSTEM, 60, "b is hashed, and its blocks are found")
        say("two adapters and none share nothing, nor do two of one name and path")

    def test_a_small_cache(self):
        """64 requests at once over a cache of a tenth of what they use, for a minute; with TERRACE_LONG for ten."""
        daemon = Daemon(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "4MiB", "--disks",
                        os.path.join(self.folder, "tenth") + ":16MiB")
        self.addCleanup(daemon.close)
        engine = self.over(daemon, "tenth", **ALWAYS)
        prompts = [TOKENS[at:at + 512] for at in range(0, 40 * 700, 700)]  # 40 of 8 MiB
        plain = self.plain(prompts, at_once=True, max_tokens=4)
        of, rounds, began, used = random.Random(1), 0, time.monotonic(), [0, 1]
        while rounds < 5 or time.monotonic() - began < (600 if LONG else 60):
            used = used[-2:] + of.sample(range(len(prompts)), 2)  # two that are used again, and two of all
            some = [of.choice(used) for _ in range(64)]
            engine.ask("reset", "terrace")
            answer = engine.ask("generate", "terrace", [prompts[n] for n in some], {"at_once": True, "max_tokens": 4})
            self.assertEqual(answer["tokens"], [plain[n] for n in some])
            rounds += 1
        wanted, came = external(engine)
        self.assertGreater(came, 2 * rounds * BLOCK)
        self.assertGreater(self.evicted(daemon), 0)
        say("%d rounds of 64 requests over a tenth of their blocks: the same texts, %d of %d tokens from Terrace" % (rounds, came, wanted))

    def again(self, start, log):
        """Starts an engine, which stores; empties vLLM's own cache; and asks for the same. The texts are those of vLLM alone, and
        nine tenths of the tokens come from Terrace."""
        prompts = requests(4)
        plain = self.without("plain " + log, prompts, [{}], start)[0]
        self.assertGreater(len({str(text) for text in plain}), 1)
        engine = self.over(self.daemon, log, start, **ALWAYS)
        self.assertEqual(engine.ask("generate", "terrace", prompts, {})["tokens"], plain)
        possible = sum((len(prompt) - 1) // BLOCK for prompt in prompts) * BLOCK

        def came():
            before = external(engine)[1]
            for n, prompt in enumerate(prompts):
                engine.ask("reset", "terrace")
                self.assertEqual(engine.ask("generate", "terrace", [prompt], {})["tokens"], plain[n:n + 1])
            return external(engine)[1] - before
        wait_for(lambda: came() >= .9 * possible, 120, "nine tenths of the tokens come from Terrace")
        return came(), possible

    def test_b_two_workers(self):
        start = {"model": MODEL, "more": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}}
        say("two tensor parallel workers: the same texts, %d of %d tokens from Terrace" % self.again(start, "workers"))

    def test_c_hybrid(self):
        path = os.path.join(self.folder, "hybrid.jsonl")
        start = {"model": hybrid(os.path.join(self.folder, "hybrid")), "more": {"skip_tokenizer_init": True}, "audit": path}
        came = self.again(start, "hybrid")
        self.assertEqual({key.split()[0] for key in self.loads(path)}, {"0", "1"})
        say("layers with and without a window: the same texts, %d of %d tokens from Terrace" % came)

    def serve(self, log):
        """The server of README.md's line, and a way to ask it. The command `vllm` of the package vllm-cpu does not start, because
        it asks for the version of a package vllm; `vllm serve` runs the module below, which does."""
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            options = re.search(r"^    vllm serve MODEL --kv-transfer-config '([^']*)'$", file.read(), re.M).group(1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**environment(self.daemon), "VLLM_SERVER_DEV_MODE": "1"}
        with open(os.path.join(LOGS, log + ".log"), "ab") as out:
            server = subprocess.Popen([PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--kv-transfer-config", options,
                                       "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "2048",
                                       "--block-size", str(BLOCK), "--enforce-eager"],
                                      stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, start_new_session=True)

        def end():
            try:
                os.killpg(server.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            server.wait()
        self.addCleanup(end)

        def ask(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=START_S) as answer:
                return answer.read().decode()

        def there():
            self.assertIsNone(server.poll(), "the server has ended: see " + out.name)
            try:
                ask("/health")
            except OSError:
                return False
            return True
        wait_for(there, START_S, "vllm serve answers")
        return ask, end

    def test_d_serve(self):
        """README's line, restarted in between."""
        prompt = requests(1, system=4)[0]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        ask, end = self.serve("serve")
        stored = self.stored()
        text = json.loads(ask("/v1/completions", body))["choices"][0]["text"]
        ask("/v1/completions", {**body, "prompt": [1] * 40, "max_tokens": 40})  # steps in which the stores end
        wait_for(lambda: self.stored() >= stored + len(prompt) // BLOCK, 120, "the blocks are stored")
        end()
        ask, end = self.serve("serve")

        def hits():
            ask("/reset_prefix_cache", {})
            self.assertEqual(json.loads(ask("/v1/completions", body))["choices"][0]["text"], text)
            found = re.search(r"^vllm:external_prefix_cache_hits_total\{.*\} (\S+)$", ask("/metrics"), re.M)
            return float(found.group(1)) if found else 0
        wait_for(lambda: hits() > 0, 120, "a server that was restarted loads from Terrace")
        metrics = ask("/metrics")
        self.assertRegex(metrics, r"(?m)^vllm:terrace_load_blocks_total\{.*\} [1-9]")
        end()
        say("vllm serve, restarted: the same text, %d tokens from Terrace" % float(
            re.search(r"^vllm:external_prefix_cache_hits_total\{.*\} (\S+)$", metrics, re.M).group(1)))

    def test_e_hashes(self):
        """Keys of other algorithms. Those of xxhash are others in each process, unless it is told not to."""
        came = self.again({"model": MODEL, "more": {"prefix_caching_hash_algo": "sha256_cbor"}}, "cbor")
        say("sha256_cbor: the same texts, %d of %d tokens from Terrace" % came)
        start = {"model": MODEL, "more": {"prefix_caching_hash_algo": "xxhash"}}
        with self.assertRaisesRegex(AssertionError, "terrace.share is .required., but .*PYTHONHASHSEED"):
            self.over(self.daemon, "refused", start, **ALWAYS, **{"terrace.share": "required"})
        start["env"] = {"PYTHONHASHSEED": "7"}
        prompts, came = requests(2), []
        for log in ("xxhash", "xxhash again"):
            engine = self.over(self.daemon, log, start, **ALWAYS, **{"terrace.share": "required"})
            stored = self.stored()
            self.assertEqual(engine.ask("generate", "terrace", prompts, {})["tokens"], self.texts[:2])
            came.append(external(engine)[1])
            if len(came) == 1:
                wait_for(lambda s=stored: self.stored() >= s + SYSTEM // BLOCK, 60, "the blocks are stored")
            engine.kill()
        self.assertEqual(came[0], 0)
        self.assertGreaterEqual(came[1], SYSTEM)
        say("xxhash: refused without PYTHONHASHSEED; with it %d tokens of another process's" % came[1])

    def test_f_loads_fail(self):
        """The scheduler finds blocks that no worker can load: each request is computed, and not looked up for ever."""
        engine = self.over(self.daemon, "loads", {"loads_fail": True}, **ALWAYS)

        def tried():
            self.same(engine, 2)
            return engine.ask("metrics", "terrace").get("vllm:terrace_failed_loads", 0)
        wait_for(lambda: tried() > 0, 120, "a load has failed")
        longest = self.same(engine, 2)
        say("each load fails: the same texts, longest request %.2f s" % longest)

    def test_g_no_room(self):
        """A file system without room, then memory that is all another engine's: the same texts, and nothing is waited for."""
        small = os.path.join(self.folder, "small")
        os.makedirs(small)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", small], check=False).returncode:
            self.skipTest("a tmpfs cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=False)
        daemon = Daemon(TERRACED, "--host-bytes", "32MiB", "--extent-bytes", "4MiB", "--disks", os.path.join(small, "disk") + ":48MiB")
        self.addCleanup(daemon.close)
        with open(os.path.join(small, "ballast"), "wb", buffering=0) as ballast, self.assertRaisesRegex(OSError, "No space"):
            while True:
                ballast.write(bytes(1 << 12))
        engine = self.over(daemon, "no room", **ALWAYS)
        prompts = [requests(1, system=system)[0] for system in range(5)]  # of 16 MiB
        plain = self.plain(prompts)

        def longest():
            seconds = []
            for _ in range(2):
                for prompt, text in zip(prompts, plain):
                    engine.ask("reset", "terrace")
                    answer = engine.ask("generate", "terrace", [prompt], {})
                    self.assertEqual(answer["tokens"], [text])
                    seconds += answer["seconds"]
            return max(seconds)
        say("no space on the disk's file system: the same texts, longest request %.2f s" % longest())
        self.assertRegex(daemon.log(), "No space left|disk_small")
        layout = terrace.Layout.opaque("another", "test/bytes/1", 512 << 10, block_tokens=32)
        with terrace.connect(daemon.address) as client, client.session([layout], tenant=None) as session:
            held, number = [], 0

            def taken():
                """Whether no block more could be reserved; what is held stays reserved."""
                nonlocal number
                number += 1
                slots = session.reserve([b"%016d" % number], timeout=60)
                held.append(slots)
                return slots.statuses == [terrace.Status.EXHAUSTED]
            wait_for(taken, 60, "all memory is reserved")
            say("%d of 64 blocks' memory is another engine's: the same texts, longest request %.2f s" % (number - 1, longest()))
            self.assertEqual(len(engine.logged().split("Terrace does not answer")), 1)
            for slots in held:
                slots.close()


def record(path):
    """Makes vllm_calls.jsonl: two requests with a common beginning, each twice, with vLLM's own cache emptied before."""
    daemon = Daemon(TERRACED, *FLAGS)
    engine = Process(daemon)
    engine.ask("start", "terrace", {"model": MODEL, "terrace": {"terrace.load": "always"}, "record": path})
    for _ in range(2):
        for n in (0, 1):
            engine.ask("generate", "terrace", [TOKENS[:3 * BLOCK] + TOKENS[1000 * n:1000 * n + 50]], {"max_tokens": 2})
            engine.ask("generate", "terrace", [[1]], {"max_tokens": 4})  # steps in which the stores are told of
            engine.ask("reset", "terrace")
    engine.kill()
    daemon.close()


if __name__ == "__main__":
    if sys.argv[5:6] == ["--record"]:
        sys.exit(record(sys.argv[6]))
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[5:]])
