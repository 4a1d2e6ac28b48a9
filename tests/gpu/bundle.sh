#!/bin/sh
# Gathers the programs that tests/gpu/run.sh wants besides what it builds, for a GPU machine that has CUDA but none of our libraries:
#   tests/gpu/bundle.sh BUILD FOLDER [PLUGIN]
# BUILD: a build folder with the targets of PROGRAMS below in it, of a build without sanitizers; FOLDER: build/gpu is where run.sh looks.
# PLUGIN: libterrace_cuda.so.0 of a build with CUDA, if it is not to be built there. All libraries that the programs need come along but
# those of the C and C++ runtimes, which must not be older there than here.
set -eu
PROGRAMS="client/examples/tinylm/tinylm daemon/terraced client/ctl/terracectl tests/gpu_plugin tests/gpu_device tests/mixed_engine
	tests/two_gpus tests/tinylm_ttft tests/terrace-bench tests/slow_writer tests/device_lost tests/gpu_trap.so"
[ $# = 2 ] || [ $# = 3 ] || { echo "usage: $0 BUILD FOLDER [PLUGIN]" >&2; exit 2; }
build=$1 folder=$2 plugin=${3:-}
rm -rf "$folder"
mkdir -p "$folder/lib"
for program in $PROGRAMS; do
	cp "$build/$program" "$folder/"
	strip "$folder/${program##*/}"
	ldd "$build/$program" | awk '$2 == "=>" { print $3 }' |
		grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so' | while read -r library; do
		cp -L "$library" "$folder/lib/"
	done
done
cp -L "$build/client/libterrace.so.0" "$folder/lib/" # for Python
strip --strip-unneeded "$folder"/lib/*
[ -z "$plugin" ] || cp -L "$plugin" "$folder/lib/libterrace_cuda.so.0"
du -sh "$folder"
