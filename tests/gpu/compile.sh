#!/bin/sh
# Compiles the CUDA kernels (head dim 128) and the GPU tests, so that a machine without a GPU notices what no
# longer compiles. Exits 77 where there is no nvcc.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
# Two at a time; the assembler without its slower passes, for the code is thrown away.
ls kernels/cuda/*.cu tests/gpu/*.cu | xargs -P 2 -I{} sh -c \
	'nvcc -O1 -Xptxas -O1 -std=c++17 -gencode arch=compute_90,code=sm_90 -I. -Werror all-warnings \
		-Xcompiler -Wall,-Wextra,-Werror -c {} -o /dev/null && echo compiled {} || exit 255'
