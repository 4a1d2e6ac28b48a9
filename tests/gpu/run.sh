#!/bin/sh
# Builds the CUDA kernels and their tests with nvcc and gcc alone and runs them on this machine's GPU:
#   tests/gpu/run.sh [build] [test] [check] [bench] [baseline]      (all of them when none is named)
#   tests/gpu/run.sh build device                                   the GPUs' memory alone: its tests, then its figures
# test: correctness; check: compute-sanitizer; bench, baseline: JSON lines, to $OUT/bench.jsonl too. ALL=1
# builds every head dim, PORTABLE=1 the code for devices without bulk copies; BUILD names the folder to build in.
# Exits 77 where there is no nvcc or no GPU.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "skipped: no nvcc"; exit 77; }
nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no GPU"; exit 77; }
build=${BUILD:-$(mktemp -d)}
steps=${*:-build test check bench baseline}
results=${OUT:-$build}/bench.jsonl

# What a file's instructions need: see kernels/CMakeLists.txt.
instructions() {
	case $1 in
	*_avx2.c) echo "-mavx2 -mfma -mf16c" ;;
	*_avx512.c) echo "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c" ;;
	esac
}

compile() {
	flags="-O3 -std=c++17 -I. -Xcompiler -Wall,-Wextra,-fPIC -lineinfo"
	flags="$flags ${ALL:+-DTERRACE_CUDA_ALL} ${PORTABLE:+-DTERRACE_CUDA_PORTABLE}"
	ls kernels/cuda/*.cu tests/gpu/*.cu | xargs -P "$(nproc)" -I{} sh -c \
		"case {} in
		kernels/cuda/extend_*) arch=90a define=-DTERRACE_CUDA_90A ;;
		*) arch=90 define= ;;
		esac
		nvcc $flags \$define -gencode arch=compute_\$arch,code=sm_\$arch -c {} -o $build/\$(echo {} | tr / _).o || exit 255"
	for source in kernels/*.c; do
		[ "$source" = kernels/layout_id.c ] && continue # wants xxhash, which nothing here does
		gcc -std=gnu11 -D_GNU_SOURCE -O3 -fPIC -ffp-contract=off -Wall -Wextra $(instructions "$source") -I. \
			-c "$source" -o "$build/$(basename "$source").o"
	done
	for program in attend codec copy merge extend device_graph bench; do
		nvcc -o "$build/$program" "$build"/tests_gpu_${program}*.o "$build"/kernels_cuda_*.o \
			"$build"/[a-z0-9]*.c.o
	done
	# What loads the plugin: as libterrace does it.
	nvcc -shared -o "$build/libterrace_cuda.so.0" "$build"/kernels_cuda_*.o "$build"/[a-z0-9]*.c.o
	gcc -std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -I. -o "$build/device" tests/gpu/device.c tests/gpu/device_rig.c -ldl -lpthread
}

# The plugin, and CUDA's runtime beside it.
with_plugin() {
	LD_LIBRARY_PATH="$build:$(dirname "$(command -v nvcc)")/../lib64:${LD_LIBRARY_PATH:-}" "$@"
}

for step in $steps; do
	case $step in
	build) compile ;;
	test) "$build/codec" && "$build/codec" large && "$build/merge" && "$build/copy" && "$build/attend" &&
		"$build/extend" && with_plugin "$build/device" && "$build/device_graph" ;;
	check)
		for tool in memcheck racecheck synccheck; do
			compute-sanitizer --tool $tool --error-exitcode 1 "$build/attend" small
			for program in codec merge copy extend; do
				compute-sanitizer --tool $tool --error-exitcode 1 "$build/$program" small
			done
		done ;;
	device)
		with_plugin "$build/device"
		"$build/device_graph"
		"$build/bench" device | tee -a "$results" ;;
	bench) "$build/bench" | tee -a "$results" ;;
	baseline)
		python3 tests/gpu/sdpa.py | tee -a "$results"
		python3 tests/gpu/sdpa_extend.py | tee -a "$results" ;;
	*) echo "no such step: $step" >&2; exit 2 ;;
	esac
done
