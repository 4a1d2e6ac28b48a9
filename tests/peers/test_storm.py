#!/usr/bin/python3
"""Storms over a cluster: daemons, etcd and engines are killed, stopped and cut off at random while engines store chains and lease those of
others. No byte is ever wrong, no call ends long after its deadline, and after the healing all is as before: nothing is pinned, and what one
node has another leases.

    test_storm.py TERRACED TERRACECTL LIBTERRACE [TEST]...

TERRACE_LONG=1: five nodes and 200 kills; TERRACE_KILLS: so many; TERRACE_SEED: of the faults. It prints what it counted.
"""

import concurrent.futures
import datetime
import glob
import heapq
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import test_fetch  # takes the programs from the arguments
from cluster import CALL_S, NET, ROOT, TTL_S, Cluster, enter_network, refused_namespaces, wait_for
from test_fetch import CHAIN, Reader, ctl, keys, terraced

# Daemons take them for options that they do not know.
LONG = os.environ.pop("TERRACE_LONG", "") == "1"
KILLS = int(os.environ.pop("TERRACE_KILLS", "200" if LONG else "20"))
SEED = int(os.environ.pop("TERRACE_SEED", "30"))
NODES = 5 if LONG else 4
LATE_S, MARGIN_S = 1, 5  # past its deadline a call is counted; the test fails
LINE = 40                # bytes that a call is noted with, about
WALL_CLOCK = os.path.abspath(os.path.join(os.path.dirname(os.environ["LIBTERRACE"]), "..", "tests", "libwall_clock.so"))
ENGINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "storm_engine.py")


class Engines:
    """Two processes a node; see storm_engine.py."""

    def __init__(self, cluster, chance):
        self.cluster, self.chance, self.processes = cluster, chance, []
        for node in cluster.nodes:
            self.processes += [[node, self.begin(node)] for _ in range(2)]

    def begin(self, node):
        log = os.path.join(self.cluster.folder, "engine.%d" % self.chance.getrandbits(32))
        env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python")}
        with open(log + ".error", "wb") as said:
            return subprocess.Popen([sys.executable, ENGINE, node.address, str(self.chance.getrandbits(32)), log], env=env,
                                    stdout=subprocess.DEVNULL, stderr=said)

    def wait_calls(self, count):
        """Until so many more calls have ended."""
        def ended():
            return sum(os.path.getsize(path) for path in glob.glob(os.path.join(self.cluster.folder, "engine.*"))) // LINE
        before = ended()
        wait_for(lambda: ended() >= before + count, CALL_S, "%d calls" % count)

    def kill_one(self):
        pair = self.chance.choice(self.processes)
        self.end(pair[1])
        pair[1] = self.begin(pair[0])

    @staticmethod
    def end(process):
        assert process.poll() is None, "an engine has ended by itself: %s" % process.args
        process.kill()
        process.wait()

    def close(self):
        """Ends all, and returns what their calls were: [kind, how, blocks, wrong, seconds past the deadline]."""
        for _, process in self.processes:
            self.end(process)
        self.processes = []
        calls = []
        for path in glob.glob(os.path.join(self.cluster.folder, "engine.*")):
            with open(path, encoding="ascii") as f:
                text = f.read()
            os.unlink(path)
            if path.endswith(".error"):
                assert not text, text
            else:
                calls += [json.loads(line) for line in text.splitlines()]
        return calls


