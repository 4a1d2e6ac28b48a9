"""Names the wheel. With the library in it (build_wheel.sh puts it there) it is of one platform and of any Python 3; without, of all platforms."""

import os

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "terrace", "libterrace.so.0")


class Package(Distribution):
    def has_ext_modules(self):
        return os.path.exists(LIBRARY)


class Wheel(bdist_wheel):
    def get_tag(self):
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if os.path.exists(LIBRARY) else (python, abi, platform)


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})
