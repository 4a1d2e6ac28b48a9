"""Engines on other machines, as far as a network tells: network namespaces, one of the daemon and two of engines, with veth pairs
between them and certificates of a throw-away CA. usage: test_network.py TERRACED LIBTERRACE
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from certificates import Authority
from daemon import CALL_S, ROOT, Daemon, key, wait_for

PORT, BLOCKS = 7421, 12
TABLE = """
tenant = alpha
engines = dns:alpha.example
tenant = beta
engines = uri:spiffe://example/beta
"""


def refused_namespaces():
    """Why this machine makes no network namespaces; empty: it does."""
    if os.geteuid() != 0:
        return "network namespaces want root"
    if not shutil.which("ip"):
        return "veth pairs want the program ip (Debian's iproute2)"
    p = subprocess.run(["unshare", "--net", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"], stderr=subprocess.PIPE, check=False)
    return "the kernel makes no network namespaces and veth pairs here: %s" % p.stderr.decode().strip() if p.returncode else ""


class Machine:
    """A nameless network namespace, held by a process that ends with this one."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holder.stdout.readline()

    def inside(self):
        return ["nsenter", "--net=/proc/%d/ns/net" % self.holder.pid]

    def ip(self, *words):
        p = subprocess.run([*self.inside(), "ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert p.returncode == 0, (words, p.stdout)

    def join(self, other, net, name):
        """A veth pair: this end is NET.1, the other's NET.2."""
        self.ip("link", "add", name, "type", "veth", "peer", "name", "eth", "netns", str(other.holder.pid))
        for machine, end, host in ((self, name, 1), (other, "eth", 2)):
            machine.ip("address", "add", "%s.%d/24" % (net, host), "dev", end)
            machine.ip("link", "set", end, "up")

    def close(self):
        self.holder.stdin.close()
        self.holder.wait(timeout=CALL_S)
        self.holder.stdout.close()


class There(Daemon):
    """A daemon on that machine; its Unix socket is a file, and so reached from here."""

    def __init__(self, machine, *flags):
        super().__init__(TERRACED, *flags, start=False)
        self.machine = machine

    def command(self):
        return [*self.machine.inside(), *super().command()]


class Engine:
    """An engine process on a machine, which does what it is told, a line each."""

    def __init__(self, machine, address, pair, ca):
        self.process = subprocess.Popen([*machine.inside(), sys.executable, os.path.abspath(__file__), "--engine", LIBTERRACE, address, *pair, ca],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, *order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline() or '"it has ended"')

    def ask(self, *order):
        self.tell(*order)
        return self.hear()

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=CALL_S)
        self.process.stdout.close()


@unittest.skipIf(refused_namespaces(), refused_namespaces())
class Network(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="terrace-network-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.ca = Authority(cls.folder, "ca")
        cls.pairs = {n: cls.ca.issue(n, sans) for n, sans in (("node", "IP:10.213.1.1,IP:10.213.2.1"), ("alpha", "DNS:alpha.example"),
                                                              ("beta", "URI:spiffe://example/beta"), ("none", "DNS:nobody.example"))}
        cls.node, cls.one, cls.two = machines = [Machine() for _ in range(3)]
        for m in machines:
            cls.addClassCleanup(m.close)
        cls.node.join(cls.one, "10.213.1", "to1")
        cls.node.join(cls.two, "10.213.2", "to2")
        table = os.path.join(cls.folder, "tenants")
        with open(table, "w", encoding="ascii") as f:
            f.write(TABLE)
        cls.d = There(cls.node, "--host-bytes", "64MiB", "--extent-bytes", "4MiB", "--listen", "0.0.0.0:%d" % PORT, "--listen-cert", cls.pairs["node"][0],
                      "--listen-key", cls.pairs["node"][1], "--listen-ca", cls.ca.cert, "--tenants", table, "--tenant-metrics", "8")
        cls.addClassCleanup(cls.d.close)
        cls.d.start()

    def engine(self, machine, name):
        net = {self.one: "10.213.1", self.two: "10.213.2"}[machine]
        e = Engine(machine, "%s.1:%d" % (net, PORT), self.pairs[name], self.ca.cert)
        self.addCleanup(e.close)
        return e, e.hear()

    def test_two_tenants_on_two_machines(self):
        (alpha, said_alpha), (beta, said_beta) = self.engine(self.one, "alpha"), self.engine(self.two, "beta")
        self.assertEqual((said_alpha, said_beta), ("ready", "ready"))
        for _ in range(3):  # both at a time, with the same keys
            for e, letter in ((alpha, "a"), (beta, "b")):
                e.tell("put", letter)
            self.assertEqual([alpha.hear(), beta.hear()], ["ok", "ok"])
            for e in (alpha, beta):
                e.tell("get")
            self.assertEqual([alpha.hear(), beta.hear()], ["a" * BLOCKS, "b" * BLOCKS])
            self.assertEqual([self.blocks(n) for n in ("alpha", "beta")], [BLOCKS] * 2)
            self.assertEqual(alpha.ask("delete"), BLOCKS)
            self.assertEqual([alpha.ask("get"), beta.ask("get")], ["." * BLOCKS, "b" * BLOCKS])
            self.assertEqual(beta.ask("delete"), BLOCKS)

    def blocks(self, tenant):
        return self.d.stats()["terrace_tenant_blocks{tenant=%s}" % tenant]

    def test_the_certificate_counts_and_not_the_machine(self):
        e, _ = self.engine(self.one, "alpha")
        self.assertEqual(e.ask("put", "A"), "ok")
        moved, said = self.engine(self.two, "alpha")
        self.assertEqual(said, "ready")
        self.assertEqual(moved.ask("get"), "A" * BLOCKS)
        self.assertEqual(moved.ask("delete"), BLOCKS)
        _, said = self.engine(self.one, "none")
        self.assertEqual(said[0], "DENIED", said)
        wait_for(lambda: "event=tls_refused client=10.213.1.2" in self.d.log(), CALL_S, "the log has the machine's address")

    def test_a_link_that_is_cut(self):
        """Costs that machine's calls, which end in their time, and nothing of the other's."""
        (alpha, _), (beta, _) = self.engine(self.one, "alpha"), self.engine(self.two, "beta")
        self.assertEqual([alpha.ask("put", "a"), beta.ask("put", "b")], ["ok", "ok"])
        self.node.ip("link", "set", "to1", "down")
        try:
            alpha.tell("get", 1)
            self.assertEqual(beta.ask("get"), "b" * BLOCKS)
            self.assertIn(alpha.hear()[0], ("DEADLINE", "UNAVAILABLE"))
        finally:
            self.node.ip("link", "set", "to1", "up")
        wait_for(lambda: alpha.ask("get") == "a" * BLOCKS, CALL_S, "calls go on over the link")
        self.assertEqual([alpha.ask("delete"), beta.ask("delete")], [BLOCKS] * 2)


# ---- an engine ----


def answer(session, size, order, argument=None):
    names = [key(i) for i in range(BLOCKS)]
    if order == "put":
        for o in [session.put_async(n, argument.encode() * size) for n in names]:
            o.finish()
        return "ok"
    if order == "get":
        got = [session.get_async(n, timeout=argument or CALL_S) for n in names]
        return "".join(one(o) for o in got)
    return sum(s.name == "OK" for s in session.delete(names))


def one(operation):
    """The letter that fills a block; a dot: it is not there."""
    got = operation.finish()
    if got is None:
        return "."
    block = bytes(got[0])
    return block[:1].decode() if block.count(block[:1]) == len(block) else "?"


def engine(address, cert, private, ca):
    def say(what):
        print(json.dumps(what), flush=True)
    layout = terrace.Layout("network", layers=32, heads=8, head_dim=128)
    try:
        with terrace.connect(address, timeout=CALL_S, tls_cert=cert, tls_key=private, tls_ca=ca) as client, client.session([layout]) as session:
            say("ready")
            for line in sys.stdin:
                try:
                    say(answer(session, layout.block_bytes, *json.loads(line)))
                except terrace.Error as e:
                    say([e.status.name, str(e)])
    except terrace.Error as e:
        say([e.status.name, str(e)])


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        os.environ["LIBTERRACE"] = sys.argv[2]
        sys.path.insert(0, os.path.join(ROOT, "client", "python"))
        sys.dont_write_bytecode = True
        import terrace
        engine(*sys.argv[3:])
    else:
        TERRACED, LIBTERRACE = sys.argv[1:3]
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
