#!/bin/sh
# Gathers what tests/gpu/tinylm.sh runs into one folder, for a GPU machine that has CUDA but none of our libraries:
#   tests/gpu/bundle.sh BUILD PLUGIN FOLDER
# BUILD: a build folder with tinylm, terraced and gpu_plugin in it; PLUGIN: libterrace_cuda.so.0 of a build with CUDA. All libraries
# that the programs need come along but those of the C and C++ runtimes, which must not be older there than here.
set -eu
[ $# = 3 ] || { echo "usage: $0 BUILD PLUGIN FOLDER" >&2; exit 2; }
build=$1 plugin=$2 folder=$3
rm -rf "$folder"
mkdir -p "$folder/lib"
for program in client/examples/tinylm/tinylm daemon/terraced tests/gpu_plugin; do
	cp "$build/$program" "$folder/"
	strip "$folder/${program##*/}"
	ldd "$build/$program" | awk '$2 == "=>" { print $3 }' |
		grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so' | while read -r library; do
		cp -L "$library" "$folder/lib/"
	done
done
strip --strip-unneeded "$folder"/lib/*
cp -L "$plugin" "$folder/lib/libterrace_cuda.so.0"
du -sh "$folder"
