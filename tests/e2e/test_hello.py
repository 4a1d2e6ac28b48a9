"""The example that README quotes, against a real terraced: `test_hello.py TERRACED HELLO`."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, running, wait_for  # noqa: E402

TERRACED, HELLO = os.environ.get("TERRACED", "terraced"), os.environ.get("HELLO", "hello")
SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB")


def hello(address):
    return subprocess.run([HELLO], env={**os.environ, "TERRACE_ADDRESS": address}, capture_output=True, text=True,
                          timeout=CALL_S, check=False)


class Hello(unittest.TestCase):
    def attended(self, done):
        """What it read: the query looks for token 5, whose value is 5; a mean over tq4 is within a few per cent."""
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = re.search(r"^attended to 16 cached tokens: mean value (\S+), log-sum-exp (\S+)$", done.stdout, re.MULTILINE)
        self.assertTrue(found, done.stdout)
        self.assertAlmostEqual(float(found[1]), 5, delta=0.3)
        return found[0]

    def test_first_stores_and_second_finds(self):
        with running(TERRACED, *SMALL) as daemon:
            first, second = hello(daemon.address), hello(daemon.address)
            self.assertIn("stored 16 tokens in", first.stdout)
            self.assertNotIn("found", first.stdout)
            self.assertIn("found in the cache", second.stdout)
            self.assertEqual(self.attended(first), self.attended(second))
            for session in re.findall(r"event=session_opened session=(\d+)", daemon.log()):
                closed = r"event=session_closed session=%s\b" % session
                wait_for(lambda closed=closed: re.search(closed, daemon.log()), CALL_S, closed)

    def test_nothing_to_borrow(self):
        with running(TERRACED, *SMALL, "--fd-socket", "off") as daemon:
            done = hello(daemon.address)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, "^hello: lease: .*switched off")

    def test_no_daemon(self):
        done = hello("unix:/nonexistent/terraced.sock")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^hello: connect: .*unix:/nonexistent/terraced\.sock")


if __name__ == "__main__":
    TERRACED, HELLO = sys.argv[1], sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)
