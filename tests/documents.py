#!/usr/bin/env python3
"""Rules of the documents: how long each may be, how long all of them, and that a relative link leads to a file, and to
a heading if it names one; that warnings of what a daemon logs of its cluster have lines in the cluster's runbook. Prints
each breach as `file: words`, and exits 1 if there is any. `documents.py [FOLDER]`: the root of the tree, without it
this one.

Pages of results are bounded by their rows alone; the changelog by its lines.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
KIB = 1024
BYTES_MAX = {"README.md": 12 * KIB, "daemon/README.md": 12 * KIB}
BYTES_MAX_OTHERS = 8 * KIB
# 18,000; 1,500 for the blocks of any model (opaque layouts, units, MLA, plan); 1,500 for TCP, certificates, tenants, members; 500 for blocks that
# go from member to member, and for packages
WORDS_MAX = 21500
CHANGELOG_LINES_MAX = 200
RESULTS = "tests/bench/results/"

LINK = re.compile(r"\]\(([^)\s]+)\)")
EVENT = re.compile(r'\blog_(?:warn|error)\(\s*"(\w+)"')
RUNBOOK, RUNBOOK_OF = "deploy/CLUSTER.md", ("daemon/peers", "daemon/membership", "daemon/secrets")
MISTAKES = {"grpc_batch_refused"}  # of the daemon itself, which then ends
ELSEWHERE = re.compile(r"[a-z]+:")


def documents():
    told = subprocess.run(["git", "-c", "safe.directory=" + ROOT, "-C", ROOT, "ls-files", "--cached", "--others",
                           "--exclude-standard", "*.md"], stdout=subprocess.PIPE, check=True).stdout.decode()
    texts = {}
    for name in told.split("\n"):
        if name and os.path.exists(os.path.join(ROOT, name)):
            with open(os.path.join(ROOT, name), encoding="utf-8") as page:
                texts[name] = page.read()
    return texts


def headings(text):
    """The anchors of a page, as they are made of its headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def lengths(texts):
    counted = {name: text for name, text in texts.items() if name != "CHANGELOG.md" and not name.startswith(RESULTS)}
    for name, text in counted.items():
        most, size = BYTES_MAX.get(name, BYTES_MAX_OTHERS), len(text.encode())
        if size > most:
            yield f"{name}: {size} bytes   <- {most} at most"
    words = sum(len(text.split()) for text in counted.values())
    if words > WORDS_MAX:
        yield f"all documents: {words} words   <- {WORDS_MAX} at most"
    lines = texts.get("CHANGELOG.md", "").count("\n")
    if lines > CHANGELOG_LINES_MAX:
        yield f"CHANGELOG.md: {lines} lines   <- {CHANGELOG_LINES_MAX} at most"


def links(texts):
    for name, text in texts.items():
        for target in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
            if ELSEWHERE.match(target):
                continue
            path, _, anchor = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            if not os.path.exists(os.path.join(ROOT, to)):
                yield f"{name}: ({target})   <- leads to no file"
            elif anchor and anchor not in headings(texts.get(to, "")):
                yield f"{name}: ({target})   <- leads to no heading"


def runbook(texts):
    for folder in RUNBOOK_OF if RUNBOOK in texts else ():
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            with open(os.path.join(ROOT, folder, name), encoding="utf-8") as source:
                events = EVENT.findall(source.read())
            for event in events:
                if event not in MISTAKES and f"`{event}`" not in texts[RUNBOOK]:
                    yield f"{RUNBOOK}: event={event} of {folder}/{name}   <- has no line"


def main():
    texts = documents()
    breaches = [*lengths(texts), *links(texts), *runbook(texts)]
    print("\n".join(breaches), end="\n" if breaches else "")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
