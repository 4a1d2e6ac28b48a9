#!/bin/sh
# Builds the Debian package: `sh deploy/package.sh [FOLDER]`, into build/package or FOLDER, and prints its path. With nvcc
# (CUDA_HOME, or in the PATH) and `-DTERRACE_CUDA=ON` in CMAKE_FLAGS the GPU plugin is in it.
set -eu
cd "$(dirname "$0")/.."
[ $# -le 1 ] || { echo "usage: sh deploy/package.sh [FOLDER]" >&2; exit 2; }
to=${1-build/package}
sh deploy/packages.sh build package
mkdir -p "$to"
log=$to/build.log
# shellcheck disable=SC2086 # a list of words
if ! { cmake -G Ninja -S . -B "$to/cmake" -DCMAKE_INSTALL_PREFIX=/usr -DBUILD_TESTING=OFF ${CMAKE_FLAGS-} &&
	cmake --build "$to/cmake" -j "$(nproc)" --target installed &&
	cpack --config "$to/cmake/CPackConfig.cmake" -B "$to"; } >"$log" 2>&1; then
	tail -n 40 "$log" >&2
	echo "The package could not be built; the whole log is in $log." >&2
	exit 1
fi
ls "$to"/terrace_*.deb
