"""The hybrid model's example against a real terraced: `test_hybrid.py TERRACED HYBRID`."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, running, wait_for  # noqa: E402

TERRACED, HYBRID = os.environ.get("TERRACED", "terraced"), os.environ.get("HYBRID", "hybrid")
SMALL = ("--host-bytes", "32MiB", "--extent-bytes", "1MiB")
# K and V are stored as fp16, which makes a difference of less than .001. A wrong state makes .07 and more.
ROUNDING = .005


def cells(count, *held):
    """The line that the example prints of a layout: its keys with a block, of `count`."""
    return "".join("#" if i in held else "." for i in range(count))


# Of prompts of 1200 and 1504 tokens: 75 and 94 keys. Full blocks end at every 4th key, and each prompt at its last.
FULL = (*range(3, 72, 4), 74)
MORE = (*FULL, *range(75, 92, 4), 93)
# Of the window the last 511 tokens before 512, 1024 and the end, 32 a block: every second key, and a partial one.
WINDOW = (*range(1, 74, 2), 74)
STATES = (31, 63, 74)


class Hybrid(unittest.TestCase):
    def serve(self, daemon):
        """[(cached tokens, full, window, state)], once all results have been found to be the naive engine's."""
        done = subprocess.run([HYBRID], env={**os.environ, "TERRACE_ADDRESS": daemon.address}, capture_output=True, text=True,
                              timeout=CALL_S, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        requests = re.findall(r"^(\d+) of (\d+) tokens are cached\n  full   (.*)\n  window (.*)\n  state  (.*)\n"
                              r"  largest difference from the naive engine: (\S+)\n", done.stdout, re.MULTILINE)
        self.assertEqual([int(r[1]) for r in requests], [1200, 1504, 1200], done.stdout)
        for r in requests:
            self.assertLess(float(r[5]), ROUNDING, done.stdout)
        return [(int(r[0]), *r[2:5]) for r in requests]

    def check_cells(self, requests):
        self.assertEqual(requests[0][1:], (cells(75, *FULL), cells(75, *WINDOW), cells(75, *STATES)))
        window = (*WINDOW, *range(75, 94, 2))  # what the second prompt's end wants, on top of the first one's
        self.assertEqual(requests[1][1:], (cells(94, *MORE), cells(94, *window), cells(94, *STATES, 93)))

    def test_prompts_continue_where_a_state_is(self):
        with running(TERRACED, *SMALL) as daemon:
            first, second = self.serve(daemon), self.serve(daemon)
            self.assertEqual([r[0] for r in first], [0, 1200, 512])
            self.check_cells(first)
            self.assertEqual([r[0] for r in second], [1200, 1504, 1200])

    def test_from_a_disk(self):
        with tempfile.TemporaryDirectory() as folder, \
                running(TERRACED, *SMALL, "--disks", os.path.join(folder, "d") + ":64MiB") as daemon:
            self.serve(daemon)
            daemon.stop()
            daemon.start()
            wait_for(lambda: daemon.stats()["terrace_restored"] == 1, CALL_S, "the disks are taken up")
            self.assertEqual([r[0] for r in self.serve(daemon)], [1200, 1504, 1200])

    def test_no_daemon(self):
        done = subprocess.run([HYBRID], env={**os.environ, "TERRACE_ADDRESS": "unix:/nonexistent/terraced.sock"},
                              capture_output=True, text=True, timeout=CALL_S, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^hybrid: connect: .*unix:/nonexistent/terraced\.sock")


if __name__ == "__main__":
    TERRACED, HYBRID = sys.argv[1], sys.argv[2]
    unittest.main(argv=sys.argv[:1], verbosity=2)
