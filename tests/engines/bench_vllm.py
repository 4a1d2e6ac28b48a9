#!/usr/bin/python3
"""What Terrace costs vLLM, and what it spares: `bench_vllm.py TERRACED LIBTERRACE PYTHON MODEL BENCH [ROUNDS]`, with
the Python that has vLLM. `BENCH="throughput 21" sh tests/engines/run.sh vllm-VERSION` runs it. Prints lines for
tests/bench/results. Engines run as vLLM starts them by default, scheduler and worker in a process of their own.

    throughput   nothing hits: tokens a second of vLLM with Terrace, of vLLM alone. ROUNDS pairs of engines, as two
                 engines of one kind differ by a tenth, for as long as they live. One of a pair works, in turns, each
                 first in every second one. Each turn has another cache salt, and begins when the stores of the one
                 before have ended. `throughput ROUNDS TURNS smollm2`: a model of SmolLM2-135M's shape, whose weights are
                 vLLM's dummies
    first_token  one request after the other, nothing in vLLM's own cache: milliseconds to the first token of vLLM
                 alone, with Terrace (blocks in memory, and with memory for four prompts), with vLLM's own tier of
                 files behind 80 MiB of memory (vLLM 0.32.0 refuses it on a CPU), and, if $LMCACHE_PYTHON names a
                 Python with vLLM and LMCache, with LMCache's files; first by the engine that stored, then by another.
                 Files are in the kernel's memory, which Terrace's disk goes around

An interval is of the median: its ends are order statistics, with it between them in 95 % of cases."""

import atexit
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import test_vllm as engines  # noqa: E402  (it reads the first four arguments)
from daemon import Daemon  # noqa: E402

# {name: (requests at once, tokens of a prompt, tokens computed one by one)}
MIXES = {"prefill": (6, 1024, 1), "decode": (16, 32, 192)}

# SmolLM2-135M's shape (its config.json on Hugging Face); what it computes takes as long whatever the weights are
SMOLLM2 = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
           "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
           "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000, "tie_word_embeddings": True,
           "hidden_act": "silu", "attention_bias": False, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"}
SHAPES = {"smollm2": SMOLLM2}


def interval(values):
    """(median, low, high)"""
    ordered, n = sorted(values), len(values)
    below, share = -1, 0.0
    while share + math.comb(n, below + 1) / 2 ** n <= .025:
        below += 1
        share += math.comb(n, below) / 2 ** n
    return statistics.median(ordered), ordered[max(below, 0)], ordered[n - 1 - max(below, 0)]


def show(**row):
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
    print(json.dumps(rounded), flush=True)


