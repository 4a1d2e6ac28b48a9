"""/metrics and /healthz of a real terraced: `test_metrics.py TERRACED TERRACECTL SIM_DEVICE_FOLDER`.

The text is read by a parser that takes nothing but the format. Its samples are those of `terracectl stat`; what deploy/alerts.yml asks for is there.
"""

import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, ROOT, health_pb2, key, keys, layout, pb, running, wait_for  # noqa: E402

TERRACED, CTL, SIM = "", "", ""
SMALL = ("--host-bytes", "64MiB", "--extent-bytes", "4MiB", "--metrics-address", "127.0.0.1:0")

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
SAMPLE = re.compile(r"(%s)(?:\{(.*)\})? (\S+)" % NAME)
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?")

HISTOGRAM = re.compile("_(bucket|sum|count)$")


def labels_of(text):
    """What stands between braces: nothing but NAME="VALUE", separated by commas, each name once."""
    labels, at = {}, 0
    while True:
        found = LABEL.match(text, at)
        assert found, "labels: %r at %d" % (text, at)
        name, value = found.groups()
        assert name not in labels and not name.startswith("__"), text
        labels[name] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
        if found.end() == len(text):
            return labels
        assert text[found.end()] == ",", text
        at = found.end() + 1


def parse(text):
    """{name: (type, {labels: value})}, of a text in exposition format 0.0.4 and none other."""
    assert text.endswith("\n") and "\r" not in text and text.isascii()
    families, name, helped = {}, None, None
    for line in text[:-1].split("\n"):
        head = re.fullmatch(r"# (HELP|TYPE) (%s) (.+)" % NAME, line)
        if head and head[1] == "HELP":
            assert head[2] not in families, "twice: " + line
            helped = head[2]
        elif head:
            assert head[2] == helped and head[3] in ("counter", "gauge", "histogram"), line
            name, helped = head[2], None
            for end in ("_bucket", "_sum", "_count") if head[3] == "histogram" else ("",):
                families[name + end] = ("counter" if end else head[3], {})
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample and helped is None and sample[1] in families and HISTOGRAM.sub("", sample[1]) == HISTOGRAM.sub("", name), \
                "no sample of %s: %r" % (name, line)
            assert NUMBER.fullmatch(sample[3]), line
            labels = frozenset(labels_of(sample[2]).items()) if sample[2] is not None else frozenset()
            assert labels not in families[sample[1]][1], "twice: " + line
            families[sample[1]][1][labels] = float(sample[3])
    assert helped is None
    return families


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def port_of(daemon):
    """It serves a moment before it says that it is ready."""
    wait_for(lambda: daemon.log().count("event=ready") > daemon.readied, CALL_S, "it is ready")
    return int(re.findall(r"event=ready .*metrics_port=(\d+)", daemon.log())[-1])


def ask(port, path="/metrics", method="GET"):
    """(status, headers, body)."""
    try:
        with urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), method=method), timeout=CALL_S) as reply:
            return reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers, refused.read().decode()


def scrape(port):
    status, headers, body = ask(port)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8"), headers
    return parse(body)


def stat_labels(text):
    """Of Stat.labels, as proto/terrace.proto says."""
    pairs = re.findall(r"([^=,]+)=((?:[^,\\]|\\.)*)(?:,|$)", text)
    return frozenset((name, re.sub(r"\\(.)", r"\1", value)) for name, value in pairs)


def borrow(daemon, opened, *numbers):
    """A lease, and the socket that it lives by (proto/fdsock.h)."""
    attached = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    attached.connect(opened.fd_socket)
    attached.send(struct.pack("=IHH16s", 0x46445254, 3, 1, opened.token))
    status, attachment = struct.unpack("=8xI4x8x8xQ", attached.recv(40))
    assert status == 0
    reply = daemon.cache.Lease(pb.LeaseRequest(session=opened.session, keys=keys(*numbers), attachment=attachment), timeout=CALL_S)
    assert reply.status == pb.OK
    return reply, attached


RENAMED = {"fd_socket": "door", "local": "near"}  # /metrics has the former names too
BY_LENGTH = {"terrace_rpc_step_seconds_by_length_total"}  # a row appears with the first call that takes so long
FORMER = re.compile(r"(?<=^terrace_)(fd_socket|local)(?=_)")


