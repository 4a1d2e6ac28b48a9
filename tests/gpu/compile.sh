#!/bin/sh
# Compiles the CUDA kernels (head dim 128) and the GPU tests, so that a machine without a GPU notices what no
# longer compiles. Exits 77 where there is no nvcc.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
for source in kernels/cuda/*.cu tests/gpu/*.cu; do
	nvcc -O1 -std=c++17 -gencode arch=compute_90,code=sm_90 -I. -Werror all-warnings \
		-Xcompiler -Wall,-Wextra,-Werror -c "$source" -o "$build/object.o"
	echo "compiled $source"
done
