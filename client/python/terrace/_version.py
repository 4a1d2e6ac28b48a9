"""The package's version. It is the library's: both come from one release, and tests/e2e/test_python.py compares them."""

__version__ = "0.1.0"
