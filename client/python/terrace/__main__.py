"""`python -m terrace [ADDRESS]`: the versions, whether a daemon answers, and what to do if not. Exit status 0: it does; 1: it does not."""

from __future__ import annotations

import os
import sys
from typing import Optional

import terrace

ADDRESS = "unix:/run/terrace/terraced.sock"
USAGE = "usage: python -m terrace [ADDRESS]\n\nADDRESS: unix:PATH or 127.0.0.1:PORT; without it $TERRACE_ADDRESS, or " + ADDRESS
# What to do, by the status with which the connection failed.
REMEDIES = {
    terrace.Status.UNAVAILABLE: "Start the daemon (`systemctl start terraced`, or `terraced --socket PATH`), or set TERRACE_ADDRESS to where it "
                                "listens. `terracectl status` says the same from the shell.",
    terrace.Status.DENIED: "Run this as a user of the daemon's group, or change the daemon's option socket_mode.",
    terrace.Status.INVALID: "Give an address of the form unix:PATH or 127.0.0.1:PORT.",
    terrace.Status.UNSUPPORTED: "Run a daemon on this machine, or tunnel to the other's socket.",
    terrace.Status.DEADLINE: "The daemon did not answer in time: see its log and `terracectl status`.",
}
TIMEOUT_S = 2


def row(name: str, value: str) -> None:
    print("%-15s %s" % (name, value))


def library() -> bool:
    """Prints the library's version and file. False: it cannot be loaded, or is another release's."""
    try:
        version = terrace.version()
    except OSError as error:
        row("library", "none")
        print("%s\n\nInstall the wheel (client/python/build_wheel.sh makes it), which brings the library, or set LIBTERRACE to "
              "libterrace.so.0." % error)
        return False
    row("library", "%s, %s" % (version, terrace.library_path()))
    if version.split(".")[:2] != terrace.__version__.split(".")[:2]:
        print("\nThe package and the library are of different releases. Install both from one, and unset LIBTERRACE.")
        return False
    return True


def daemon(address: Optional[str]) -> bool:
    """Prints whether the daemon answers. False: it does not."""
    row("address", address or os.environ.get("TERRACE_ADDRESS") or ADDRESS)
    try:
        terrace.connect(address, timeout=TIMEOUT_S).close()
    except terrace.Error as error:
        row("daemon", "no answer")
        print("%s\n\n%s" % (error, REMEDIES.get(error.status, "See the daemon's log and `terracectl status`.")))
        return False
    row("daemon", "answers")
    return True


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0 if len(arguments) == 1 else 2
    row("terrace", "%s, %s" % (terrace.__version__, os.path.dirname(os.path.abspath(terrace.__file__))))
    return 0 if library() and daemon(arguments[0] if arguments else None) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
