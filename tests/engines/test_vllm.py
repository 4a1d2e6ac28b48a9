#!/usr/bin/python3
"""vLLM on a CPU, served by Terrace: `test_vllm.py TERRACED LIBTERRACE PYTHON MODEL [TEST]`, with the Python that has vLLM. See run.sh.
With `--record FILE` in the place of TEST it makes vllm_calls.jsonl anew, which test_contract.py replays.

An engine needs a minute to start, most of it to import. vLLM has one KV connector a process, also for engines that have none, so each engine with
Terrace has a process of its own, and those without share one. Prompts are held-out tokens of the model's; texts are compared as tokens, greedy.
"""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TERRACED, LIBRARY, PYTHON, MODEL = sys.argv[1:5]
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
sys.dont_write_bytecode = True
from daemon import Daemon, wait_for  # noqa: E402

START_S = 900  # ends a start that hangs, and proves nothing: a machine may be slow
BLOCK = 32
SYSTEM = 1024  # tokens of the prompt that requests share
FLAGS = ("--host-bytes", "256MiB")
with open(os.path.join(MODEL, "val_tokens.u16"), "rb") as _file:
    _bytes = _file.read()
TOKENS = list(struct.unpack("<%dH" % (len(_bytes) // 2), _bytes))


def requests(count, system=0, length=40):
    """Prompts with a common beginning, `system`."""
    begin = 2048 * system
    return [TOKENS[begin:begin + SYSTEM] + TOKENS[begin + SYSTEM + length * n:begin + SYSTEM + length * (n + 1)] for n in range(count)]


def say(text):
    print("    " + text, flush=True)


class Process:
    """A process with engines."""

    def __init__(self, daemon, one_process=True, log="engine"):
        self.log = os.path.join(LOGS, log + ".log")
        env = {**os.environ, "LIBTERRACE": LIBRARY, "PYTHONPATH": os.path.join(ROOT, "client", "python"), "TERRACE_ADDRESS": daemon.address,
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if one_process else "1", "PYTHONDONTWRITEBYTECODE": ""}
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen([PYTHON, os.path.join(HERE, "vllm_engine.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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
        cls.alone = Process(cls.daemon, log="alone")
        cls.addClassCleanup(cls.alone.kill)
        cls.engine = Process(cls.daemon)
        cls.addClassCleanup(cls.engine.kill)
        cls.alone.send("start", "plain", {"model": MODEL})
        cls.engine.ask("start", "terrace", {"model": MODEL, "terrace": {"terrace.load": "always"}})
        cls.alone.receive()
        cls.texts = cls.plain(requests(20))

    @classmethod
    def plain(cls, prompts, **options):
        """The texts of vLLM without Terrace."""
        return cls.alone.ask("generate", "plain", prompts, options)["tokens"]

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

    def settled(self):
        """Waits until what the engine has stored is there."""
        wait_for(lambda: self.hits(self.engine, 1) > 0, 60, "the engine's blocks are stored")

    maxDiff = 4000

    def test_1_restarted_and_beside(self):
        self.assertEqual(self.engine.ask("generate", "terrace", requests(20), {})["tokens"], self.texts)
        self.settled()
        beside = Process(self.daemon, one_process=False, log="beside")
        self.addCleanup(beside.kill)
        beside.ask("start", "terrace", {"model": MODEL, "terrace": {"terrace.load": "always"}})
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
            for turn in range(7):
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
            say("%s-heavy, nothing to hit: throughput %.3f of vLLM's alone (median of 7, %.3f to %.3f)"
                % (kind, ratios[3], ratios[0], ratios[-1]))

    def test_3_daemon_killed_and_stopped(self):
        self.same(self.engine)
        self.settled()
        self.daemon.kill()
        say("the daemon killed: longest request %.2f s" % self.same(self.engine))
        self.daemon.start()
        wait_for(lambda: self.hits(self.engine, 2) > 0, 120, "the engine has found the new daemon and loads from it")
        before = self.engine.logged().count("Terrace answers again")
        self.assertGreater(before, 0)
        self.daemon.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        timer = threading.Timer(10, self.daemon.process.send_signal, [signal.SIGCONT])
        timer.start()
        longest = self.same(self.engine, 2)
        self.assertTrue(timer.is_alive(), "the requests were answered only once the daemon went on, after %g s" % (time.monotonic() - began))
        say("the daemon stopped: longest request %.2f s" % longest)
        timer.join()
        wait_for(lambda: self.hits(self.engine, 2) > 0, 120, "the engine has found the daemon again")

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
        self.alone.ask("start", "plain 2", {"model": other})
        theirs = self.alone.ask("generate", "plain 2", requests(4), {})["tokens"]
        self.alone.ask("stop", "plain 2")
        self.assertNotEqual(theirs, self.texts[:4])
        revision = Process(self.daemon, log="revision")
        self.addCleanup(revision.kill)
        revision.ask("start", "terrace", {"model": other, "terrace": {"terrace.load": "always"}})
        self.assertEqual(revision.ask("generate", "terrace", requests(4), {})["tokens"], theirs)
        self.assertEqual(external(revision)[1], 0)
        time.sleep(1)
        revision.ask("reset", "terrace")
        self.assertEqual(revision.ask("generate", "terrace", requests(4), {})["tokens"], theirs)
        self.assertGreater(external(revision)[1], 0)
        say("two revisions share nothing, and find their own: %d tokens" % external(revision)[1])
        self.same(self.engine)

    def over(self, daemon, log, **extra):
        """An engine in a process of its own, over a daemon of its own."""
        engine = Process(daemon, log=log)
        self.addCleanup(engine.kill)
        engine.ask("start", "terrace", {"model": MODEL, "terrace": extra})
        return engine

    def test_5_flipped_bits(self):
        disk = os.path.join(self.folder, "flipped")
        daemon = Daemon(TERRACED, *FLAGS, "--disks", disk + ":256MiB")
        self.addCleanup(daemon.close)
        engine = self.over(daemon, "flipped", **{"terrace.load": "always"})
        self.same(engine, 2)
        wait_for(lambda: self.hits(engine, 1) > 0, 60, "blocks are stored")
        daemon.stop()  # orderly: all of it is on the disk
        flipped = 0
        for folder, _, names in os.walk(disk):
            for name in names:
                path = os.path.join(folder, name)
                size = os.path.getsize(path)
                if size < 1 << 20:
                    continue
                with open(path, "r+b") as file:
                    for at in range(100000, size, 131072):
                        file.seek(at)
                        byte = file.read(1)
                        if byte not in (b"", b"\0"):
                            file.seek(at)
                            file.write(bytes([byte[0] ^ 4]))
                            flipped += 1
        self.assertGreater(flipped, 0)
        daemon.start()
        wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disk is taken up")
        self.same(engine, 4)
        bad = {n: v for n, v in daemon.stats().items() if re.search("corrupt|checksum|crc", n) and v}
        say("%d bits flipped on the disk, the same texts; the daemon counted %s" % (flipped, bad))

    def test_6_full(self):
        daemon = Daemon(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "4MiB", "--disks", os.path.join(self.folder, "small") + ":16MiB")
        self.addCleanup(daemon.close)
        engine = self.over(daemon, "full", **{"terrace.load": "always"})
        prompts = [prompt for system in range(6) for prompt in requests(2, system=system)]
        plain = self.plain(prompts)
        for _ in range(3):
            engine.ask("reset", "terrace")
            self.assertEqual(engine.ask("generate", "terrace", prompts, {})["tokens"], plain)
        say("memory and disk full: the same texts, %d of %d tokens from Terrace" % external(engine)[::-1])

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
        for prompt in prompts:
            for name, process in (("plain", self.alone), ("terrace", engine)):
                process.ask("reset", name)
                seconds[name] += process.ask("generate", name, [prompt], {"max_tokens": 1})["seconds"]
        wanted, came = external(engine)
        say("a disk of 5 MB/s: first token after %.0f ms, computing alone %.0f ms (sums of %d); %d tokens of %d were loaded"
            % (1e3 * sum(seconds["terrace"]), 1e3 * sum(seconds["plain"]), len(prompts), came, wanted))
        with_blocks.process.kill()


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
        LOGS = tempfile.mkdtemp(prefix="terrace-engines-logs-")
        sys.exit(record(sys.argv[6]))
    LOGS = os.environ.get("LOGS") or tempfile.mkdtemp(prefix="terrace-engines-logs-")
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[5:]])
