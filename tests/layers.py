#!/usr/bin/env python3
"""Which folder may use which: tests/layers.py source | objects BUILD | tighten BUILD

layers.txt names, for each folder, the folders that it may use. `source` checks the #includes and counts what grows unnoticed (long lines, wide
functions, headers that everything includes, crowded folders). `objects` reads the symbols of a plain build with nm: a folder may use a function
or a variable of those folders only, and defines none for the tests alone. What broke the rules when they were written stands in
layers.baseline, which may only shrink: a breach that is not there fails, and so does an entry that is no longer true. `tighten` rewrites the
file, and refuses to let anything grow.
"""
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ("proto", "kernels", "store", "eviction", "daemon", "client")
LEAVES = {"store/status.h", "store/clock.h", "store/device.h", "kernels/format.h", "daemon/block/stat_row.h"}  # any part may include these
COLUMNS, PARAMETERS, REACH = 120, 7, 25


def tracked():
    names = subprocess.check_output(["git", "-c", "safe.directory=" + ROOT, "ls-files"], cwd=ROOT, text=True).split("\n")
    return [n for n in names if n and os.path.isfile(os.path.join(ROOT, n))]


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def folder_of(name):
    return name if name == "daemon/main.c" else os.path.dirname(name)


def layers_read():
    """{folder: folders that it may use}, with all that these may use below them."""
    direct = {}
    for line in text_of("tests/layers.txt").split("\n"):
        line = line.split("#")[0].strip()
        if line:
            folder, below = line.split(":")
            direct[folder.strip()] = below.split()
    for folder, below in direct.items():
        for other in below:
            if other not in direct:
                sys.exit(f"tests/layers.txt: {folder} may use {other}, which has no line of its own")
    closed = {}

    def close(folder, seen):
        for other in direct[folder]:
            if other not in seen:
                seen.add(other)
                close(other, seen)
        return seen

    for folder in direct:
        closed[folder] = close(folder, {folder})
    return closed


def includes_of(name):
    return re.findall(r'^#include "([^"]+)"', text_of(name), re.M)


def source_breaches(files, layers):
    """{(user, used): 1} of includes that layers.txt does not allow."""
    found = {}
    for name in files:
        for used in includes_of(name):
            if "/" not in used or used in LEAVES or used.split("/")[0] not in PARTS:
                continue
            if folder_of(used) not in layers[folder_of(name)]:
                found[("include", name, used)] = 1
    return found


def object_symbols(build):
    """{source: (defined, undefined)} of the plain build's objects, those of the tests left out."""
    symbols = {}
    for top in PARTS:
        for path, _, names in os.walk(os.path.join(build, top)):
            for n in names:
                if not n.endswith(".c.o"):
                    continue
                full = os.path.join(path, n)
                inner = re.sub(r"CMakeFiles/[^/]+\.dir/", "", os.path.relpath(full, build))[:-2]
                inner = os.path.normpath(inner.replace("__/", "../"))
                if not os.path.isfile(os.path.join(ROOT, inner)):
                    continue  # of a source that has moved since this folder was first built
                defined, undefined = set(), set()
                for line in subprocess.check_output(["nm", "--format=posix", full], text=True).split("\n"):
                    part = line.split()
                    if len(part) >= 2:
                        (undefined if part[1] in "Uw" else defined if part[1].isupper() else set()).add(part[0])
                if inner in symbols:
                    defined |= symbols[inner][0]
                    undefined |= symbols[inner][1]
                symbols[inner] = (defined, undefined)
    return symbols


def object_uses(symbols):
    """{user: {used: names}} between source files."""
    owner = {}
    for source, (defined, _) in symbols.items():
        for name in defined:
            owner.setdefault(name, set()).add(source)
    uses = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, (_, undefined) in symbols.items():
        for name in undefined:
            owners = owner.get(name, set()) - {source}
            if len(owners) == 1:
                uses[source][next(iter(owners))].add(name)
    return uses


def object_breaches(uses, layers):
    found = {}
    for source, used in uses.items():
        for other, names in used.items():
            if folder_of(source) in layers and folder_of(other) in layers and folder_of(other) not in layers[folder_of(source)]:
                found[("call", source, other)] = len(names)
    return found


def object_unused(symbols):
    """{source and name: 1} of what a source defines for others, and uses nowhere itself, while no object but the tests' uses it."""
    used = set().union(*(undefined for _, undefined in symbols.values()))
    found = {}
    for source, (defined, _) in symbols.items():
        if source.split("/")[0] in ("kernels", "proto") or "/examples/" in source:
            continue
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text_of(source), flags=re.S)
        for name in defined - used:
            if name != "main" and not name.startswith("terrace_") and len(re.findall(r"\b%s\b" % re.escape(name), text)) < 2:
                found[("unused", source, name)] = 1
    return found


def largest_circle(uses, part):
    """Objects of the part in the largest set that all reach each other (Tarjan, without recursion)."""
    graph = {s: [o for o in used if o.startswith(part + "/")] for s, used in uses.items() if s.startswith(part + "/")}
    index, low, stack, on, best, count = {}, {}, [], set(), 0, 0
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = count
        count += 1
        stack.append(root)
        on.add(root)
        while work:
            node, edges = work[-1]
            for other in edges:
                if other not in index:
                    index[other] = low[other] = count
                    count += 1
                    stack.append(other)
                    on.add(other)
                    work.append((other, iter(graph.get(other, []))))
                    break
                if other in on:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    size = 0
                    while True:
                        other = stack.pop()
                        on.discard(other)
                        size += 1
                        if other == node:
                            break
                    best = max(best, size)
    return best


