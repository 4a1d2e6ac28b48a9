"""A cluster on one machine: a network namespace for each daemon, all joined by a bridge in that of the test itself, in which a real etcd
runs, and certificates of a throw-away CA.
"""

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from certificates import Authority  # noqa: E402
import daemon as e2e  # noqa: E402
import grpc  # noqa: E402
from daemon import CALL_S, ROOT, Daemon, pb, terrace_pb2_grpc, wait_for  # noqa: E402
from grpc_tools import protoc  # noqa: E402

if protoc.main(["protoc", "--proto_path=" + os.path.join(ROOT, "proto"), "--python_out=" + e2e._generated,
                "--grpc_python_out=" + e2e._generated, "etcd.proto"]) != 0:
    sys.exit("protoc failed")
import etcd_pb2 as etcd_pb  # noqa: E402
import etcd_pb2_grpc as etcd_grpc  # noqa: E402

NET, PORT, ETCD = "10.214.0", 7070, "10.214.0.1:2379"
TTL_S = 6
MEMBERS = b"/terrace/c1/members/"
SECRETS = {tenant: hashlib.sha256(tenant.encode()).digest() for tenant in ("default", "beta")}
FAKE_NODE = b"a-fake-member-id"
TABLE = """
tenant = default
peers = dns:node.cluster
secret = {folder}/secret.default
tenant = beta
engines = dns:beta.example
peers = dns:node.cluster
secret = {folder}/secret.beta
tenant = gamma
engines = dns:gamma.example
"""
CLONE_NEWNET = 0x40000000
# The local table has rule 0, which no rule can stand before: it is moved, so that packets of one source can be dropped.
LOSS = ("add table inet loss; add chain inet loss in { type filter hook input priority 0; }; "
        "add rule inet loss in iifname eth ip saddr != %(hub)s numgen random mod 10 < %(of_ten)d drop")
NODE = "ip link set lo up && ip rule add pref 100 lookup local && ip rule del pref 0 && echo && exec cat"


def refused_namespaces():
    """Why this machine cannot run the cluster; empty: it can."""
    if os.geteuid() != 0:
        return "network namespaces want root"
    for program, package in (("ip", "iproute2"), ("etcd", "etcd-server"), ("openssl", "openssl")):
        if not shutil.which(program):
            return "%s is not installed (Debian's %s)" % (program, package)
    p = subprocess.run(["unshare", "--net", "sh", "-c", "ip link add switch type bridge && ip link add v0 type veth peer name v1 && "
                        "ip rule add from 10.0.0.1 blackhole"], stderr=subprocess.PIPE, check=False)
    return "the kernel makes no bridges or veth pairs here: %s" % p.stderr.decode().strip() if p.returncode else ""


def run(*words):
    p = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert p.returncode == 0, (words, p.stdout)


def enter_network():
    """Gives this process a network of its own, with the bridge; before it has other threads."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "switch", "type", "bridge")
    run("ip", "link", "set", "switch", "up")
    run("ip", "address", "add", NET + ".1/24", "dev", "switch")


class Machine:
    """A nameless network namespace, held by a process that ends with this one."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout.readline(), "no network namespace"

    def inside(self):
        return ["nsenter", "--net=/proc/%d/ns/net" % self.holder.pid]

    def run(self, *words):
        run(*self.inside(), *words)

    def close(self):
        self.holder.stdin.close()
        self.holder.wait(timeout=CALL_S)
        self.holder.stdout.close()


class Node(Daemon):
    """A member. Its Unix socket is a file, and so reached from here."""

    def __init__(self, cluster, number, *flags, cluster_name="c1"):
        self.name, self.host = "n%d" % number, "%s.%d" % (NET, 10 + number)
        self.machine, self.cluster = Machine(), cluster
        self.link = "v%d" % number
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth", "netns", str(self.machine.holder.pid))
        run("ip", "link", "set", self.link, "master", "switch", "up")
        self.machine.run("ip", "address", "add", self.host + "/24", "dev", "eth")
        self.machine.run("ip", "link", "set", "eth", "up")
        pair = cluster.ca.issue(self.name, "IP:%s,DNS:node.cluster" % self.host)
        super().__init__(cluster.terraced, "--host-bytes", "%dMiB" % cluster.host_mib, "--extent-bytes", "1MiB", "--listen", "0.0.0.0:%d" % PORT,
                         "--listen-cert", pair[0], "--listen-key", pair[1], "--listen-ca", cluster.ca.cert,
                         "--tenants", cluster.table, "--cluster", cluster_name, "--node-name", self.name,
                         "--peer-address", "%s:%d" % (self.host, PORT), "--etcd-endpoints", ETCD,
                         "--member-ttl", "%ds" % TTL_S, *flags, start=False)

    def command(self):
        return [*self.machine.inside(), *super().command()]

    def start(self):
        super().start()
        self.peer = terrace_pb2_grpc.PeerStub(self.channel)

    def members(self):
        return {r.member.name: r for r in self.admin.Peers(pb.PeersRequest(), timeout=CALL_S).rows if not r.absent}

    def epoch(self):
        return self.members()[self.name].member.epoch

    def deaf_to(self, other, deaf=True):
        """Packets of that member are dropped when they arrive, or no more."""
        self.deaf_to_host(other.host, deaf)

    def deaf_to_host(self, host, deaf=True):
        subprocess.run([*self.machine.inside(), "ip", "rule", "del", "pref", "10", "from", host], stderr=subprocess.DEVNULL, check=False)
        if deaf:
            self.machine.run("ip", "rule", "add", "pref", "10", "from", host, "blackhole")

    def loses(self, of_ten):
        """Of ten packets that other members send to this one, so many are dropped, by chance."""
        subprocess.run([*self.machine.inside(), "nft", "delete", "table", "inet", "loss"], stderr=subprocess.DEVNULL, check=False)
        if of_ten:
            self.machine.run("nft", LOSS % {"hub": NET + ".1", "of_ten": of_ten})

    def throttled(self, kilobits):
        """What this member sends goes at this rate; 0: as fast as it can."""
        subprocess.run([*self.machine.inside(), "tc", "qdisc", "del", "dev", "eth", "root"], stderr=subprocess.DEVNULL, check=False)
        if kilobits:
            self.machine.run("tc", "qdisc", "add", "dev", "eth", "root", "tbf", "rate", "%dkbit" % kilobits, "burst", "16kb", "latency", "1s")

    def close(self):
        super().close()
        run("ip", "link", "del", self.link)  # the kernel takes its time with those of a network that has ended
        self.machine.close()


