#!/usr/bin/env python3
"""The first hour, as README tells it: what the quickstart builds is all that `cmake --install` copies, what is installed runs, and the commands
of "Develop" give tests even where the quickstart has configured the same folder before.

    test_install.py TERRACED CMAKE BUILD
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TERRACED, CMAKE, BUILD = sys.argv[1:4]


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def run(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)


def ninja(*words):
    told = run("ninja", "-C", BUILD, *words)
    assert told.returncode == 0, told.stdout.decode()
    return told.stdout.decode().splitlines()


def copied():
    """Files of the build folder that the install step copies."""
    for where, _, names in os.walk(BUILD):
        if "cmake_install.cmake" in names:
            for rule in re.findall(r"file\(INSTALL (.*?)\)\n", read(where, "cmake_install.cmake"), re.S):
                yield from re.findall(r'"(%s/[^"]+)"' % re.escape(BUILD), rule)


class Install(unittest.TestCase):
    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "build.ninja")), "this build is not one of ninja")
    def test_target_has_all_that_is_copied(self):
        made = {line.split(":")[0] for line in ninja("-t", "targets", "all")}
        commands = " ".join(ninja("-t", "commands", "installed")).split()
        wanted = {os.path.relpath(path, BUILD) for path in copied()} & made
        self.assertGreater(len(wanted), 3)
        self.assertEqual(sorted(wanted - set(commands)), [])

    def test_quickstart_builds_that_target(self):
        self.assertIn("\nsh deploy/build.sh ", read(ROOT, "deploy", "quickstart.sh"))
        script = read(ROOT, "deploy", "build.sh").replace("\\\n", " ")
        targets = re.search(r"cmake --build .*--target ([\w -]+)", script).group(1).split()
        self.assertIn("installed", targets)

    def test_develop_has_tests_after_the_quickstart(self):
        """BUILD_TESTING=OFF stays in the cache of a folder until a command says otherwise."""
        text = read(ROOT, "README.md").split("\n## Develop\n")[1].split("\n## ")[0]
        configures = re.findall(r"cmake [^\n&]*-S \.[^\n&]*", text)
        self.assertTrue(configures)
        for command in configures:
            self.assertIn("-DBUILD_TESTING=ON", command)

    def test_what_is_installed_runs(self):
        prefix = tempfile.mkdtemp(prefix="terrace-held-")
        self.addCleanup(shutil.rmtree, prefix)
        told = run(CMAKE, "--install", BUILD, "--prefix", prefix)
        self.assertEqual(told.returncode, 0, told.stdout.decode())
        for words in (("sbin/terraced", "--version"), ("bin/terracectl", "--version"), ("bin/terrace-replay", "--help")):
            told = run(os.path.join(prefix, words[0]), *words[1:])
            self.assertEqual(told.returncode, 0, told.stdout.decode())
        for header in ("terrace.h", "terrace_kernels.h"):
            self.assertTrue(os.path.exists(os.path.join(prefix, "include", header)))

    def test_package(self):
        """The Debian package, made of this build: what it needs, what is in it, and that the service it starts is there."""
        folder = tempfile.mkdtemp(prefix="terrace-held-")
        self.addCleanup(shutil.rmtree, folder)
        told = run(os.path.join(os.path.dirname(CMAKE), "cpack"), "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", folder)
        self.assertEqual(told.returncode, 0, told.stdout.decode())
        package, = glob.glob(os.path.join(folder, "terrace_*.deb"))
        needs = {word.split()[0] for word in run("dpkg-deb", "--field", package, "Depends").stdout.decode().split(", ")}
        self.assertLessEqual({"libc6", "liblmdb0", "liburing2", "libprotobuf-c1", "systemd"}, needs)
        root, control = os.path.join(folder, "root"), os.path.join(folder, "control")
        for words in (("--extract", package, root), ("--control", package, control)):
            self.assertEqual(run("dpkg-deb", *words).returncode, 0)
        for name in ("postinst", "prerm", "postrm"):
            self.assertTrue(os.access(os.path.join(control, name), os.X_OK), name)
            self.assertEqual(run("sh", "-n", os.path.join(control, name)).returncode, 0)
        unit = read(root, "usr/lib/systemd/system/terraced.service")
        self.assertEqual(re.findall("^ExecStart=(.*)$", unit, re.M), ["/usr/sbin/terraced"])
        self.assertTrue(os.path.exists(os.path.join(root, "usr/lib/sysusers.d/terrace.conf")))
        self.assertEqual(read(control, "conffiles").split(), ["/etc/terrace/terraced.conf"])
        self.assertEqual(read(root, "etc/terrace/terraced.conf"), read(ROOT, "deploy/terraced.conf"))
        for words in (("sbin/terraced", "--version"), ("bin/terracectl", "--version"), ("bin/terrace-replay", "--help")):
            told = run(os.path.join(root, "usr", words[0]), *words[1:])
            self.assertEqual(told.returncode, 0, told.stdout.decode())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
