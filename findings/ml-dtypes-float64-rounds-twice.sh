#!/bin/sh
# ml_dtypes 0.6.0 (PyPI): an array of float64 becomes FP8 by way of float32, so it is rounded twice; the constructor of
# one number rounds once. The same number gives two results. 1.0625 lies midway between 1 and 1.125, so 1.0625 + 2^-40
# is nearer to 1.125: the constructor says 1.125, astype says 1.
# Guess before the run: both round once, to the nearest.
# Seen, for the float64 just beside each midpoint of two neighbours:
#     float8_e4m3fn: 252 numbers, wrong by astype 126, by the constructor 0
#     float8_e5m2: 246 numbers, wrong by astype 123, by the constructor 0
#     float4_e2m1fn: 14 numbers, wrong by astype 7, by the constructor 0
#     bfloat16: 65278 numbers, wrong by astype 32639, by the constructor 32639
# So a NumPy reference whose scales or products are float64, NumPy's default, is off by a whole step beside a kernel
# that rounds once, now and then, and differs from a loop over its own elements. Exits 0 if that is so, 1 if it has
# changed, 2 if the packages cannot be had.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip -q install ml-dtypes==0.6.0 numpy==2.3.5 || exit 2
venv/bin/python - <<'END'
import sys

import ml_dtypes
import numpy

print("ml_dtypes", ml_dtypes.__version__, "numpy", numpy.__version__)
x = 1.0625 + 2.0 ** -40
one = ml_dtypes.float8_e4m3fn(x), numpy.array([x]).astype(ml_dtypes.float8_e4m3fn)[0]
print("1.0625 + 2^-40 as float8_e4m3fn: constructor %s, astype %s" % one)
seen = [tuple(map(float, one))]
for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "bfloat16"):
    dtype = getattr(ml_dtypes, name)
    integer = numpy.uint16 if name == "bfloat16" else numpy.uint8
    codes = numpy.arange(16 if name == "float4_e2m1fn" else 2 ** (8 * integer().itemsize), dtype=integer)
    with numpy.errstate(invalid="ignore"):  # NaN is among them
        values = codes.view(dtype).astype(numpy.float64)
    values = numpy.unique(values[numpy.isfinite(values) & (values >= 0)])
    low, high = values[:-1], values[1:]
    midway = (low + high) / 2  # exact: these have far fewer bits than a float64
    numbers = numpy.concatenate([numpy.nextafter(midway, 0), numpy.nextafter(midway, numpy.inf)])
    nearest = numpy.concatenate([low, high])
    by_astype = numbers.astype(dtype).astype(numpy.float64)
    by_constructor = numpy.array([float(dtype(n)) for n in numbers.tolist()])
    wrong = int((by_astype != nearest).sum()), int((by_constructor != nearest).sum())
    print("%s: %d numbers, wrong by astype %d, by the constructor %d" % ((name, len(numbers)) + wrong))
    seen.append((len(numbers),) + wrong)
expected = [(1.125, 1.0), (252, 126, 0), (246, 123, 0), (14, 7, 0), (65278, 32639, 32639)]
sys.exit(0 if seen == expected else 1)
END