class Cluster:
    def __init__(self, terraced, ctl, nodes, *flags, host_mib=16, envs=(), first=()):
        """envs: the first nodes' additions to the environment; first: flags of node 0 besides."""
        self.terraced, self.ctl, self.host_mib = terraced, ctl, host_mib
        self.folder = tempfile.mkdtemp(prefix="terrace-peers-")
        self.ca = Authority(self.folder, "ca")
        for tenant, secret in SECRETS.items():
            with open(os.path.join(self.folder, "secret." + tenant), "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(secret)
        self.table = os.path.join(self.folder, "tenants")
        with open(self.table, "w", encoding="ascii") as f:
            f.write(TABLE.format(folder=self.folder))
        self.etcd, self.nodes = None, []
        try:
            self.etcd_start()
            for i in range(nodes):
                self.nodes.append(Node(self, i, *flags, *(() if i else first)))
                self.nodes[-1].env = envs[i] if i < len(envs) else {}
                self.nodes[-1].start()
            self.wait_members()
        except BaseException:
            self.close()
            raise

    def etcd_start(self):
        url, peer = "http://" + ETCD, "http://127.0.0.1:2380"
        with open(os.path.join(self.folder, "etcd.log"), "ab") as log:
            self.etcd = subprocess.Popen(
                ["etcd", "--name", "n", "--data-dir", os.path.join(self.folder, "etcd"), "--listen-client-urls",
                 url, "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", "n=" + peer, "--unsafe-no-fsync", "--heartbeat-interval", "50", "--election-timeout", "250"],
                stdout=log, stderr=log)

    def etcd_kill(self):
        self.etcd.kill()
        self.etcd.wait()

    def wait_members(self, *of):
        """Until each of these nodes (all) knows all of them, and none else."""
        of = of or self.nodes
        for n in of:
            wait_for(lambda n=n: set(n.members()) == {m.name for m in of}, CALL_S, "members of " + n.name)

    def run_ctl(self, node, *words):
        p = subprocess.run([self.ctl, "--address", node.address, "--timeout", str(CALL_S), "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, check=False, timeout=CALL_S)
        assert p.returncode in (0, 3), p.stderr
        return p.stdout

    def locate(self, node, *words):
        """What `terracectl locate` prints, as an object."""
        return json.loads(self.run_ctl(node, "locate", *words))

    def channel(self, node, pair):
        """To the node over TLS, with that certificate."""
        with open(self.ca.cert, "rb") as ca, open(pair[1], "rb") as private, open(pair[0], "rb") as cert:
            credentials = grpc.ssl_channel_credentials(ca.read(), private.read(), cert.read())
        return grpc.secure_channel("%s:%d" % (node.host, PORT), credentials, [("grpc.use_local_subchannel_pool", 1)])

    def etcd_ask(self, op):
        with grpc.insecure_channel(ETCD) as channel:
            etcd_grpc.KVStub(channel).Txn(etcd_pb.TxnRequest(success=[op]), timeout=CALL_S, wait_for_ready=True)

    def member_put(self, name, epoch):
        """Registers a member that is no daemon."""
        value = pb.Member(name=name, node=FAKE_NODE, epoch=epoch, address=NET + ".1:1", version="9", peer_protocol=1)
        self.etcd_ask(etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=MEMBERS + name.encode(), value=value.SerializeToString())))

    def member_delete(self, name):
        """etcd.proto has no DeleteRange, which daemons do not need: bytes of its RequestOp."""
        key = MEMBERS + name.encode()
        ask = b"\x0a" + bytes([len(key)]) + key
        with grpc.insecure_channel(ETCD) as channel:
            channel.unary_unary("/etcdserverpb.KV/DeleteRange")(ask, timeout=CALL_S)

    def close(self):
        for n in self.nodes:
            n.close()
        self.etcd_kill()
        shutil.rmtree(self.folder, ignore_errors=True)