class Faults:
    """What is wrong with the cluster now, and how each of it ends."""

    def __init__(self, cluster, engines, chance):
        self.cluster, self.engines, self.chance = cluster, engines, chance
        self.kills, self.counts, self.ends, self.number = 0, {}, [], 0
        self.down, self.cut, self.etcd_down = set(), set(), False
        self.kinds = [self.engine_killed, self.daemon_killed, self.etcd_killed, self.daemon_stopped, self.cut_one_way, self.cut_both_ways,
                      self.cut_from_etcd]
        self.first = chance.sample(self.kinds, len(self.kinds))  # each once, before chance

    def later(self, seconds, end):
        self.number += 1
        heapq.heappush(self.ends, (time.monotonic() + self.chance.uniform(0, seconds), self.number, end))

    def node(self):
        """One that is not down; None: there is none."""
        up = [n for n in self.cluster.nodes if n not in self.down]
        return self.chance.choice(up) if up else None

    def daemon_killed(self):
        node = self.node()
        if node:
            assert node.process.poll() is None, "it has ended by itself:\n" + node.log()[-4000:]
            self.kills += 1
            self.down.add(node)
            node.kill()
            self.later(3, lambda: (node.start(), self.down.discard(node)))
        return node

    def daemon_stopped(self):
        node = self.node()
        if node:
            self.down.add(node)
            os.kill(node.process.pid, signal.SIGSTOP)
            self.later(1.5 * TTL_S, lambda: (os.kill(node.process.pid, signal.SIGCONT), self.down.discard(node)))
        return node

    def etcd_killed(self):
        if self.etcd_down:
            return False
        self.kills += 1
        self.etcd_down = True
        self.cluster.etcd_kill()
        self.later(3, self.etcd_back)
        return True

    def etcd_back(self):
        self.cluster.etcd_start()
        self.etcd_down = False

    def engine_killed(self):
        self.kills += 1
        self.engines.kill_one()
        return True

    def deaf(self, node, host):
        if (node, host) not in self.cut:
            self.cut.add((node, host))
            node.deaf_to_host(host)

    def heard(self, *pairs):
        for node, host in pairs:
            node.deaf_to_host(host, False)
            self.cut.discard((node, host))

    def cut_one_way(self):
        a, b = self.chance.sample(self.cluster.nodes, 2)
        self.deaf(a, b.host)
        self.later(8, lambda: self.heard((a, b.host)))
        return True

    def cut_both_ways(self):
        a, b = self.chance.sample(self.cluster.nodes, 2)
        self.deaf(a, b.host)
        self.deaf(b, a.host)
        self.later(8, lambda: self.heard((a, b.host), (b, a.host)))
        return True

    def cut_from_etcd(self):
        a, hub = self.chance.choice(self.cluster.nodes), NET + ".1"
        self.deaf(a, hub)
        self.later(8, lambda: self.heard((a, hub)))
        return True

    def step(self):
        kind = self.first.pop() if self.first else self.chance.choices(self.kinds, [6, 6, 2, 2, 2, 2, 1])[0]
        if kind():
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
        self.end(time.monotonic())

    def end(self, until):
        while self.ends and self.ends[0][0] <= until:
            heapq.heappop(self.ends)[2]()


class Cases(unittest.TestCase):
    """A cluster, and what is looked at after each fault."""
    nodes_wanted, host_mib, base = NODES, 64, 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(terraced, ctl, cls.nodes_wanted, host_mib=cls.host_mib)
        cls.addClassCleanup(cls.cluster.close)
        cls.nodes = cls.cluster.nodes

    def chain(self):
        """The first key of a new chain."""
        Cases.base += 100000
        return Cases.base

    store_told, holders = test_fetch.Fetch.store_told, test_fetch.Fetch.holders

    def store_for_pairs(self, nodes, chains):
        """On each of the nodes a chain for each other one."""
        for a in nodes:
            reader = Reader(a)
            for b in self.nodes:
                if b is not a:
                    chains[a, b] = self.chain()
                    reader.store(chains[a, b], CHAIN)

    def wait_hits(self, chains, since):
        """Until each of the chains is leased whole where it is wanted. Returns the seconds since then: ten on a free machine."""
        def leased(item):
            (_, b), first = item
            reader = Reader(b)
            wait_for(lambda: reader.bring(first, CHAIN, timeout=2) == CHAIN, CALL_S, "leased on %s: %d" % (b.name, first))
            took = time.monotonic() - since
            return took, reader.right(first, CHAIN)
        with concurrent.futures.ThreadPoolExecutor(len(chains)) as pool:
            results = list(pool.map(leased, chains.items()))
        self.assertEqual({right for _, right in results}, {True})
        return max(took for took, _ in results)

    def wait_nothing_left(self):
        """Until no node has a pin, a lease or a loan."""
        wanted = ("terrace_leases", "terrace_reservations", "terrace_pinned_bytes{tier=host}", "terrace_quota_held{thing=loaned_bytes}")
        for n in self.nodes:
            wait_for(lambda n=n: not any(n.stats()[name] for name in wanted), CALL_S, "nothing left on " + n.name)

    def check_calls(self, calls):
        """What the engines of a storm saw; returns a line of figures."""
        kinds, late = {}, [c for c in calls if c[4] > LATE_S]
        for kind, how, blocks, wrong, _ in calls:
            of = kinds.setdefault(kind, {})
            of[how] = of.get(how, 0) + 1
            self.assertEqual(wrong, 0, (kind, blocks))
        compared = sum(c[2] for c in calls)
        longest = max((c[4] for c in calls), default=0)
        self.assertGreater(compared, 0)
        self.assertLess(longest, MARGIN_S, late)
        print("\ncalls: %s" % json.dumps(kinds))
        return "%d calls, %d blocks compared, 0 wrong, %d calls more than %g s past their deadline, the longest %.1f s" % (
            sum(not c[0].endswith("compared") for c in calls), compared, len(late), LATE_S, longest)


