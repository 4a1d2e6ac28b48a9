#!/usr/bin/env python3
"""Words that the project no longer uses, each with the term that has its place: words.txt, which says how it is read.
Prints each breach as `file:line: name: word   <- say: term`, and exits 1 if there is any. `words.py [FOLDER]`: the root of the tree, without it
this one.

A word is found as a whole part of a name (`door` in door_create, DOOR_MAX, `event=door_full`, terrace_door_total, doorCreate), in code, in strings
and in the documents; of a line that is marked `any` in comments and sentences, too.
"""
import fnmatch
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
FOLDERS = ("daemon/", "client/", "store/", "eviction/", "proto/", "deploy/")
ENDS = (".c", ".h", ".proto", ".py", ".md", ".sh", ".yml", ".json", ".conf", ".txt", ".in")
OTHERS = ("README.md", "tests/README.md")
CODE = (".c", ".h", ".proto", ".py")

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)
INCLUDE = re.compile(r"^\s*#\s*include")


def rules(text):
    """{word: (term, any)} and [(file pattern, words, names)] of words.txt."""
    words, spared = {}, []
    for line in text.split("\n"):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        if fields[0] == "spare":
            spared.append((fields[1], fields[2], fields[3:]))
        else:
            every = fields[-1] == "any"
            words[fields[0]] = (" ".join(fields[1:-1] if every else fields[1:]), every)
    return words, spared


def files():
    told = subprocess.run(["git", "-c", "safe.directory=" + ROOT, "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                          stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    for name in sorted(set(told)):
        wanted = name in OTHERS or (name.startswith(FOLDERS) and name.endswith(ENDS))
        if wanted and os.path.exists(os.path.join(ROOT, name)):
            with open(os.path.join(ROOT, name), encoding="utf-8") as text:
                yield name, text.read()


def is_spared(spared, name, word, identifier):
    return any(fnmatch.fnmatch(name, pattern) and of in (word, "*") and (not names or any(fnmatch.fnmatch(identifier, n) for n in names))
               for pattern, of, names in spared)


def sentences(name, text):
    """Where in the text a name of one part is a word of a sentence: spans of comments, or everything of what is no code."""
    if name.endswith((".c", ".h", ".proto")):
        return [m.span() for m in COMMENT.finditer(text)]
    return [(0, len(text))]


def breaches(name, text, words, spared):
    spans, at = sentences(name, text), 0
    starts = [m.end() for m in re.finditer(r"\n", text)]
    lines, line = text.split("\n"), 0
    for m in NAME.finditer(text):
        while line < len(starts) and starts[line] <= m.start():
            line += 1
        while at < len(spans) and spans[at][1] <= m.start():
            at += 1
        found = [part.lower() for part in PART.findall(m[0]) if part.lower() in words]
        if not found or INCLUDE.match(lines[line]):
            continue
        sentence = at < len(spans) and spans[at][0] <= m.start() and len(PART.findall(m[0])) == 1
        for word in found:
            term, every = words[word]
            if (every or not sentence) and not is_spared(spared, name, word, m[0]):
                yield f"{name}:{line + 1}: {m[0]}: {word}   <- say: {term}"


def main():
    with open(os.path.join(ROOT, "tests", "words.txt"), encoding="utf-8") as page:
        words, spared = rules(page.read())
    found = [breach for name, text in files() for breach in breaches(name, text, words, spared)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
