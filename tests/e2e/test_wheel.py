"""The wheel, as a stranger installs it: `test_wheel.py TERRACED BUILD_FOLDER`.

build_wheel.sh makes it, and an empty virtual environment gets it with nothing else. The engine there knows neither the sources nor the build
folder, and finds the library and all that it needs in the wheel.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

TERRACED, BUILD = sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from daemon import running  # noqa: E402

GLIBC = (2, 36)  # Debian 12's

# What an engine does with it. Printed: the package's folder, the library's file, and the files that the process has mapped.
ENGINE = """
import asyncio, sys, terrace
layout = terrace.Layout("test_wheel", layers=2, heads=2, head_dim=64, k_format="tq4")
keys = terrace.chain(list(range(64)), 16)
blocks = [bytes((i * 31 + k) % 251 for k in range(layout.block_bytes)) for i in range(4)]
with terrace.connect(sys.argv[1], timeout=60) as client, client.session([layout]) as session:
    assert session.lookup(keys) == 0
    assert session.put(keys[0], blocks[0])
    with session.reserve(keys[1:], [terrace.BlockInfo(position=16 * i) for i in range(1, 4)]) as slots:
        for i in range(3):
            slots.block(i)[:] = blocks[1 + i]
        slots.commit()
    assert session.lookup(keys) == 4
    with session.lease(keys) as lease:
        assert [bytes(lease.block(i)) for i in range(4)] == blocks
    assert session.get(keys[2])[0] == blocks[2]
    async def main():
        with await session.lease_async(keys) as lease:
            return bytes(lease.block(3))
    assert asyncio.run(main()) == blocks[3]
print(terrace.__file__)
print(terrace.library_path())
print("\\n".join(sorted({line.split()[5] for line in open("/proc/self/maps") if len(line.split()) > 5 and ".so" in line.split()[5]})))
"""


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-wheel-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        done = subprocess.run(["sh", os.path.join(ROOT, "client", "python", "build_wheel.sh"), "--build", BUILD, "--out", self.folder],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.wheel = done.stdout.split("\n")[-2]
        self.environment = os.path.join(self.folder, "environment")
        for command in ([sys.executable, "-m", "venv", self.environment],
                        [os.path.join(self.environment, "bin", "pip"), "--disable-pip-version-check", "install", "-q", "--no-index", self.wheel]):
            subprocess.run(command, check=True)

    def python(self, *arguments):
        return subprocess.run([os.path.join(self.environment, "bin", "python"), *arguments], cwd="/", env={"PATH": "/usr/bin:/bin"},
                              capture_output=True, text=True, check=False)

    def what_it_is(self):
        """Its name, what it asks of the machine, and what it brings."""
        self.assertRegex(os.path.basename(self.wheel), r"^terrace_kv-[0-9.]+-py3-none-(manylinux_\d+_\d+_\w+\.?)+\.whl$")
        for version in re.findall(r"manylinux_(\d+)_(\d+)_", self.wheel):
            self.assertLessEqual(tuple(map(int, version)), GLIBC)
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("terrace/py.typed", "terrace/libterrace.so.0", "terrace/licenses/libgrpc29"):
            self.assertIn(name, names)
        brought = {os.path.basename(name).split("-")[0] for name in names if name.startswith("terrace_kv.libs/")}
        for name in ("libgrpc", "libgpr", "libprotobuf", "libxxhash", "libisal"):
            self.assertTrue(any(b.startswith(name) for b in brought), (name, brought))
        self.assertFalse([name for name in names if "__pycache__" in name or name.startswith("terrace_kv.libs/libc.")])

    def test_it(self):
        self.what_it_is()
        self.assertEqual(glob.glob(os.path.join(ROOT, "client", "python", "*.egg-info")), [])
        with running(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "1MiB") as daemon:
            done = self.python("-c", ENGINE, daemon.address)
            self.assertEqual(done.returncode, 0, done.stderr)
            package, library, *mapped = done.stdout.split()
            for file in (package, library):
                self.assertTrue(file.startswith(self.environment), file)
            self.assertIn(library, mapped)
            for file in mapped:
                if re.search("terrace|grpc|libgpr|protobuf|isal|absl|libcares|libre2", file):
                    self.assertTrue(file.startswith(self.environment), file)
            done = self.python("-m", "terrace", daemon.address)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, "daemon +answers")
        done = self.python("-m", "terrace", daemon.address)
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