class Storm(Cases):
    def test_kills(self):
        chance = random.Random(SEED)
        engines = Engines(self.cluster, chance)
        self.addCleanup(engines.close)
        faults = Faults(self.cluster, engines, chance)
        self.addCleanup(faults.end, float("inf"))
        began = time.monotonic()
        while faults.kills < KILLS:
            faults.step()
            time.sleep(chance.uniform(0, 1.5 if LONG else 1))
        chains = {}
        self.store_for_pairs([n for n in self.nodes if n not in faults.down], chains)
        restarted = list(faults.down)
        faults.end(float("inf"))
        healed = time.monotonic()
        self.store_for_pairs(restarted, chains)
        fetched = sum(n.stats()["terrace_peer_fetched_blocks_total"] for n in self.nodes)
        said = self.check_calls(engines.close())
        took = self.wait_hits(chains, healed)
        self.cluster.wait_members()
        self.wait_nothing_left()
        print("seed %d: %d kills in %d s (%s), %d blocks fetched by the daemons that were left\n%s\nhits back %.1f s after the healing" % (
            SEED, faults.kills, healed - began, json.dumps(faults.counts), fetched, said, took))

    def test_cut(self):
        """No member hears another for a while."""
        chains = {}
        self.store_for_pairs(self.nodes, chains)
        pairs = [(a, b) for a in self.nodes for b in self.nodes if a is not b]
        engines = Engines(self.cluster, random.Random(SEED))
        self.addCleanup(engines.close)
        for a, b in pairs:
            self.addCleanup(a.deaf_to, b, False)
            a.deaf_to(b)
        time.sleep(30 if LONG else 3)
        engines.wait_calls(100)
        for a, b in pairs:
            a.deaf_to(b, False)
        healed = time.monotonic()
        said = self.check_calls(engines.close())
        took = self.wait_hits(chains, healed)
        self.wait_nothing_left()
        print("all cut off: %s\nhits back after %.1f s" % (said, took))

    @unittest.skipUnless(shutil.which("nft"), "nft is not installed (Debian's nftables)")
    def test_loss(self):
        """Three of ten packets between members are lost."""
        chains = {}
        self.store_for_pairs(self.nodes, chains)
        try:
            self.nodes[0].loses(3)
        except AssertionError as e:
            self.skipTest("the kernel drops no packets by chance (nft, numgen): %s" % e)
        for n in self.nodes:
            self.addCleanup(n.loses, 0)
            n.loses(3)
        before = sum(n.stats()["terrace_peer_fetched_blocks_total"] for n in self.nodes)
        engines = Engines(self.cluster, random.Random(SEED))
        self.addCleanup(engines.close)
        time.sleep(60 if LONG else 3)
        engines.wait_calls(100)
        came = sum(n.stats()["terrace_peer_fetched_blocks_total"] for n in self.nodes) - before
        for n in self.nodes:
            n.loses(0)
        healed = time.monotonic()
        said = self.check_calls(engines.close())
        took = self.wait_hits(chains, healed)
        self.wait_nothing_left()
        print("30 %% lost: %s; %d blocks came from other members\nhits back after %.1f s" % (said, came, took))