class Everything(unittest.TestCase):
    """A daemon with all tiers, and two GPUs."""

    @classmethod
    def setUpClass(cls):
        cls.running = running(TERRACED, *SMALL, "--gpus", "all", "--gpu-bytes", "16MiB", "--drain-timeout", "0s",
                              env={"LD_LIBRARY_PATH": SIM, "SIM_GPU_DEVICES": "2"}, start=False)
        cls.daemon = cls.running.__enter__()
        cls.daemon.flags += ("--disks", os.path.join(cls.daemon.folder, "disk") + ":64MiB")
        cls.daemon.start()
        cls.port = port_of(cls.daemon)
        opened = cls.daemon.open(layout(fingerprint=b"a" * 32))
        data = bytes(opened.layouts[0].block_bytes)
        assert cls.daemon.put(opened.session, [(key(n), data) for n in range(3)]) == [pb.OK] * 3
        _, cls.attached = borrow(cls.daemon, opened, 0, 1)

    @classmethod
    def tearDownClass(cls):
        cls.attached.close()
        cls.running.__exit__(None, None, None)

    def test_is_what_stat_says(self):
        def stat():
            told = subprocess.run([CTL, "--address", self.daemon.address, "stat", "--json"], stdout=subprocess.PIPE, check=True)
            return json.loads(told.stdout)

        stat()  # its own call is a row from now on
        wait_for(lambda: "Admin.Stats" in str(scrape(self.port)["terrace_rpc_calls_total"]), CALL_S, "the call is counted")
        said, families = stat(), scrape(self.port)
        told = {(row["name"], stat_labels(row["labels"])): row for row in said["stats"]}
        self.assertEqual(len(told), len(said["stats"]))
        for name in list(families):
            former = FORMER.sub(lambda found: RENAMED[found[1]], name)
            if former != name:
                self.assertEqual(families.pop(former), families[name])
        there = {(name, labels) for name, (_, samples) in families.items() for labels in samples}
        self.assertLessEqual(set(told), there)
        self.assertLessEqual({name for name, _ in there - set(told)}, BY_LENGTH)
        for (name, labels), row in told.items():
            kind, samples = families[name]
            self.assertEqual(kind, row["type"], name)
            if not re.match("terrace_(rpc|quota|uptime|advisor|graph|catalog|disk|spills|moved|dirty|worker|learned|restore|tombstones)", name):
                self.assertEqual(samples[labels], row["value"], (name, labels))
        self.assertEqual(families["terrace_stored_blocks_total"][1][frozenset()], 3)
        self.assertEqual(families["terrace_build_info"][1], {frozenset({("version", said["version"])}): 1})
        self.assertEqual(families["terrace_epoch_info"][1], {frozenset({("epoch", said["epoch"])}): 1})

    def test_names(self):
        for name, (kind, samples) in scrape(self.port).items():
            self.assertTrue(name.startswith("terrace_"), name)
            self.assertEqual(kind == "counter", name.endswith("_total") or bool(HISTOGRAM.search(name)), name)
            self.assertTrue(samples, name)

    def test_times_of_calls(self):
        """Buckets rise, the last has all, and steps do not add up to more than the calls."""
        families = scrape(self.port)
        lookups = [{label: value for label, value in labels if label != "le"} for labels in families["terrace_rpc_seconds_count"][1]]
        self.assertTrue(lookups)
        for labels in lookups:
            rows = {dict(of)["le"]: value for of, value in families["terrace_rpc_seconds_bucket"][1].items() if labels.items() <= dict(of).items()
                    and len(of) == len(labels) + 1}
            values = [rows[bound] for bound in sorted(rows, key=float)]
            self.assertEqual(values, sorted(values))
            self.assertEqual(rows["+Inf"], families["terrace_rpc_seconds_count"][1][frozenset(labels.items())])
        took = sum(families["terrace_rpc_seconds_sum"][1].values())
        self.assertAlmostEqual(sum(families["terrace_rpc_step_seconds_sum"][1].values()), took, delta=.02 * took + 1e-3)
        self.assertAlmostEqual(sum(families["terrace_rpc_step_seconds_by_length_total"][1].values()), took, delta=.02 * took + 1e-3)

    def test_who_holds_memory(self):
        """Also of an engine whose name wants to be more than a label."""
        opened = self.daemon.cache.OpenSession(pb.OpenSessionRequest(layouts=[layout(fingerprint=b"a" * 32)], engine='x"} 1,pid=2\\'), timeout=CALL_S)
        _, attached = borrow(self.daemon, opened, 0)
        rows = [dict(labels) for labels in scrape(self.port)["terrace_session_held_bytes"][1]]
        attached.close()
        self.assertEqual(sorted(row["engine"] for row in rows), ["e2e", "x___1_pid_2_"])
        self.assertEqual({row["pid"] for row in rows}, {str(os.getpid())})

    def test_pages(self):
        status, headers, body = ask(self.port, method="HEAD")
        self.assertEqual((status, body), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 10000)
        self.assertEqual(ask(self.port, "/healthz")[::2], (200, "serving\n"))
        self.assertEqual(ask(self.port, "/metric")[0], 404)
        status, headers, _ = ask(self.port, method="POST")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))

    def test_drain_and_back(self):
        for undo, health, code in ((False, health_pb2.HealthCheckResponse.NOT_SERVING, 503), (True, health_pb2.HealthCheckResponse.SERVING, 200)):
            self.daemon.admin.Drain(pb.DrainRequest(undo=undo), timeout=CALL_S)
            self.assertEqual(self.daemon.health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status, health)
            self.assertEqual(ask(self.port, "/healthz")[0], code)
            self.assertEqual(scrape(self.port)["terrace_draining"][1][frozenset()], not undo)

    def test_slow_ones_disturb_nobody(self):
        slow = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(40)]
        for s in slow[::2]:
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        self.daemon.admin.Stats(pb.StatsRequest(), timeout=CALL_S)
        for s in slow:
            s.close()
        self.assertEqual(ask(self.port, "/healthz")[0], 200)

    def test_alerts(self):
        text = read("deploy", "alerts.yml")
        sources = "".join(read(os.path.relpath(folder, ROOT), name) for part in ("daemon", "store")
                          for folder, _, names in os.walk(os.path.join(ROOT, part)) for name in names if name.endswith((".c", ".h")))
        families = scrape(self.port)
        expressions = re.findall(r"^ +expr: (.*)$", text, re.M)
        self.assertEqual(len(expressions), len(re.findall(r"^ +- alert: ", text, re.M)))
        self.assertGreater(len(expressions), 10)
        for expression in expressions:
            self.asks(families, sources, expression)
        for name, labels in re.findall(r"\b(terrace_\w+)(?:\{([^}]*)\})?", re.sub(r"(?m)^ +expr: .*$", "", text)):
            self.selects(families, sources, name, labels)
        for event in re.findall(r"event=(\w+)", text):
            self.assertIn('"%s"' % event, sources)
        for label in re.findall(r"\$labels\.(\w+)", text):
            self.assertTrue(label == "instance" or any(label in dict(row) for _, rows in families.values() for row in rows), label)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
    def test_promtool(self):
        """What Prometheus's own tool says of the metrics, of the rules, and of what the rules make of series (alerts_test.yml)."""
        here = os.path.dirname(os.path.abspath(__file__))
        for words, text in ((("check", "metrics"), ask(self.port)[2]), (("check", "rules", os.path.join(ROOT, "deploy", "alerts.yml")), ""),
                            (("test", "rules", os.path.join(here, "alerts_test.yml")), ""),
                            (("check", "config", os.path.join(ROOT, "deploy", "prometheus.yml")), ""),
                            (("check", "config", os.path.join(ROOT, "deploy", "cluster", "prometheus.yml")), "")):
            done = subprocess.run(("promtool", *words), input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.assertEqual(done.returncode, 0, done.stdout.decode())
            if not words[2:]:
                self.assertEqual(done.stdout.decode(), "")
        alerts, tested = (re.findall(r"alert(?:name)?: (\w+)", read(*path)) for path in (("deploy", "alerts.yml"), ("tests", "e2e", "alerts_test.yml")))
        self.assertLessEqual(set(alerts), set(tested))

    def test_dashboard(self):
        board, families, places = json.loads(read("deploy", "grafana.json")), scrape(self.port), set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            places.add((at["x"], at["y"], at["w"], at["h"]))
            for target in panel["targets"]:
                self.asks(families, '"$instance"', target["expr"])
                labels = re.findall(r"{{(\w+)}}", target["legendFormat"])
                names = re.findall(r"terrace_\w+", target["expr"])
                there = {label for name in names for row in families[name][1] for label in dict(row)}
                self.assertLessEqual(set(labels), there | {"instance"}, panel["title"])
        self.assertEqual({(12 * (i % 2), 8 * (i // 2), 12, 8) for i in range(len(places))}, places)
        self.assertEqual([panel["id"] for panel in board["panels"]], list(range(1, len(places) + 1)))

    def asks(self, families, sources, expression):
        asked = re.findall(r"\b(terrace_\w+|up\b)(?:\{([^}]*)\})?", expression)
        self.assertTrue(asked, expression)
        for name, selector in asked:
            if name != "up":
                self.selects(families, sources, name, selector)

    def selects(self, families, sources, name, selector):
        """There are rows of that name with those labels; a value that none of them has now, as of a health, is a word of the sources."""
        if name not in families and '"%s"' % name in sources:  # of a daemon in a cluster
            return
        self.assertIn(name, families)
        for label, _, value in re.findall(r'(\w+)(=~?|!=)"([^"]*)"', selector):
            if label == "instance":  # Prometheus's own
                continue
            there = {dict(row).get(label) for row in families[name][1]}
            self.assertNotEqual(there, {None}, "%s has no %s" % (name, label))
            for word in value.split("|"):
                self.assertTrue(word in there or '"%s"' % word in sources, "%s{%s}: no %s" % (name, selector, word))


class Stops(unittest.TestCase):
    def test_while_draining(self):
        """Until the lease is released: 503, and the metrics."""
        with running(TERRACED, *SMALL, "--drain-timeout", "60s") as d:
            port, opened = port_of(d), d.open(layout())
            d.put(opened.session, [(key(0), bytes(opened.layouts[0].block_bytes))])
            lease, attached = borrow(d, opened, 0)
            d.process.terminate()
            wait_for(lambda: ask(port, "/healthz")[0] == 503, CALL_S, "it drains")
            families = scrape(port)
            self.assertEqual(families["terrace_draining"][1][frozenset()], 1)
            self.assertEqual(families["terrace_leases"][1][frozenset()], 1)
            d.cache.Release(pb.ReleaseRequest(session=opened.session, leases=[lease.lease]), timeout=CALL_S)
            d.stop()
            attached.close()

    def test_what_ends_unasked_is_told(self):
        """In the log: a session that nobody calls in, and a lease that outlasts the drain."""
        with running(TERRACED, *SMALL, "--drain-timeout", "100ms", "--session-idle", "1s") as d:
            idle, opened = d.open(layout()), d.open(layout())
            d.put(opened.session, [(key(0), bytes(opened.layouts[0].block_bytes))])
            _, attached = borrow(d, opened, 0)
            line = "event=session_closed session=%d reason=" % idle.number
            wait_for(lambda: line in d.log(), CALL_S, "it ends for idleness, and the log says so")
            d.stop()
            self.assertIn('event=not_drained leases=1 reservations=0 reason="drain_timeout is over"', d.log())
            attached.close()

    def test_while_others_ask(self):
        """Each answer is whole, or none; those who say nothing keep it from nothing."""
        with running(TERRACED, *SMALL) as d:
            port, end, whole, wrong = port_of(d), threading.Event(), [0], []

            def asks():
                while not end.is_set():
                    try:
                        scrape(port)
                        whole[0] += 1
                    except (OSError, http.client.HTTPException):
                        pass
                    except Exception as e:  # what comes is wrong
                        wrong.append(e)

            askers = [threading.Thread(target=asks) for _ in range(3)]
            for a in askers:
                a.start()
            wait_for(lambda: whole[0] > 20, CALL_S, "answers")
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
            begun = time.monotonic()
            d.stop()
            took = time.monotonic() - begun
            end.set()
            for a in askers:
                a.join()
            for s in silent:
                s.close()
            self.assertEqual(wrong, [])
            self.assertLess(took, 5)

    def test_unix_socket(self):
        with running(TERRACED, *SMALL[:4], start=False) as d:
            path = os.path.join(d.folder, "m.sock")
            d.flags += ("--metrics-address", "unix:" + path)
            d.start()
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
            self.assertTrue(text.startswith("HTTP/1.1 200 "))
            self.assertIn("terrace_sessions", parse(text.split("\r\n\r\n", 1)[1]))
            d.stop()
            self.assertFalse(os.path.exists(path))

    def test_open_to_others(self):
        with running(TERRACED, *SMALL[:4], "--metrics-address", "0.0.0.0:0") as d:
            self.assertIn("event=metrics_open ", d.log())
            self.assertIn("terrace_sessions", scrape(port_of(d)))


if __name__ == "__main__":
    TERRACED, CTL, SIM = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
