#!/bin/sh
# Everything that a machine with a GPU is to answer, part by part, in the order of worth: README.md beside this says what to bring there.
#   tests/gpu/run.sh [PART]...      those parts, in the order they are named; without names: all of DEFAULT below
#   tests/gpu/run.sh --list         what parts there are
# Each part runs under a time limit of its own, and all of them under LIMIT seconds (570); one that fails stops none of the others. The last
# lines are a summary. Exit code 0: all that were run passed; 1: one failed or had no time; 2: usage; 77: no nvcc and no GPU.
#
# Needs CUDA, gcc and python3 alone. Programs that need our libraries come in BUNDLE (build/gpu), filled by tests/gpu/bundle.sh; kernels and
# their tests are compiled here into BUILD (build/gpu-kernels). OUT (BUILD): gets run.log, with all that the parts printed, and
# results.jsonl. ALL=1 builds every head dim, PORTABLE=1 the code for devices without bulk copies. DRY=FOLDER: a rehearsal over the
# simulated device there (tests/sim_device of a build folder), without the parts that need nvcc.
set -eu
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
DEFAULT="build device test check tinylm kill writer shared tenants mixed ttft vram lost"
bundle=$(realpath -m "${BUNDLE:-build/gpu}")
build=$(realpath -m "${BUILD:-build/gpu-kernels}")
out=$(realpath -m "${OUT:-$build}")
results=$out/results.jsonl
model=tests/data/tinylm-8m

# Name, seconds, and what it is.
parts() {
	cat <<-END
	build 240 the kernels, their tests and the plugin, with nvcc
	device 60 the GPUs' memory: the conformance tests of store/device.h, copies in graphs
	test 120 the kernels' tests, of the head dims that were built
	test_all 240 the same of every head dim; wants a build with ALL=1
	check 150 compute-sanitizer's memcheck, synccheck and racecheck over the kernels' tests, small
	tinylm 90 the example engine: perplexities, and texts with and without a daemon
	kill 150 200 engines killed; the device's memory against Stats
	kill_daemon 400 20 daemons, or KILLS, killed under engines that go on with the next; the device's memory against Stats; by name only
	mixed_long 780 ten minutes of mixed load, or LONG seconds; by name only, with LIMIT=800
	mixed 200 two minutes of mixed load over VRAM, memory and disk, a cache of a tenth of the working set
	ttft 180 time to the first token by tier, with tinylm and, where there is transformers, a larger model, tq4 and bf16
	vram 90 blocks between disk, memory and GPU against the device itself
	writer 120 20 engines killed while a kernel of theirs writes over what they have reserved
	shared 60 two processes that share one copy of a prefix on one GPU
	tenants 90 GPU memory of two tenants, engines of two users: own parts, what is borrowed and goes back, zeroes; wants root
	lost 90 a GPU lost to a process and to a daemon, by a kernel that traps in it
	two 120 two GPUs: copies across, leases from one of what the other has, half a minute of mixed load over both
	device_bench 60 figures of the device's lists of copies and checksums
	bench 240 figures of the kernels
	repack 60 repack between blocks and pages: its tests and figures alone; by name only
	baseline 240 the same of PyTorch's attention
	END
}

# ---- building -----------------------------------------------------------------------------------------------------

# What a file's instructions need: see kernels/CMakeLists.txt.
instructions() {
	case $1 in
	*_avx2.c) echo "-mavx2 -mfma -mf16c" ;;
	*_avx512.c) echo "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c" ;;
	*_vnni.c) echo "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c" ;;
	esac
}

