#!/bin/sh
# Installs the packages of deploy/packages.txt that are missing: `sh deploy/packages.sh build [wheel] [cluster] [test]`.
# Asks the package mirror only if something is missing. Needs root then.
set -eu
here=$(dirname "$0")

missing=""
for group in "$@"; do
	for package in $(sed -n "s/^$group //p" "$here/packages.txt"); do
		state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
		[ "$state" = installed ] || missing="$missing $package"
	done
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "These packages are missing; install them as root and run this again:$missing" >&2
	exit 1
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # a list of words
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "apt-get could not install the packages above." >&2
	exit 1
fi
