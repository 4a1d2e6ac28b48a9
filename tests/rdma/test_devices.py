#!/usr/bin/python3
"""What a daemon says of real RDMA devices, in the guest of vm.sh: rxe0 on veth0, rxe1 on veth1.

    test_devices.py TERRACED TERRACECTL
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TERRACED, TERRACECTL = sys.argv[1:3]
CALL_S = 120  # the guest is slow
USABLE = [("rxe0", "usable", "::ffff:10.77.0.1"), ("rxe1", "usable", "::ffff:10.77.0.2")]


class Devices(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-rdma-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.socket = os.path.join(self.folder, "s")
        self.log = os.path.join(self.folder, "log")
        self.start()
        self.addCleanup(self.stop)

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([TERRACED, "--socket", self.socket, "--data-dir", os.path.join(self.folder, "data"), "--host-bytes", "16MiB",
                                             "--extent-bytes", "1MiB", "--rdma", "on"], stderr=log)

    def stop(self):
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        with open(self.log, encoding="utf-8") as log:
            print(log.read(), end="", file=sys.stderr)

    def status(self):
        """What `terracectl status` prints; empty while the daemon starts."""
        p = subprocess.run([TERRACECTL, "--address", "unix:" + self.socket, "--timeout", str(CALL_S), "--json", "status"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=False)
        self.assertIsNone(self.process.poll(), "the daemon has ended")
        return json.loads(p.stdout) if p.returncode == 0 else {}

    def ports(self, told):
        return sorted((p["device"], p["state"], p["gid"]) for p in told.get("rdma_ports", []))

    def wait(self, what, good):
        until = time.monotonic() + CALL_S
        while not good(told := self.status()):
            self.assertLess(time.monotonic(), until, "%s: %s" % (what, told))
            time.sleep(0.5)
        return told

    def test_devices_and_their_ports(self):
        told = self.wait("both usable", lambda t: self.ports(t) == USABLE)
        self.assertEqual(told["rdma"], "ready")
        self.assertEqual(told["health"], "SERVING")
        for port in told["rdma_ports"]:
            self.assertEqual((port["port"], port["kind"], port["windows"], port["reason"]), (1, "RoCE v2", True, ""))

        # A link that is down, and one without an address; the daemon is told by its devices' events, or looks.
        subprocess.run(["ip", "link", "set", "veth1", "down"], check=True)
        told = self.wait("rxe1 down", lambda t: ("rxe1", "down", "") in self.ports(t))
        self.assertIn("the port is down", [p for p in told["rdma_ports"] if p["device"] == "rxe1"][0]["reason"])
        subprocess.run(["ip", "link", "set", "veth1", "up"], check=True)
        self.wait("both usable again", lambda t: self.ports(t) == USABLE and t["rdma"] == "ready")

        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(timeout=CALL_S), 0)

    def test_killed_and_started_again(self):
        for _ in range(3):
            self.wait("both usable", lambda t: self.ports(t) == USABLE)
            self.process.kill()
            self.process.wait()
            self.start()
        self.wait("both usable", lambda t: self.ports(t) == USABLE)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
