#!/bin/sh
# Compiles the CUDA kernels and the GPU tests, so that a machine without a GPU notices what no longer compiles: `compile.sh [rest]`.
# Of what has a file for each format, those of which the others are made: every kind of fragments (attend) and of rows that are decoded
# (extend). Some are compiled for compute capability 8.0 as well, which has other paths in them. `rest`: the other formats, which instantiate
# the same templates. Exits 77 where there is no nvcc.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
# What has a file for each format is compiled several files at once: most of it is the same headers.
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
format='_(bf16|fp|int4|tq)'
first='/(attend_(bf16|fp8|int4|tq3|tq4)|extend_(int4|fp8_tq3))\.cu$'
if [ "${1-}" = rest ]; then pick="grep -vE"; else pick="grep -E"; fi
number=0
for source in $(ls kernels/cuda/*.cu | grep -E "/(attend|extend)$format" | $pick "$first"); do
	number=$((number + 1))
	kind=$(basename "$source")
	echo "#include \"$source\"" >>"$units/${kind%%_*}_$((number % 2)).cu"
done
# Without the slower passes, for the code is thrown away.
compile='nvcc -O1 -Xcicc -O1 -Xptxas -O0 -std=c++17 -I. -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -o /dev/null'
if [ "${1-}" = rest ]; then
	ls "$units"/*.cu | xargs -P 2 -I{} sh -c "$compile -gencode arch=compute_90,code=sm_90 -c {} && echo compiled {} || exit 255"
	$compile -gencode arch=compute_80,code=sm_80 -c kernels/cuda/extend_portable.cu
	exit
fi
# The products of warpgroups exist for sm_90a alone. One format stands for all: they differ in how they are decoded.
$compile -gencode arch=compute_90a,code=sm_90a -DTERRACE_CUDA_90A -c kernels/cuda/extend_tq4.cu
for source in attend_tq4 copy encode; do
	$compile -gencode arch=compute_80,code=sm_80 -c kernels/cuda/$source.cu
done
# Two at a time, the long ones first.
ls "$units"/*.cu $(ls kernels/cuda/*.cu tests/gpu/*.cu | grep -vE "kernels/cuda/(attend|extend)$format") | sort -r |
	xargs -P 2 -I{} sh -c "$compile -gencode arch=compute_90,code=sm_90 -c {} && echo compiled {} || exit 255"
