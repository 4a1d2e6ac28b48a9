#!/usr/bin/env python3
"""terrace-bench --against, of the benches that run by both builds' own programs.

A build is compared with itself, and with builds of a few lines of shell that know fewer options, lack figures, fail, or
print no JSON. No speed is asserted.

    test_against.py TERRACED TERRACE_BENCH
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

TERRACED, BENCH = sys.argv[1:3]
BUILD = os.path.dirname(os.path.dirname(BENCH))
RUN_S = 150
HELP = "--json --quick --terraced --no-near"
FIGURE = '{"bench":"repack","case":"%s","value":%s,"unit":"GB/s","baseline":null,"ratio":null}'
OLD = "a figure of long ago"


def run(*words, against, json_lines=True):
    command = [BENCH, *words, "--quick", "--terraced", TERRACED, "--against", against] + ["--json"] * json_lines
    short = {name: value for name, value in os.environ.items() if name != "TMPDIR"}  # a longer one is not handed on to the runs
    return subprocess.run(command, capture_output=True, timeout=RUN_S, check=False, text=True, env=short)


def figures(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


class Against(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        self.calls = os.path.join(self.build, "calls")

    def fake(self, script, knows=HELP):
        """A build whose terrace-bench writes down its words and its folder, and then does what `script` says."""
        bench = 'case "$*" in *--help*) echo "%s"; exit;; esac\n' % knows
        bench += 'echo "$TMPDIR $*" >>%s\n%s' % (self.calls, script)
        for name, text in (("daemon/terraced", "exit 1"), ("tests/terrace-bench", bench)):
            path = os.path.join(self.build, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\n%s\n" % text)
            os.chmod(path, 0o755)
        return self.build

    def told(self):
        with open(self.calls, encoding="utf-8") as f:
            return f.read().splitlines()

    def refused(self, done, *words):
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_a_build_beside_itself(self):
        done = run("spill", "--pairs", "2", against=BUILD)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = figures(done)
        self.assertEqual(len(rows), 6)
        for value, ratio in zip(rows[::2], rows[1::2]):
            self.assertEqual((value["unit"], ratio["unit"]), ("us, p99", "ratio"))
            self.assertEqual(ratio["case"], value["case"] + ": to its own baseline")
            for row in (value, ratio):
                self.assertGreater(min(row["value"], row["baseline"], row["ratio"]), 0)
                self.assertFalse({"low", "high", "target"} & set(row), "two pairs have no interval")

    def test_figures_are_matched_by_name(self):
        other = run("repack", "--pairs", "1", against=self.fake("echo words; echo '%s'" % (FIGURE % (OLD, 7))))
        names = [row["case"] for row in figures(other) if row.get("not_compared") == "only in this build"]
        self.assertEqual(len(names), 2, other.stdout)
        lines = [FIGURE % (OLD, 7), FIGURE % (names[1], 1e-9), FIGURE % (names[0], 0)]
        done = run("repack", "--pairs", "7", against=self.fake("".join("echo '%s'\n" % line for line in lines)))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = {row["case"]: row for row in figures(done)}
        self.assertEqual(set(rows), {OLD, *names, *(n for n in rows if n.endswith(": to its own baseline"))})
        self.assertEqual(rows[OLD]["not_compared"], "only in the other build")
        self.assertEqual(rows[names[0]]["not_compared"], "in no pair of runs above 0")
        both = rows[names[1]]
        self.assertEqual(both["baseline"], 1e-9)
        self.assertAlmostEqual(both["ratio"], both["value"] / 1e-9, delta=both["ratio"] / 100)
        self.assertLessEqual(both["low"], both["ratio"])
        self.assertGreaterEqual(both["high"], both["ratio"])
        self.assertEqual((both["bound"], both["ok"]), ("least", True), "a rate is better when it is higher")

    def test_a_table(self):
        done = run("repack", "--pairs", "1", against=self.fake("echo '%s'" % (FIGURE % (OLD, 7))), json_lines=False)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"(?m)^repack +%s +not compared: only in the other build$" % OLD)

    def test_runs_and_their_words(self):
        # When this build's last run was, by its log: between the first two of the other's there is none, then two are.
        script = 'echo "$(stat -c %%y "$TMPDIR/own.log")" >>%s.own; echo \'%s\'' % (self.calls, FIGURE % (OLD, 7))
        run("repack", "--pairs", "3", "--no-near", "--busy-poll", against=self.fake(script))
        with open(self.calls + ".own", encoding="utf-8") as f:
            first, second, third = f.read().splitlines()
        self.assertTrue(first and first == second != third, "the first place changes with each pair")
        told = self.told()
        self.assertEqual(len(told), 3)
        for line in told:
            folder, *words = line.split()
            terraced = os.path.join(self.build, "daemon/terraced")
            self.assertEqual(words, ["repack", "--json", "--terraced", terraced, "--quick", "--no-near"])
            self.assertFalse(os.path.exists(folder), "the folder of the runs is gone")

    def test_an_option_that_the_other_does_not_know(self):
        done = run("repack", "--pairs", "1", "--busy-poll", against=self.fake("echo '%s'" % (FIGURE % (OLD, 7))))
        self.assertEqual(done.returncode, 0)
        self.assertIn("knows no --busy-poll: neither build is given it", done.stderr)

    def test_what_is_no_build(self):
        self.refused(run("repack", against="/nowhere"), "--against /nowhere", "there is no such folder")
        self.refused(run("repack", against=self.build), "it has no tests/terrace-bench", "build that target")
        self.fake("exit 0")
        os.remove(os.path.join(self.build, "daemon/terraced"))
        self.refused(run("repack", against=self.build), "it has no daemon/terraced", "build that target")
        stranger = self.fake("exit 0", knows="another program")
        self.refused(run("repack", against=stranger), "is it a terrace-bench?", "another program")

    def test_a_build_that_fails(self):
        lost = self.fake("echo the disk is gone >&2; exit 3")
        self.refused(run("repack", against=lost), "repack ended with 3", "the disk is gone")
        self.refused(run("repack", against=self.fake("kill -9 $$")), "repack ended with 137")
        done = run("repack", against=self.fake("echo not here >&2; exit 77"))
        self.assertEqual(done.returncode, 77, "skipped")
        self.assertIn("not here", done.stderr)

    def test_output_that_is_no_json(self):
        words = self.fake("echo good morning")
        self.refused(run("repack", against=words), "printed no figure as JSON", "good morning")
        cut = self.fake("echo '{\"case\":\"a\",'")
        self.refused(run("repack", against=cut), "printed a line that is no figure", '{"case":"a",')

    def test_numbers_of_pairs(self):
        for text in ("0", "100", "-1", "seven", ""):
            done = run("repack", "--pairs", text, against=BUILD)
            self.assertEqual(done.returncode, 2)
            self.assertIn("give a number from 1 to 99", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
