#!/bin/sh
# The device tests over kernels/cuda/device_memory.cu and device_copy.cu themselves, with a driver that is none (fake_driver.cpp): where there
# are CUDA's headers, without a GPU. SANITIZE: as in -fsanitize. Exits 77 without the headers.
set -eu
cd "$(dirname "$0")/../.."
include=${CUDA_HOME:-/usr/local/cuda}/include
[ -f "$include/cudaTypedefs.h" ] || { echo "skipped: no headers of CUDA here"; exit 77; }
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-D_GNU_SOURCE -I. -O1 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror ${SANITIZE:+-fsanitize=$SANITIZE}"
for source in sim_stream sim_runtime gpu/device gpu/device_rig; do
	gcc -std=gnu11 $flags -c "tests/$source.c" -o "$build/$(basename $source).o"
done
for source in kernels/cuda/device_memory.cu kernels/cuda/device_copy.cu tests/gpu/fake_driver.cpp; do
	g++ -std=c++17 $flags -Wno-missing-field-initializers -isystem "$include" -x c++ -c "$source" -o "$build/$(basename "$source").o"
done
link="g++ ${SANITIZE:+-fsanitize=$SANITIZE}"
$link -shared -o "$build/libcudart.so.13" "$build/sim_runtime.o" "$build/sim_stream.o" -lpthread
$link -shared -o "$build/libterrace_cuda.so.0" "$build/device_memory.cu.o" "$build/device_copy.cu.o" "$build/fake_driver.cpp.o" \
	"$build/sim_stream.o" -lpthread
$link -o "$build/device" "$build/device.o" "$build/device_rig.o" -ldl -lpthread
export LD_LIBRARY_PATH="$build"
echo "by the kernel"
"$build/device"
for batch in yes no refused; do
	echo "by copy engines, batches: $batch"
	FAKE_DRIVER_MAJOR=8 FAKE_DRIVER_BATCH=$batch "$build/device"
done
FAKE_DRIVER_LOST=20 "$build/device" lost
FAKE_DRIVER_LOST=20 FAKE_DRIVER_MAJOR=8 "$build/device" lost
