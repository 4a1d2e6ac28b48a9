#!/bin/sh
# The device tests over kernels/cuda/device_memory.cu and device_copy.cu themselves, with a driver that is none (fake_driver.cpp): where there
# are CUDA's headers, without a GPU. SANITIZE: as in -fsanitize. Exits 77 without the headers.
set -eu
cd "$(dirname "$0")/../.."
include=${CUDA_HOME:-/usr/local/cuda}/include
if ! [ -f "$include/cudaTypedefs.h" ] && command -v nvcc >/dev/null; then
	include=$(nvcc -dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ INCLUDES="-I\([^"]*\)".*/\1/p')
fi
[ -f "$include/cudaTypedefs.h" ] || { echo "skipped: no headers of CUDA here"; exit 77; }
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-D_GNU_SOURCE -I. -O1 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror ${SANITIZE:+-fsanitize=$SANITIZE}"
for source in sim/stream sim/runtime gpu/device gpu/device_rows gpu/device_sums gpu/device_rig gpu/two_gpus gpu/driver_faults; do
	gcc -std=gnu11 $flags -c "tests/$source.c" -o "$build/$(basename $source).o"
done
for source in kernels/cuda/device_memory.cu kernels/cuda/device_copy.cu kernels/cuda/device_issue.cu kernels/cuda/device_span.cu kernels/cuda/device_sums.cu tests/gpu/fake_driver.cpp; do
	g++ -std=c++17 $flags -Wno-missing-field-initializers -isystem "$include" -x c++ -c "$source" -o "$build/$(basename "$source").o"
done
link="g++ ${SANITIZE:+-fsanitize=$SANITIZE}"
$link -shared -o "$build/libcudart.so.13" "$build/runtime.o" "$build/stream.o" -lpthread
$link -shared -o "$build/libterrace_cuda.so.0" "$build/device_memory.cu.o" "$build/device_copy.cu.o" "$build/device_issue.cu.o" "$build/device_span.cu.o" "$build/device_sums.cu.o" "$build/fake_driver.cpp.o" \
	"$build/stream.o" -lpthread
$link -o "$build/device" "$build/device.o" "$build/device_rows.o" "$build/device_sums.o" "$build/device_rig.o" -ldl -lpthread
$link -o "$build/two_gpus" "$build/two_gpus.o" "$build/device_rig.o" -ldl -lpthread
$link -o "$build/driver_faults" "$build/driver_faults.o" "$build/device_rig.o" -ldl -lpthread
export LD_LIBRARY_PATH="$build"
$link -std=c++17 $flags -o "$build/device_span" tests/gpu/device_span.cpp "$build/device_span.cu.o"
"$build/device_span"
FAKE_DRIVER_MAJOR=8 "$build/driver_faults" starved & # they mostly wait
starved=$!
"$build/driver_faults" rests &
rests=$!
echo "by the kernel"
"$build/device"
for batch in yes no refused; do
	echo "by copy engines, batches: $batch"
	FAKE_DRIVER_MAJOR=8 FAKE_DRIVER_BATCH=$batch "$build/device"
done
echo "by a kernel that waits for its turns"
FAKE_DRIVER_LATE_MS=99 "$build/device"
echo "by a kernel that is not launched"
FAKE_DRIVER_KERNEL=refused "$build/device"
echo "by copy engines, the kernel's code is not loaded"
FAKE_DRIVER_KERNEL=none "$build/device"
FAKE_DRIVER_KERNEL=none "$build/driver_faults" kernel
FAKE_DRIVER_KERNEL=none FAKE_DRIVER_MAJOR=8 "$build/driver_faults" kernel
"$build/driver_faults" kernel
echo "by copy engines, rows refused"
FAKE_DRIVER_MAJOR=8 FAKE_DRIVER_ROWS=refused "$build/device"
echo "two GPUs"
export FAKE_DRIVER_DEVICES=2 SIM_GPU_DEVICES=2
for batch in yes no refused; do
	FAKE_DRIVER_BATCH=$batch "$build/two_gpus" --quick
done
FAKE_DRIVER_PEERS=no SIM_GPU_NO_PEERS=1 "$build/two_gpus" --quick
FAKE_DRIVER_PEERS=refused "$build/two_gpus" refused
unset FAKE_DRIVER_DEVICES SIM_GPU_DEVICES
FAKE_DRIVER_LOST=20 "$build/device" lost
FAKE_DRIVER_LOST=20 FAKE_DRIVER_MAJOR=8 "$build/device" lost
echo "no memory, by copy engines"
FAKE_DRIVER_MAJOR=8 "$build/driver_faults"
FAKE_DRIVER_MAJOR=8 FAKE_DRIVER_BATCH=no "$build/driver_faults"
FAKE_DRIVER_MAJOR=8 FAKE_DRIVER_ROWS=refused "$build/driver_faults"
echo "no memory, by both"
"$build/driver_faults" beside
wait "$starved"
wait "$rests"
