#!/bin/sh
# Builds the CUDA kernels and their tests with nvcc and gcc alone and runs them on this machine's GPU:
#   tests/gpu/run.sh [build] [test] [check] [bench] [baseline]      (all of them when none is named)
# test: correctness; check: compute-sanitizer; bench, baseline: JSON lines, to $OUT/bench.jsonl too. ALL=1
# builds every head dim; BUILD names the folder to build in. Exits 77 where there is no nvcc or no GPU.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "skipped: no nvcc"; exit 77; }
nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no GPU"; exit 77; }
build=${BUILD:-$(mktemp -d)}
steps=${*:-build test check bench baseline}
results=${OUT:-$build}/bench.jsonl

compile() {
	flags="-O3 --split-compile=0 -std=c++17 -gencode arch=compute_90,code=sm_90 -I. -Xcompiler -Wall,-Wextra"
	flags="$flags ${ALL:+-DTERRACE_CUDA_ALL}"
	for source in kernels/cuda/*.cu tests/gpu/*.cu; do
		nvcc $flags -lineinfo -c $source -o "$build/$(echo $source | tr / _).o" &
	done
	for source in format hadamard half codebook int4 reciprocal order codec chunk; do
		gcc -std=gnu11 -O3 -ffp-contract=off -Wall -Wextra -I. -c kernels/$source.c \
			-o "$build/$source.c.o"
	done
	wait
	for program in attend codec bench; do
		nvcc -o "$build/$program" "$build/tests_gpu_$program.cu.o" "$build"/kernels_cuda_*.o \
			"$build"/[a-z0-9]*.c.o
	done
}

for step in $steps; do
	case $step in
	build) compile ;;
	test) "$build/codec" && "$build/attend" ;;
	check)
		for tool in memcheck racecheck synccheck; do
			compute-sanitizer --tool $tool --error-exitcode 1 "$build/attend" small
			compute-sanitizer --tool $tool --error-exitcode 1 "$build/codec" small
		done ;;
	bench) "$build/bench" | tee -a "$results" ;;
	baseline) python3 tests/gpu/sdpa.py | tee -a "$results" ;;
	*) echo "no such step: $step" >&2; exit 2 ;;
	esac
done
