#!/bin/sh
# Compiles the CUDA kernels and the GPU tests, so that a machine without a GPU notices what no longer compiles: `compile.sh [rest]`.
# Half of the time is the headers: so several files are one unit, where their names do not clash, what the CPU runs is looked at and not
# compiled, and files without kernels are left to g++, which has them in half a second. Of what has a file for each format, two stand for
# the others: attend_fp8_tq3 for two kinds of fragments, tq4 for the portable paths (compute capability 8.0) and the products of warpgroups.
# `rest` compiles every file by itself with nvcc, and extend_portable for 8.0. Exits 77 where there is no nvcc.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
# Without the slower passes, for the code is thrown away.
compile='nvcc -O0 -Xcicc -O1 -Xptxas -O0 -std=c++17 -I. -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fsyntax-only -o /dev/null'
at_90='-gencode arch=compute_90,code=sm_90'
at_80='-gencode arch=compute_80,code=sm_80'

# unit NAME FILE...
unit() {
	name=$1
	shift
	printf '#include "%s"\n' "$@" >"$units/$name.cu"
}

# Commands, a line each, two at a time.
two_at_a_time() {
	xargs -P 2 -d '\n' -I{} sh -c '{} || exit 255'
}

if [ "${1-}" = rest ]; then
	{
		echo "$compile $at_80 -c kernels/cuda/extend_portable.cu"
		ls -S kernels/cuda/*.cu tests/gpu/*.cu | sed "s|.*|$compile $at_90 -c & \&\& echo compiled &|"
	} | two_at_a_time
	exit
fi
unit codes kernels/cuda/encode.cu kernels/cuda/encode_atom.cu kernels/cuda/encode_tile.cu
unit atoms kernels/cuda/decode.cu kernels/cuda/decode_atom.cu kernels/cuda/code.cu kernels/cuda/copy.cu kernels/cuda/sums.cu kernels/cuda/repack.cu
unit tiles kernels/cuda/decode_tile.cu kernels/cuda/merge.cu kernels/cuda/extend_prepare.cu
unit plans kernels/cuda/extend_merge.cu kernels/cuda/attend_plan.cu
unit attend tests/gpu/attend*.cu
unit bench tests/gpu/bench*.cu
unit extend tests/gpu/extend*.cu
# nvcc says where its headers are: what is found on PATH may be a script that starts it.
include=$(nvcc -dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ INCLUDES="-I\([^"]*\)".*/\1/p')
[ -f "$include/cuda_runtime.h" ] || { echo "no headers where nvcc says: '$include'"; exit 1; }
{
	echo "$compile $at_80 -c kernels/cuda/attend_tq4.cu"
	# The products of warpgroups exist for sm_90a alone.
	echo "$compile -gencode arch=compute_90a,code=sm_90a -DTERRACE_CUDA_90A -c kernels/cuda/extend_tq4.cu"
	echo "$compile $at_90 -c kernels/cuda/attend_fp8_tq3.cu"
	ls "$units"/*.cu | sed "s|.*|$compile $at_90 -c & \&\& echo compiled &|"
	for source in $(grep -LE '__global__|__device__|<<<|_kernel.cuh|_launch.cuh|_portable.cuh' kernels/cuda/*.cu tests/gpu/*.cu); do
		echo "g++ -std=c++17 -I. -isystem $include -Wall -Wextra -Werror -Wno-missing-field-initializers -x c++ -fsyntax-only $source"
	done
} | two_at_a_time