def wide_functions(name):
    """Functions that a header declares with more than PARAMETERS parameters."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^#[^\n]*", " ", text_of(name), flags=re.S | re.M)
    count = 0
    for match in re.finditer(r"\b\w+\(", text):
        depth, commas, at = 1, 0, match.end()
        while at < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            commas += text[at] == "," and depth == 1
            at += 1
        count += commas + 1 > PARAMETERS and text[at:].lstrip().startswith((";", "__attribute__"))
    return count


PUBLIC = {"client/include/terrace.h", "client/include/terrace_kernels.h"}


def header_reach(files):
    """{header: .c files that include it, directly or through others}."""
    direct = {f: [i for i in includes_of(f) if "/" in i] for f in files}
    reach = collections.defaultdict(set)
    for source in files:
        if not source.endswith(".c"):
            continue
        seen, todo = set(), list(direct[source])
        while todo:
            header = todo.pop()
            if header not in seen and header in direct:
                seen.add(header)
                todo += direct[header]
        for header in seen:
            reach[header].add(source)
    return {h: len(s) for h, s in reach.items()}


def source_bounds(files):
    bounds = {}
    bounds["columns over %d" % COLUMNS] = sum(len(line.expandtabs(8)) > COLUMNS for f in files for line in text_of(f).split("\n"))
    bounds["functions of more than %d parameters" % PARAMETERS] = sum(
        wide_functions(f) for f in files if f.endswith(".h") and not f.startswith("kernels/") and f not in PUBLIC)
    public = LEAVES | PUBLIC
    wide = {h: n for h, n in header_reach(files).items() if n > REACH and h not in public}
    bounds["headers that reach more than %d files" % REACH] = len(wide)
    bounds["files that the widest header reaches"] = max(wide.values(), default=0)
    crowd = collections.Counter(folder_of(f) for f in files)
    bounds["files in the fullest folder"] = max(crowd.values())
    return bounds


def object_bounds(uses):
    return {"largest circle of " + part: largest_circle(uses, part) for part in PARTS}


def baseline_read():
    entries = {}
    for line in text_of("tests/layers.baseline").split("\n"):
        if line and not line.startswith("#"):
            kind, rest = line.split(" ", 1)
            if kind == "bound":
                name, value = rest.rsplit(" ", 1)
                entries[("bound", name)] = int(value)
            else:
                user, used, count = rest.split()
                entries[(kind, user, used)] = int(count)
    return entries


def baseline_write(entries):
    with open(os.path.join(ROOT, "tests/layers.baseline"), "w", encoding="utf-8") as f:
        f.write("# What breaks tests/layers.txt today, and bounds of what grows unnoticed: it may only shrink.\n"
                "# include USER USED 1; call USER USED names; bound NAME number. Rewritten by `python3 tests/layers.py tighten BUILD`.\n")
        for key in sorted(entries, key=lambda k: (k[0] != "bound", k)):
            f.write(" ".join(key) + " %d\n" % entries[key])


def compare(found, known, kinds):
    words = []
    for key in sorted(set(found) | {k for k in known if k[0] in kinds}):
        now, then = found.get(key, 0), known.get(key, 0)
        if key[0] == "bound":
            what = key[1]
        elif key[0] == "unused":
            words.append(f"{key[1]} defines {key[2]}   <- only tests use it: what a test needs stands with the tests")
            continue
        else:
            what = f"{key[1]} {'includes' if key[0] == 'include' else 'uses'} {key[2]}"
        if now > then and key[0] == "bound":
            words.append(f"{what}: {now}   <- at most {then}")
        elif now > then:
            words.append(f"{what} ({now})   <- tests/layers.txt does not allow it" + (f", the baseline {then}" if then else ""))
        elif now < then:
            words.append(f"{what}: {now}, better than the baseline's {then}   <- run python3 tests/layers.py tighten BUILD, and commit")
    return words


def main(arguments):
    if not arguments or arguments[0] not in ("source", "objects", "tighten") or (arguments[0] == "source") != (len(arguments) == 1):
        sys.exit(__doc__.split("\n")[0])
    layers = layers_read()
    files = [f for f in tracked() if f.split("/")[0] in PARTS and f.endswith((".c", ".h")) and "/examples/" not in f]
    unknown = sorted({folder_of(f) for f in files} - set(layers))
    if unknown:
        sys.exit(f"tests/layers.txt has no line for {', '.join(unknown)}: say what it may use")
    found, kinds = {}, set()
    if arguments[0] != "objects":
        found.update(source_breaches(files, layers))
        found.update({("bound", k): v for k, v in source_bounds(files).items()})
    if arguments[0] != "source":
        symbols = object_symbols(os.path.abspath(arguments[1]))
        uses = object_uses(symbols)
        if not uses:
            sys.exit(f"{arguments[1]}: no objects of a build there")
        found.update(object_breaches(uses, layers))
        found.update(object_unused(symbols))
        found.update({("bound", k): v for k, v in object_bounds(uses).items()})
    kinds = {"source": {"include"}, "objects": {"call", "unused"}, "tighten": set()}[arguments[0]]
    known = baseline_read() if os.path.exists(os.path.join(ROOT, "tests/layers.baseline")) else {}
    words = compare(found, {k: v for k, v in known.items() if k[0] in kinds or k in found}, kinds)
    if arguments[0] == "tighten":
        grown = [w for w in words if "better than" not in w] if known else []
        if grown:
            sys.exit("\n".join(grown))
        baseline_write(found)
        return 0
    for word in words:
        print(word)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
