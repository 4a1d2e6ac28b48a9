#!/bin/sh
# safetensors 0.8.0 (PyPI): saving the same tensors with the same metadata gives other bytes each time, if the metadata
# has two keys or more. Their order in the header is by chance, from call to call of one process as well. Tensors are
# in a fixed order, and one key (transformers writes {"format": "pt"} alone) gives the same bytes.
# Guess before the run: the same bytes in every process (some doubt: it may be a hash map), and surely within one.
# Seen, of 64 saves in one process: `keys 1: kinds of file 1`, `keys 2: kinds of file 2`, `keys 3: kinds of file 6`, that
# is all orders, with equal tensors and metadata when they are loaded. What names weights by the hash of their file, as
# a cache's fingerprint or a content store does, takes two saves of the same adapter for two adapters. The chance that
# an order is missing in 64 saves is below 1 in 10,000. Exits 0 if that is so, 1 if it has changed, 2 if the packages
# cannot be had.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip -q install safetensors==0.8.0 numpy==2.3.5 || exit 2
venv/bin/python - <<'END'
import sys

import numpy
import safetensors
from safetensors.numpy import load, save

tensors = {"k_proj": numpy.arange(6, dtype=numpy.float16).reshape(2, 3), "v_proj": numpy.zeros((2, 3), numpy.float32)}
keys = {"format": "pt", "base_model": "m", "rank": "8"}
print("safetensors", safetensors.__version__)
seen = []
for count in range(len(keys) + 1):
    metadata = dict(list(keys.items())[:count])
    files = {save(tensors, metadata=metadata) for _ in range(64)}
    print("keys %d: kinds of file %d" % (count, len(files)))
    seen.append(len(files))
for data in files:
    again = load(data)
    assert all((again[name] == tensors[name]).all() for name in tensors)
    with open("a.safetensors", "wb") as file:
        file.write(data)
    with safetensors.safe_open("a.safetensors", "numpy") as file:
        assert file.metadata() == keys
print("the tensors and the metadata of all are equal; two headers:")
for data in sorted(files)[:2]:
    print(data[8:8 + int.from_bytes(data[:8], "little")].decode().strip()[:80])
sys.exit(0 if seen == [1, 1, 2, 6] else 1)
END