def heading(*command):
    commit = subprocess.run(["git", "-C", engines.ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    show(machine="%s, %d cores" % (model, os.cpu_count()), command=" ".join(command), commit=commit)


def prefer(pid):
    """Gives a process's session the bench's own niceness. Linux shares processors out among sessions first, where it
    groups them (kernel.sched_autogroup_enabled): `nice` alone prefers nothing to the processes of another session."""
    try:
        with open("/proc/%d/autogroup" % pid, "w", encoding="ascii") as file:
            file.write(str(os.nice(0)))
    except OSError:
        pass


def processor_s(session):
    """Processor time of the processes of a session that are alive."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class Sides:
    """Engines beside each other, by name."""

    def __init__(self, daemon):
        self.daemon, self.processes = daemon, {}
        atexit.register(daemon.close)

    def start(self, name, daemon=None, python=engines.PYTHON, **options):
        process = engines.Process(daemon or self.daemon, one_process=False, log=name, python=python)
        self.processes[name] = process
        atexit.register(process.kill)  # a bench that fails leaves none
        prefer(process.process.pid)
        process.ask("start", name, {"model": engines.MODEL, **options})

    def ask(self, name, command, *arguments):
        return self.processes[name].ask(command, name, *arguments)

    def commits(self):
        return sum(value for name, value in self.daemon.stats().items() if name.startswith("terrace_commits_total"))

    def settle(self):
        """Waits until no blocks are stored any more: seconds until the last one was."""
        began = last = time.monotonic()
        before = self.commits()
        while time.monotonic() - last < .2:
            time.sleep(.05)
            now = self.commits()
            if now != before:
                before, last = now, time.monotonic()
        return last - began

    def end(self):
        for process in self.processes.values():
            process.kill()


def turn_of(sides, name, prompts, options):
    """(seconds, processor seconds, texts, blocks stored, seconds until the last of them)"""
    sides.ask(name, "generate", [[1]], {"max_tokens": 8})  # what lay idle is in memory again
    session, commits = sides.processes[name].process.pid, sides.commits()
    began = processor_s(session)
    answer = sides.ask(name, "generate", prompts, {"at_once": True, **options})
    rest = sides.settle()
    assert not any(answer["cached"]), "something hit"
    return answer["seconds"][0], processor_s(session) - began, answer["tokens"], sides.commits() - commits, rest


def shape_of(model):
    """Options of an engine over a model's shape alone."""
    if model == "tinylm":
        return {}
    if model not in SHAPES:
        sys.exit("throughput: there is no model %s: tinylm, or one of %s" % (model, ", ".join(SHAPES)))
    folder = os.path.join(engines.Shows.folder, model)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as out:
        json.dump(SHAPES[model], out)
    return {"model": folder, "more": {"load_format": "dummy", "skip_tokenizer_init": True}}


def throughput(rounds=9, turns=4, model="tinylm"):
    rounds, turns, shape = int(rounds), int(turns), shape_of(model)
    disk = os.path.join(engines.Shows.folder, "disk") + ":4GiB"
    daemon = Daemon(engines.TERRACED, "--host-bytes", "1GiB", "--disks", disk)
    took = {mix: {"plain": [], "terrace": []} for mix in MIXES}
    ratios = {mix: [] for mix in MIXES}
    for n in range(rounds):
        sides = Sides(daemon)
        sides.start("plain", **shape)
        sides.start("terrace", terrace={}, **shape)
        for mix, (count, length, out) in MIXES.items():
            ours = []
            for turn in range(turns + 1):  # the first warms up
                prompts = [engines.TOKENS[at:at + length] for at in range(turn, 1000 * count, 1000)]
                options = {"max_tokens": out, "salt": "%s %d %d" % (mix, n, turn)}
                order = ("plain", "terrace") if (n + turn) % 2 else ("terrace", "plain")
                got = {name: turn_of(sides, name, prompts, options) for name in order}
                assert got["plain"][2] == got["terrace"][2], "texts differ"
                if turn:
                    ours.append(got["plain"][0] / got["terrace"][0])
                    for name, one in got.items():
                        took[mix][name].append(one)
            ratios[mix].append(ours)
            turned = " ".join("%.3f" % ratio for ratio in ours)
            print("%s %d: %.3f of %s" % (mix, n, statistics.median(ours), turned), file=sys.stderr, flush=True)
        sides.end()
    for mix, (count, length, out) in MIXES.items():
        def median(name, what):
            return interval([one[what] for one in took[mix][name]])[0]
        ratio, low, high = interval([one for pair in ratios[mix] for one in pair])
        tokens = count * (length if mix == "prefill" else out)
        show(bench="throughput", model=model, mix=mix, requests=count, prompt_tokens=length, out_tokens=out,
             unit="tokens/s", value=tokens / median("terrace", 0), baseline=tokens / median("plain", 0),
             ratio=ratio, low=low, high=high, pairs=rounds, turns=turns, least=.97, processor_s=median("terrace", 1),
             baseline_processor_s=median("plain", 1), stored_blocks=int(median("terrace", 3)),
             of_blocks=count * (length // engines.BLOCK), stores_end_s=median("terrace", 4))
    daemon.close()


def file_tier(folder):
    """vLLM's own: a CPU pool that has room for four prompts, and files behind it."""
    tier = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 80 << 20,
            "secondary_tiers": [{"type": "fs", "root_dir": os.path.join(folder, "files")}]}
    return {"connector": {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": tier}}


def lmcache(folder):
    """LMCache's server with files behind 128 MiB of memory. Its connector without a server does not work on a CPU ("No
    supported cpu connector found")."""
    python, files = os.environ["LMCACHE_PYTHON"], os.path.join(folder, "lmcache")
    os.makedirs(files)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(os.path.join(engines.LOGS, "lmcache.log"), "ab") as out:
        server = subprocess.Popen([python, "-m", "lmcache.v1.multiprocess.server", "--port", str(port),
                                   "--l1-size-gb", "0.125", "--eviction-policy", "LRU", "--disable-observability",
                                   "--supported-transfer-mode", "engine_driven",
                                   "--l2-adapter", json.dumps({"type": "fs", "base_path": files})],
                                  stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    prefer(server.pid)
    atexit.register(server.kill)
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port, "lmcache.mp.mq_timeout": 60}
    return {"python": python, "env": {"PYTHONHASHSEED": "0"},
            "connector": {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}}


def first_token(prompts=16):
    """Each side's engine stores; is asked again; is killed, and another asked."""
    prompts, folder = [engines.requests(1, system=n)[0] for n in range(int(prompts))], engines.Shows.folder
    disk = [os.path.join(folder, name) + ":1GiB" for name in ("disk", "disk 2")]
    roomy = Daemon(engines.TERRACED, "--host-bytes", "1GiB", "--disks", disk[0])
    tight = Daemon(engines.TERRACED, "--host-bytes", "80MiB", "--extent-bytes", "16MiB", "--disks", disk[1])
    atexit.register(tight.close)
    how = {"vLLM alone": {}, "Terrace, memory": {"terrace": {}}, "Terrace, disk": {"terrace": {}, "daemon": tight},
           "vLLM's file tier": file_tier(folder)}
    how = {name: one for name, one in how.items() if name in os.environ.get("SIDES", name).split("/")}
    if "LMCACHE_PYTHON" in os.environ:
        how["LMCache's local disk"] = lmcache(folder)
    texts, options = None, {"max_tokens": 1}
    for restarted in (False, True):
        sides, took, came = Sides(roomy), {name: [] for name in how}, {name: [] for name in how}
        for name, one in list(how.items()):
            try:
                sides.start(name, **one)
            except AssertionError as e:
                show(bench="first_token", side=name, failed=str(e)[-600:])
                del how[name]
        for name in how:
            if not restarted:
                sides.ask(name, "generate", prompts, options)
                time.sleep(5)  # stores of others than Terrace
            for _ in range(2):
                sides.ask(name, "generate", [[1] * 40], {"max_tokens": 40})
        for n, prompt in enumerate(prompts):
            order = list(how)
            for name in order[n % len(order):] + order[:n % len(order)]:
                sides.ask(name, "generate", [[1]], {"max_tokens": 4})
                sides.ask(name, "reset")
                before = engines.external(sides.processes[name], name)[1] if how[name] else 0
                answer = sides.ask(name, "generate", [prompt], options)
                took[name].append(answer["seconds"][0])
                came[name].append(engines.external(sides.processes[name], name)[1] - before if how[name] else 0)
                time.sleep(.1)
        for name in how:
            median, low, high = interval([1e3 * s for s in took[name]])
            of_alone = interval([a / b for a, b in zip(took[name], took["vLLM alone"])])[0]
            possible = sum((len(p) - 1) // engines.BLOCK * engines.BLOCK for p in prompts)
            show(bench="first_token", side=name, restarted=restarted, prompt_tokens=len(prompts[0]), prompts=len(prompts),
                 unit="ms", value=median, low=low, high=high, of_alone=of_alone, tokens_that_came=int(sum(came[name])),
                 of_tokens=possible)
        sides.end()
    roomy.close()
    tight.close()


def main():
    name, *arguments = sys.argv[5:]
    heading("bench_vllm.py", name, *arguments)
    prefer(os.getpid())
    engines.Shows.folder = engines.tempfile.mkdtemp(prefix="terrace-engines-")
    try:
        {"throughput": throughput, "first_token": first_token}[name](*arguments)
    finally:
        engines.shutil.rmtree(engines.Shows.folder, True)


if __name__ == "__main__":
    main()
