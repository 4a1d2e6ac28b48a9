#!/bin/sh
# Runs a command as on a machine that has nothing but what deploy/packages.txt installs: `sh tests/only_packages.sh COMMAND...`. On its PATH are the tools
# of those packages, of what they depend on and of every Debian alone, in a folder of links; HOME is all the rest of its environment, its input is
# empty, it has no terminal and begins in /. Exit code: the command's; 77: no dpkg here.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: sh tests/only_packages.sh COMMAND..." >&2; exit 2; }
command -v dpkg-query >/dev/null || { echo "skipped: no dpkg here"; exit 77; }
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
trap 'exit 1' INT TERM

mkdir "$tools/bin"
{
	dpkg-query -W -f '${Essential} ${Priority} ${Package}\n' | sed -nE 's/^(yes .*|.* required) //p'
	# shellcheck disable=SC2046 # a list of words
	apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
		$(sed -nE 's/^(build|test) //p' deploy/packages.txt) | grep '^[a-z0-9]'
} | sort -u | while read -r package; do
	dpkg -L "$package" 2>/dev/null || true
done | sed -nE 's,^(/usr)?(/s?bin/),\2,p' | sort -u >"$tools/files"
# A link of /etc/alternatives is a package's if what it leads to is.
ls -d /usr/sbin/* /usr/bin/* >"$tools/there"
xargs -d '\n' readlink -m <"$tools/there" | paste "$tools/there" - |
	awk -F '\t' 'NR == FNR { listed[$1]; next } { name = $1; sub("^/usr", "", $1); sub("^/usr", "", $2) } $1 in listed || $2 in listed { print name }' \
		"$tools/files" - | xargs -d '\n' ln -s -t "$tools/bin"
cd /
setsid env -i PATH="$tools/bin" HOME="${HOME:-/root}" "$@" </dev/null &
command=$!
trap 'kill -- "-$command" 2>/dev/null; exit 1' INT TERM
code=0
wait "$command" || code=$?
exit "$code"
