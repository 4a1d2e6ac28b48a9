#!/bin/sh
# Rules of the source tree that a compiler does not check: who may include whom, which files own a third-party header, what the
# top level holds, how long a file or a document may be. Prints each breach as file:line and exits 1 if there is any.
set -u
cd "$(dirname "$0")/.." || exit 1
breaches=$(mktemp)
trap 'rm -f "$breaches"' EXIT

# within FOLDER PATTERN WHY: no project #include matching PATTERN inside FOLDER, leaves excepted.
within() {
	grep -rnE "^#include \"($2)" "$1" --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' |
		grep -vE '#include "(store/status|store/device|kernels/format)\.h"' | sed "s|\$|   <- $3|" >>"$breaches"
}
within kernels  '(store|eviction|daemon|client|proto|tests)/' 'kernels includes nobody'
within store    '(kernels|eviction|daemon|client|proto|tests)/' 'store includes nobody'
within eviction '(kernels|store|daemon|client|proto|tests)/' 'eviction includes nobody'
within daemon   '(client|tests)/' 'daemon does not include client'
within client   '(store|eviction|daemon|tests)/' 'client uses proto and kernels only'
within proto    '(kernels|store|eviction|daemon|client|tests)/' 'proto includes nobody'
within client/examples '(client|proto|kernels|store|eviction|daemon|tests)/' 'an example uses the public header only'

# owned HEADER FILE...: a third-party header may be included by these files only (tests and examples aside).
owned() {
	header=$1
	shift
	owners=$(printf '%s|' "$@" | sed 's/|$//; s/\./\\./g')
	grep -rnE "^#include <$header" kernels store eviction daemon client --include='*.c' --include='*.h' |
		grep -vE "^(($owners):|client/examples/)" | sed "s|\$|   <- $header is not this file's to include|" >>"$breaches"
}
. tests/owners.sh

git -c safe.directory="$PWD" ls-files 2>/dev/null | cut -d/ -f1 | sort -u | while read -r top; do
	case " CMakeLists.txt README.md LICENSE CHANGELOG.md findings proto daemon client kernels store eviction tests deploy .ci .gitignore .clang-format " in
	*" $top "*) ;;
	*) echo "$top   <- not of the top level" ;;
	esac
done >>"$breaches"

find kernels store eviction daemon client tests deploy -name '*.[ch]' -o -name '*.sh' -o -name '*.py' -o -name '*.cu' |
	while read -r file; do
		lines=$(wc -l <"$file")
		[ "$lines" -le 1000 ] || echo "$file: $lines lines   <- over 1000: two things in one file?"
	done >>"$breaches"

grep -rnE '\b(TODO|FIXME|XXX|HACK)\b' kernels store eviction daemon client proto tests deploy \
	--include='*.[ch]' --include='*.proto' --include='*.sh' --include='*.py' --include='*.cu' --include='*.cmake' |
	grep -v '^tests/rules.sh:' | sed 's|$|   <- left open|' >>"$breaches"

# Which formats share a property is asked of the format table (kernels/format.h): nothing tells it by the order of their numbers, which the
# next format would break unseen. Comparisons have spaces around them, arguments of templates have none.
format='\(*((enum )?(kv|terrace)_format\)|int\)|unsigned\))? ?\(?(KV_(NONE|F16|BF16|FP8|INT4_PTH|TQ[234])|(TERRACE_FORMAT|FORMAT__FORMAT)_[A-Z0-9_]+)\b\)*'
grep -rnE " (<|<=|>|>=) $format|$format (<|<=|>|>=) " kernels store eviction daemon client proto tests \
	--include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.cpp' --include='*.py' |
	sed 's|$|   <- formats compared by the order of their numbers|' >>"$breaches"

# Folders and layers: layers.py, which looks at calls too once there is a build (run.sh).
python3 tests/layers.py source >>"$breaches" 2>&1 || [ -s "$breaches" ] || echo "tests/layers.py failed" >>"$breaches"

# Words that have a term in their place (words.txt), in names, log events, metrics, options and documents.
python3 tests/words.py >>"$breaches" 2>&1 || [ -s "$breaches" ] || echo "tests/words.py failed" >>"$breaches"

# Documents: sizes, and links that lead nowhere.
python3 tests/documents.py >>"$breaches" 2>&1 || [ -s "$breaches" ] || echo "tests/documents.py failed" >>"$breaches"

if [ -s "$breaches" ]; then
	cat "$breaches"
	exit 1
fi
echo "the rules hold"
