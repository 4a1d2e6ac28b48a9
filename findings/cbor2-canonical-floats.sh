#!/bin/sh
# cbor2 (PyPI): canonical=True gives other bytes in 6.3.0 than in 5.8.0 for 2,048 numbers: those floats from 32768 to
# 65504, and their negatives, that fit in a half. 5.8.0 writes them in 5 bytes, as if the halves ended below 32768;
# 6.3.0 in 3, which is the shortest form and what RFC 8949 calls deterministic.
# Guess before the run: the same bytes, as that is what the option is for; after one number differed, 65504.0: that
# number and -65504.0 alone, the ends of the range.
# Seen: `halves that differ: 2048 of 65536, from 32768.0 to 65504.0`, `65504.0: 5.8.0 fa477fe000, 6.3.0 f97bff`, and the
# same bytes for what vLLM's sha256_cbor hashes (bytes, integers, strings, None). A hash over canonical CBOR that has
# floats, say a model's configuration with 40960.0, names something else after the update. Exits 0 if that is so, 1 if
# it has changed, 2 if the packages cannot be had.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
python3 -m venv venv || exit 2
for version in 5.8.0 6.3.0; do venv/bin/pip -q install --no-deps --target $version cbor2==$version || exit 2; done
cat >encode.py <<'END'
import struct

import cbor2

values = [struct.unpack("<e", struct.pack("<H", code))[0] for code in range(65536)]
block = (bytes(32), (0, 23, 24, 255, 256, 65535, 65536, 2 ** 31), (("lora", "name", "path"), ("mm", "image", -3)), None)
for value in values + [40960.0, block]:
    print(cbor2.dumps(value, canonical=True).hex())
END
for version in 5.8.0 6.3.0; do PYTHONPATH=$version venv/bin/python encode.py >$version.txt || exit 2; done
venv/bin/python - <<'END'
import struct
import sys

old, new = [open(version + ".txt").read().split() for version in ("5.8.0", "6.3.0")]
differ = [struct.unpack("<e", struct.pack("<H", code))[0] for code in range(65536) if old[code] != new[code]]
low, high = min(map(abs, differ), default=None), max(map(abs, differ), default=None)
print("halves that differ: %d of 65536, from %s to %s" % (len(differ), low, high))
print("65504.0: 5.8.0 %s, 6.3.0 %s" % (old[0x7bff], new[0x7bff]))
print("40960.0: 5.8.0 %s, 6.3.0 %s" % (old[-2], new[-2]))
print("vLLM's tuple of a block: %s" % ("the same" if old[-1] == new[-1] else "differs"))
same = (len(differ), low, high, old[0x7bff], new[0x7bff]) == (2048, 32768.0, 65504.0, "fa477fe000", "f97bff")
sys.exit(0 if same and old[-2] != new[-2] and old[-1] == new[-1] else 1)
END