class Network(Cases):
    """What a network of five makes of one chain."""
    nodes_wanted, host_mib = 5, 128

    def finds(self):
        return sum(v for n in self.nodes for name, v in n.stats().items() if name.startswith("terrace_rpc_calls_total{method=Find,"))

    def failures(self):
        return sum(v for n in self.nodes for name, v in n.stats().items()
                   if name.startswith("terrace_peers_calls_total{") and not name.endswith("status=OK}"))

    def test_a_chain_comes_from_four(self):
        engines = [Reader(n) for n in self.nodes]
        first = self.chain()
        for engine, (begins, ends) in zip(engines, ((0, 64), (64, 128), (128, 256), (256, 320))):
            self.store_told(engine, first + begins, ends - begins, position=begins)
        self.assertEqual(engines[4].bring(first, 320), 320)
        self.assertIs(engines[4].right(first, 320), True)

    def test_a_long_chain_asks_eleven_owners(self):
        layout = {"model": "long", "name": "test/1", "block_bytes": 64, "block_tokens": 16}
        holder, reader = (Reader(n, layout) for n in self.nodes[:2])
        first = self.chain()
        self.store_told(holder, first, 4096)
        time.sleep(2)  # what `store_told` has asked is forgotten
        before, failed = self.finds(), self.failures()
        wait_for(lambda: reader.bring(first, 4096) == 4096, CALL_S, "all of it")  # in several calls
        self.assertLessEqual(self.finds() - before, 11 + self.failures() - failed)
        self.assertIs(reader.right(first, 4096), True)

    def test_a_reader_that_is_gone_leaves_no_pins(self):
        """Stopped, or cut off, in the midst of what it fetches: the holder does not wait for it."""
        layout = {"model": "large", "name": "test/1", "block_bytes": 1 << 18, "block_tokens": 16}
        holder, other = self.nodes[:2]
        held, reader = Reader(holder, layout), Reader(other, layout)
        self.addCleanup(holder.throttled, 0)
        ways = ((lambda: os.kill(other.process.pid, signal.SIGSTOP), lambda: os.kill(other.process.pid, signal.SIGCONT)),
                (lambda: holder.deaf_to(other), lambda: holder.deaf_to(other, False)))
        for gone, back in ways if LONG else ways[1:]:
            first = self.chain()
            self.store_told(held, first, 48)
            holder.throttled(16000)
            before = other.stats()["terrace_peer_fetched_blocks_total"]
            reader.session.warm(keys(first, 48))
            wait_for(lambda: other.stats()["terrace_peer_fetched_blocks_total"] > before, CALL_S, "some of it")
            self.assertGreater(holder.stats()["terrace_pinned_bytes{tier=host}"], 0)
            gone()
            began = time.monotonic()
            try:
                wait_for(lambda: not holder.stats()["terrace_pinned_bytes{tier=host}"], CALL_S, "no pins")
                print("\nno pins after %.1f s" % (time.monotonic() - began))
            finally:
                back()
                holder.throttled(0)
            self.cluster.wait_members()
            wait_for(lambda: reader.bring(first, 48) == 48, CALL_S, "all of it")
            self.assertIs(reader.right(first, 48), True)

    def test_computing_is_preferred_to_a_slow_link(self):
        slow, other = self.nodes[:2]
        holder, reader, computes = Reader(slow), Reader(other), Reader(other)
        computes.another(tokens_per_second=4000)
        chains = [self.chain() for _ in range(6)]
        for first in chains:
            self.store_told(holder, first, CHAIN)
        try:
            slow.throttled(4000)
        except AssertionError as e:
            self.skipTest("the kernel slows no link (tc, tbf): %s" % e)
        self.addCleanup(slow.throttled, 0)

        def computed():
            """What is fetched tells how slow the link is; and then nothing is, and the answer is quick."""
            self.assertEqual(reader.bring(chains.pop(), CHAIN), CHAIN)
            first, before = chains.pop(), other.stats()["terrace_peer_fetched_bytes_total"]
            return not computes.bring(first, CHAIN) and other.stats()["terrace_peer_fetched_bytes_total"] == before
        self.assertTrue(any(computed() for _ in range(len(chains) // 2)))


class Clocks(test_fetch.Fetch):
    """Blocks come from other members whose wall clocks are an hour ahead, or behind."""
    envs = [{}, *({"LD_PRELOAD": WALL_CLOCK, "WALL_CLOCK_S": seconds} for seconds in ("3600", "-3600"))]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        first = [datetime.datetime.fromisoformat(re.search(r"time=(\S+)", n.log()).group(1)) for n in cls.nodes]
        assert min(first[1] - first[0], first[0] - first[2]) > datetime.timedelta(minutes=50), first

    def test_loans_end(self):
        for a, b in self.engines[1:], self.engines[2:0:-1]:
            first = self.first + (a.node is self.nodes[2]) * 1000
            self.store_told(a, first, CHAIN)
            self.assertEqual(b.asked(first, CHAIN), (0, True))  # asks for a loan, and does not fetch

            def loaned(node=a.node):
                return node.stats()["terrace_quota_held{thing=loaned_bytes}"]
            wait_for(loaned, CALL_S, "a loan")
            wait_for(lambda: not loaned(), CALL_S, "the loan's end")


if __name__ == "__main__":
    why = refused_namespaces()
    if why:
        print("not run: " + why)
        sys.exit(77)
    enter_network()
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
