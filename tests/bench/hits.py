#!/usr/bin/python3
"""Hit rates of builds through their own daemons and libraries: a public trace by one model, and by eight models of eight block sizes.

    hits.py TRACE_CLIENT BUILD [BUILD...] [--speed N] [--requests N] [--runs N]

A BUILD holds daemon/terraced and client/libterrace.so; TRACE_CLIENT is tests/e2e/trace_engine.c over the shared library. The builds take turns, and each
row is the mean of --runs runs with the extremes beside it: one JSON object a line, the first build's rows being the baseline of the others'.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from daemon import ROOT, running  # noqa: E402

TRACE = os.path.join(ROOT, "tests", "data", "traces", "mooncake_conversation.jsonl.xz")
SESSIONS = 4
LEAD_MS = 20
PAGE = 4096
POLICIES = ("lru", "graph")


def slot_bytes(models):
    """Of the models' blocks, in the mean: a header's page, and one to so many."""
    return PAGE + PAGE * (models + 1) // 2


def run(build, policy, blocks, models, speed, requests):
    """One run, with memory for so many blocks and four times as much disk: both hit rates."""
    host = (blocks * slot_bytes(models) + 2**20 - 1) // 2**20 * 2**20
    folder = tempfile.mkdtemp(prefix="terrace-hits-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        with running(os.path.join(build, "daemon", "terraced"), "--host-bytes", str(host), "--extent-bytes", str(2**20), "--policy", policy,
                     "--disks", "%s:%d" % (folder, 4 * host), "--disk-policy", policy, "--slab-bytes", str(host // 16), "--disk-slow", "60s",
                     "--prefetch-bytes", "64MiB", "--log-level", "warn") as daemon:
            done = subprocess.run([CLIENT, "run", daemon.address, TRACE, str(speed), "0", str(requests), str(SESSIONS), str(LEAD_MS * 1000),
                                   str(models)], stdout=subprocess.PIPE, timeout=7200, check=True,
                                  env={**os.environ, "LD_LIBRARY_PATH": os.path.join(build, "client")})
            stats = daemon.stats()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    out = json.loads(done.stdout)
    out["shed"] = stats["terrace_evictions_total{tier=host,reason=shed}"]
    return out


def row(build, policy, blocks, models, runs):
    def of(name):
        values = [r[name] for r in runs]
        return {"mean": round(sum(values) / len(values), 3), "least": min(values), "most": max(values)}

    return {"bench": "hits", "build": build, "policy": policy, "models": models, "host_blocks": blocks, "runs": len(runs), "requests": runs[0]["requests"],
            "hit": of("hit"), "host_hit": of("host_hit"), "stored": of("stored"), "shed": of("shed"), "late_s": of("late_s")}


def main():
    global CLIENT
    p = argparse.ArgumentParser()
    p.add_argument("client")
    p.add_argument("builds", nargs="+")
    p.add_argument("--speed", type=float, default=20)
    p.add_argument("--requests", type=int, default=1200)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--blocks", type=int, default=2048)
    p.add_argument("--models", type=int, nargs="*", default=[1, 8])
    o = p.parse_args()
    CLIENT = o.client
    for models in o.models:
        for policy in POLICIES:
            runs = {build: [] for build in o.builds}
            for i in range(o.runs):
                for build in o.builds[i % len(o.builds):] + o.builds[:i % len(o.builds)]:
                    runs[build].append(run(build, policy, o.blocks, models, o.speed, o.requests))
            rows = [row(build, policy, o.blocks, models, runs[build]) for build in o.builds]
            for r in rows:
                if r is not rows[0]:
                    r["points"] = {hit: round(r[hit]["mean"] - rows[0][hit]["mean"], 3) for hit in ("hit", "host_hit")}
                print(json.dumps(r), flush=True)


if __name__ == "__main__":
    main()