part_build() {
	[ -z "${DRY:-}" ] || { echo "skipped: a rehearsal has no kernels"; exit 77; }
	# In one order everywhere: the shell's is the locale's.
	sources=$(ls kernels/*.c kernels/*.h kernels/cuda/*.[ch]* store/*.h tests/gpu/*.c* tests/gpu/*.h | LC_ALL=C sort | xargs cat | sha1sum)
	wanted="$sources ${ALL:-} ${PORTABLE:-}"
	if [ -f "$build/built" ] && [ "$(cat "$build/built")" = "$wanted" ]; then
		echo "built before"
		return
	fi
	rm -f "$build/built"
	[ -f "$build/compiled" ] && [ "$(cat "$build/compiled")" = "$wanted" ] || compile
	link
	echo "$wanted" >"$build/built"
}

# Objects, which may be made where there is no GPU and brought along: they are good for the same sources.
compile() {
	rm -f "$build/compiled" "$build"/*.o
	flags="-O3 -std=c++17 -I. -Xcompiler -Wall,-Wextra,-fPIC -lineinfo"
	flags="$flags ${ALL:+-DTERRACE_CUDA_ALL} ${PORTABLE:+-DTERRACE_CUDA_PORTABLE}"
	ls kernels/cuda/*.cu tests/gpu/*.cu | xargs -P "$(nproc)" -I{} sh -c \
		"case {} in
		kernels/cuda/extend_portable* | kernels/cuda/extend_prepare* | kernels/cuda/extend_merge*) arch=90 define= ;;
		kernels/cuda/extend_*) [ -z '${PORTABLE:-}' ] || exit 0; arch=90a define=-DTERRACE_CUDA_90A ;;
		*) arch=90 define= ;;
		esac
		nvcc $flags \$define -gencode arch=compute_\$arch,code=sm_\$arch -c {} -o $build/\$(echo {} | tr / _).o || exit 255"
	for source in kernels/*.c; do
		[ "$source" = kernels/layout_id.c ] && continue # wants xxhash, which nothing here does
		gcc -std=gnu11 -D_GNU_SOURCE -O3 -fPIC -ffp-contract=off -Wall -Wextra $(instructions "$source") -I. \
			-c "$source" -o "$build/$(basename "$source").o"
	done
	echo "$wanted" >"$build/compiled"
}

# The kernels once, as the plugin that libterrace loads; the tests are linked to it.
link() {
	nvcc -shared -o "$build/libterrace_cuda.so.0" "$build"/kernels_cuda_*.o "$build"/[a-z0-9]*.c.o
	echo attend codec repack copy sums golden merge extend device_graph bench | tr ' ' '\n' | xargs -P "$(nproc)" -I{} sh -c \
		"nvcc -o $build/{} $build/tests_gpu_{}*.o -L$build -l:libterrace_cuda.so.0 -Xlinker -rpath,$build || exit 255"
	gcc -std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -I. -o "$build/device" tests/gpu/device.c tests/gpu/device_rows.c tests/gpu/device_sums.c tests/gpu/device_rig.c -ldl -lpthread
}

# ---- the parts ----------------------------------------------------------------------------------------------------

in_bundle() {
	for program; do
		[ -x "$bundle/$program" ] || { echo "skipped: no $bundle/$program (tests/gpu/bundle.sh)"; exit 77; }
	done
}

needs_build() {
	[ -z "${DRY:-}" ] || { echo "skipped: a rehearsal has no kernels"; exit 77; }
	[ -f "$build/built" ] || { echo "skipped: nothing was built"; exit 77; }
}

part_device() {
	if [ -x "$bundle/gpu_device" ]; then
		"$bundle/gpu_device"
	else
		needs_build
		"$build/device"
	fi
	[ ! -x "$build/device_graph" ] || [ -n "${DRY:-}" ] || "$build/device_graph"
}

# side_by_side PART SECONDS: the commands on stdin, a line each, run in the folder of the programs, each for so many seconds at most, and
# half as many again at a time as there are processors, for a GPU takes processes in turns. Prints a line for each as it ends, and what
# failed once more; what they say goes into OUT/PART.
side_by_side() {
	logs=$out/$1
	rm -rf "$logs"
	mkdir -p "$logs"
	cd "$build"
	xargs -d '\n' -P $(($(nproc) * 3 / 2)) -I{} sh -c '
		name=$(echo "$3" | sed "s,compute-sanitizer --tool ,,; s, --error-exitcode 1 , ,; s,\./,,; s, /.*,,")
		log=$1/$(echo "$name" | tr " /" __).log
		began=$(date +%s) code=0
		timeout -k 2 "$2" $3 >"$log" 2>&1 || code=$?
		case $code in
		0) verdict=good ;;
		124 | 137) verdict="BAD: no end within $2 s" ;;
		*) verdict="BAD: $code" ;;
		esac
		echo "$verdict, $(($(date +%s) - began)) s, $name: $(tail -n 1 "$log")" | tee -a "$1/verdicts"' sh "$logs" "$2" {}
	if grep "^BAD" "$logs/verdicts"; then
		(cd "$logs" && grep -E "^BAD|^=+ (Error|Warning|Race|Barrier|Invalid)" ./*.log | head -n 20) || :
	fi
	echo "$(grep -c "^good" "$logs/verdicts") of $(wc -l <"$logs/verdicts") good"
	! grep -q "^BAD" "$logs/verdicts"
}

# What is tested in pieces: keys' formats, and pairs for attention.
formats="fp16 bf16 fp8 int4_pth tq4 tq3 tq2"
pairs="$formats fp8/tq4 fp8/tq3 tq4/tq3"
golden="./golden $PWD/tests/data/golden_int4"

# The short ones first; attend has threads of its own.
test_commands() {
	printf '%s\n' ./merge ./copy ./sums "$golden" ./repack "./repack large"
	for dim; do
		printf '%s\n' "./codec all $dim" "./codec large $dim"
	done
	for format in $formats; do
		echo "./extend all $format"
	done
	echo ./attend
}

part_test() {
	needs_build
	dims=128
	! grep -q -- '- 1 ' "$build/built" || dims="64 96 128 192 256"
	test_commands $dims | side_by_side test "${1:-115}"
}

part_test_all() {
	needs_build
	grep -q -- '- 1 ' "$build/built" || { echo "skipped: built for head dim 128 alone (ALL=1 builds all)"; exit 77; }
	part_test 235
}

# The short ones first, and racecheck, which takes longest, last.
check_commands() {
	for tool in memcheck synccheck racecheck; do
		sanitizer="compute-sanitizer --tool $tool --error-exitcode 1"
		printf '%s\n' "$sanitizer ./merge small" "$sanitizer ./copy small" "$sanitizer ./sums small" "$sanitizer $golden" "$sanitizer ./codec small" \
			"$sanitizer ./repack small"
		for pair in $pairs; do
			echo "$sanitizer ./attend small $pair"
		done
		for format in $formats; do
			echo "$sanitizer ./extend small $format"
		done
	done
}

part_check() {
	needs_build
	check_commands | side_by_side check 140
}

part_tinylm() {
	in_bundle tinylm terraced gpu_plugin
	PLUGIN=$plugin RESULTS=$results sh tests/gpu/tinylm.sh "$bundle"
}

# Words that are for a real one alone.
on_gpu() {
	[ -n "${DRY:-}" ] || echo "$@"
}

fault_test() {
	in_bundle terraced terracectl mixed_engine
	test=$1
	shift
	python3 "tests/fault/test_$test.py" "$bundle/terraced" "$bundle/terracectl" "$bundle/mixed_engine" --json "$results" \
		${DRY:+--libraries "$plugin"} "$@"
}

mixed_load() {
	fault_test mixed --slower 1 "$@"
}

part_kill() {
	mixed_load --kills 200 --gpu-mib 64 --host-mib 64
}

part_kill_daemon() {
	fault_test kill_daemon --kills "${KILLS:-20}" $(on_gpu --gpu-mib 512 --host-mib 512)
}

part_mixed_long() {
	mixed_load --seconds "${LONG:-600}" $(on_gpu --gpu-mib 512 --host-mib 512)
}

part_mixed() {
	mixed_load --seconds 120 $(on_gpu --gpu-mib 512 --host-mib 512)
}

# With packed blocks, and with blocks that lose nothing.
ttft_transformers() {
	code=0
	for options in "--format tq4" "--format bf16 --rounds 2"; do
		LIBTERRACE="$bundle/lib/libterrace.so.0" PYTHONPATH=client/python python3 client/examples/transformers/ttft.py \
			--terraced "$bundle/terraced" --tokens 16384 $options | tee -a "$results" || code=$?
	done
	return $code
}

part_ttft() {
	in_bundle terraced tinylm_ttft
	"$bundle/tinylm_ttft" --model $model --terraced "$bundle/terraced" --json --rounds 3 ${DRY:+--quick} | tee -a "$results"
	if python3 -c 'import torch, transformers' 2>/dev/null && [ -z "${DRY:-}" ]; then
		ttft_transformers
	else
		echo "no transformers, or no GPU: tinylm alone"
	fi
}

part_vram() {
	in_bundle terraced terrace-bench
	"$bundle/terrace-bench" vram --json --terraced "$bundle/terraced" ${DRY:+--quick} | tee -a "$results"
}

part_writer() {
	in_bundle slow_writer
	fault_test writer "$bundle/slow_writer" --kills 20 --gpu-mib 32 --host-mib 64
}

part_shared() {
	in_bundle terraced terracectl
	LIBTERRACE="$bundle/lib/libterrace.so.0" python3 tests/gpu/two_gpus.py "$bundle/terraced" "$bundle/terracectl" --one --json "$results" \
		--blocks 256 ${DRY:+--libraries "$plugin"}
}

part_tenants() {
	in_bundle terraced terracectl
	LIBTERRACE="$bundle/lib/libterrace.so.0" python3 tests/gpu/tenants.py "$bundle/terraced" "$bundle/terracectl" --json "$results" \
		${DRY:+--libraries "$plugin" --mib 128}
}

part_lost() {
	in_bundle device_lost gpu_trap.so
	code=0
	"$bundle/device_lost" ${DRY:+simulated} | tee -a "$results" || code=$?
	LIBTERRACE="$bundle/lib/libterrace.so.0" fault_test gpu_lost "$bundle/gpu_trap.so" --gpu-mib 256 --host-mib 512 || code=$?
	return $code
}

part_two() {
	in_bundle terraced terracectl mixed_engine two_gpus
	[ -n "${DRY:-}" ] || nvidia-smi topo -m || :
	code=0 sizes="--gpu-mib 256 --host-mib 256"
	[ -z "${DRY:-}" ] || sizes=
	${DRY:+env SIM_GPU_DEVICES=2} "$bundle/two_gpus" --json ${DRY:+--quick} | tee -a "$results" || code=$?
	[ $code != 77 ] || exit 77
	LIBTERRACE="$bundle/lib/libterrace.so.0" python3 tests/gpu/two_gpus.py "$bundle/terraced" "$bundle/terracectl" --json "$results" \
		${DRY:+--libraries "$plugin" --blocks 16} || code=$?
	mixed_load --gpus 2 --seconds 30 $sizes || code=$?
	return $code
}

part_device_bench() {
	needs_build
	{ "$build/bench" device && "$build/bench" sums; } | tee -a "$results"
}

part_bench() {
	needs_build
	"$build/bench" | tee -a "$results"
	"$build/attend" graph | tee /dev/stderr | grep '^{' >>"$results"
}

part_repack() {
	needs_build
	"$build/repack" | tail -n 1
	"$build/repack" large | tail -n 1
	"$build/bench" repack | tee -a "$results"
}

part_baseline() {
	[ -z "${DRY:-}" ] || { echo "skipped: a rehearsal"; exit 77; }
	python3 tests/gpu/sdpa.py | tee -a "$results"
	python3 tests/gpu/sdpa_extend.py | tee -a "$results"
}

# ---- running them -------------------------------------------------------------------------------------------------

# What programs load: the plugin built here before one that was brought, the bundle's libraries, CUDA's runtime.
set_libraries() {
	if [ -n "${DRY:-}" ]; then
		plugin=$(realpath "$DRY")
	elif [ -f "$build/libterrace_cuda.so.0" ]; then
		plugin=$build
	else
		plugin=$bundle/lib
	fi
	cuda=
	if [ -z "${DRY:-}" ] && command -v nvcc >/dev/null; then
		cuda=":$(nvcc -dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')/lib64"
	fi
	export CUDA_DEVICE_ORDER=PCI_BUS_ID # nvidia-smi's
	export LD_LIBRARY_PATH="$plugin:$bundle/lib$cuda:/usr/local/cuda/lib64:/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

mkdir -p "$build" "$out"
if [ "${1:-}" = --list ]; then
	parts
	exit 0
fi
if [ "${1:-}" = --part ]; then # one part, in a process of its own, which can be ended
	set_libraries
	"part_$2"
	exit 0
fi

chosen=${*:-$DEFAULT}
for name in $chosen; do
	parts | grep -q "^$name " || { echo "no such part: $name (--list names them)" >&2; exit 2; }
done
if [ -z "${DRY:-}" ] && [ "$chosen" != build ]; then # it can be built without a GPU
	nvidia-smi -L 2>/dev/null || { echo "skipped: no GPU"; exit 77; }
fi

limit=${LIMIT:-570}
began=$(date +%s)
log=$out/run.log
summary= failed=0
: >"$log"
for name in $chosen; do
	now=$(date +%s)
	left=$((limit - (now - began)))
	seconds=$(parts | awk -v name="$name" '$1 == name { print $2 }')
	[ "$seconds" -le "$left" ] || seconds=$left
	if [ "$seconds" -lt 10 ]; then
		summary="$summary  $name: NO TIME
"
		failed=1
		continue
	fi
	echo "==== $name (at most $seconds s)" | tee -a "$log"
	code=0
	from=$(wc -l <"$log")
	timeout -k 5 "$seconds" bash -o pipefail "$0" --part "$name" >>"$log" 2>&1 || code=$?
	tail -n +$((from + 1)) "$log" | tail -n 14 | cut -c1-600
	took=$(($(date +%s) - now))
	case $code in
	0) verdict=PASS ;;
	77) verdict=skipped ;;
	124 | 137) verdict="FAIL (no end within $seconds s)" failed=1 ;;
	*) verdict="FAIL ($code)" failed=1 ;;
	esac
	summary="$summary  $name: $verdict, $took s
"
done
{
	echo "==== all, $(($(date +%s) - began)) s"
	printf '%s' "$summary"
} | tee -a "$log"
exit $failed
