#!/usr/bin/env python3
"""deploy/cluster/run.sh, as an operator types it, in a network of its own: `test_cluster.py TERRACED BUILD`."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = sys.argv[2]
LIMIT_S = 300
INSIDE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
SCRIPT = ("sh", os.path.join(ROOT, "deploy", "cluster", "run.sh"))


def run(command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=LIMIT_S, **more)


def refused():
    """Why this machine cannot run it; empty: it can."""
    if os.geteuid() != 0:
        return "a network namespace wants root"
    for program, package in (("ip", "iproute2"), ("etcd", "etcd-server"), ("openssl", "openssl")):
        if not shutil.which(program):
            return "%s is not installed (Debian's %s)" % (program, package)
    done = run([*INSIDE, "true"])
    return "no network namespaces here: " + done.stdout if done.returncode else ""


def write_script(path, text):
    with open(path, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o755)) as f:
        f.write("#!/bin/sh\n%s\n" % text)


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-cluster-")
        self.addCleanup(shutil.rmtree, self.folder)

    def environment(self, **more):
        return {**os.environ, "BUILD": BUILD, "TMPDIR": self.folder, **more}

    def run_script(self, *words, **more):
        return subprocess.run([*INSIDE, *SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False, timeout=LIMIT_S, env=self.environment(**more))

    def left(self):
        """Command lines of processes that have to do with this test's folder."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % name, "rb") as f:
                    words = f.read().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if self.folder in words and int(name) != os.getpid():
                yield words

    def wrong_build(self, wrong, text):
        """A build folder in which one program is a script."""
        build = os.path.join(self.folder, "build")
        for name in ("daemon/terraced", "client/ctl/terracectl", "client/examples/chain/chain"):
            path = os.path.join(build, name)
            os.makedirs(os.path.dirname(path))
            if name.endswith(wrong):
                write_script(path, text)
            else:
                os.symlink(os.path.join(BUILD, name), path)
        return build

    def test_all_steps(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        for number in range(1, 8):
            self.assertIn("\n%d. " % number, done.stdout)
        self.assertEqual(done.stdout.count("leased 64 of 64 blocks"), 4, done.stdout)
        self.assertIn("All of it held.", done.stdout)
        self.assertEqual((os.listdir(self.folder), list(self.left())), ([], []))

    def test_kept_until_interrupted(self):
        """The commands that it prints work; what an interrupt leaves are the files of --dir."""
        kept = os.path.join(self.folder, "kept")
        script = subprocess.Popen([*INSIDE, *SCRIPT, "--keep", "--dir", kept], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, env=self.environment(), start_new_session=True)
        said = []
        try:
            for line in script.stdout:
                said.append(line)
                if line.startswith("The cluster runs"):
                    break
            else:
                self.fail("".join(said))
            tools = os.path.join(self.folder, "tools")
            os.mkdir(tools)
            os.symlink(os.path.join(BUILD, "client", "ctl", "terracectl"), os.path.join(tools, "terracectl"))
            commands = [line.strip() for line in said[said.index("To go on by hand:\n"):] if line.startswith("    ")]
            for command in commands:
                if re.search("locate|curl|prometheus", command):  # what is stored is located some seconds later
                    continue
                done = run(command, shell=True, env={**os.environ, "PATH": tools + ":" + os.environ["PATH"]})
                self.assertEqual(done.returncode, 0, command + "\n" + done.stdout)
            self.assertEqual(len(commands), 6)
        finally:
            os.killpg(script.pid, signal.SIGINT)
            code = script.wait(timeout=LIMIT_S)
            script.stdout.close()
        self.assertEqual(code, 130)
        self.assertEqual(list(self.left()), [])
        self.assertLessEqual({"ca.pem", "secret", "node1.conf", "node2.pem", "node3.key", "node1.log", "etcd.log"},
                             set(os.listdir(kept)))

    def test_a_step_that_fails(self):
        done = self.run_script(BUILD=self.wrong_build("chain", "echo 'a wrong answer'\nexit 1\n"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("a wrong answer", done.stdout)
        self.assertIn("run.sh: the prefix was not stored\n", done.stderr)
        self.assertIn("the end of node1.log", done.stderr)
        self.assertEqual((os.listdir(self.folder), list(self.left())), (["build"], []))

    def test_a_daemon_that_ends(self):
        text = "case $* in *--check-config) ;; *) echo event=start_failed >&2; exit 1 ;; esac\n"
        build = self.wrong_build("terraced", text)
        done = self.run_script(BUILD=build)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("run.sh: a process has ended that should run: three members at each node", done.stderr)
        self.assertIn("event=start_failed", done.stderr)
        self.assertEqual((os.listdir(self.folder), list(self.left())), (["build"], []))

    def test_without_etcd(self):
        """Who may not install it is told what to install."""
        tools = os.path.join(self.folder, "tools")
        os.mkdir(tools)
        query = "case $* in *etcd-server) echo not-installed ;; *) echo installed ;; esac"
        for name, text in ("dpkg-query", query), ("id", "echo 1000"):
            write_script(os.path.join(tools, name), text)
        done = self.run_script(PATH=tools + ":" + os.environ["PATH"])
        self.assertEqual(done.returncode, 1)
        words = "These packages are missing; install them as root and run this again: etcd-server\n"
        self.assertEqual(done.stderr, words)

    def test_words(self):
        for words in (["--what"], ["--dir"], ["--dir", ROOT]):
            done = self.run_script(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertNotEqual(done.stderr, "")


if __name__ == "__main__":
    WHY = refused()
    if WHY:
        print("not run: " + WHY)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
