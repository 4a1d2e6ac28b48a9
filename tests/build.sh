#!/bin/sh
# What run.sh tests: `build.sh BUILD...` configures and builds each of default, asan, tsan and fuzz in build/BUILD, in that order. What is said
# goes to build/logs/BUILD.build.log, the exit status to build/logs/BUILD.built. WHOLE=ON: with all sizes of the plain build's tests.
set -u
cd "$(dirname "$0")/.." || exit 1
logs=build/logs
mkdir -p "$logs"
jobs=$(nproc)

# What is thrown away is linked by the quicker linker, if there is one.
linker=
if gcc -fuse-ld=gold -Wl,--version >/dev/null 2>&1; then linker=-fuse-ld=gold; fi

# suite BUILD SANITIZERS ASSERTS LINKER. Line numbers are all that the tests need of a debugger's facts, and take half of the time to compile the vectors.
suite() {
	cmake -G Ninja -S . -B "build/$1" -DBUILD_TESTING=ON -DTERRACE_TESTS_WHOLE="${WHOLE:-OFF}" -DTERRACE_TESTS_LINKER="$linker" -DTERRACE_SANITIZE="$2" \
		-DCMAKE_C_FLAGS_RELWITHDEBINFO="-O2 -g1 $3" -DCMAKE_EXE_LINKER_FLAGS="$4" -DCMAKE_SHARED_LINKER_FLAGS="$4" \
		-DCMAKE_MODULE_LINKER_FLAGS="$4" &&
		cmake --build "build/$1" -j "$jobs"
}

for build in "$@"; do
	rm -f "$logs/$build.built"
	case $build in
	default) suite default '' -DNDEBUG '' ;;
	asan) suite asan address,undefined '' "$linker" ;;
	tsan) suite tsan thread '' "$linker" ;;
	fuzz) linker=$linker sh tests/fuzz/run.sh build ;;
	*) echo "build.sh: no such build: $build"; false ;;
	esac >"$logs/$build.build.log" 2>&1
	echo $? >"$logs/$build.status"
	mv "$logs/$build.status" "$logs/$build.built"
done
