#!/bin/sh
# Removes what tests that were killed have left: `sh tests/sweep.sh FOLDER [MINUTES]` looks at the folders in FOLDER that tests hold by a
# lock (held_folder.h, e2e/daemon.py, run.sh), and deletes those that nobody holds any more and nobody has touched for so long (1: whoever has
# just made one may not hold it yet).
set -u
find "$1" -maxdepth 1 -type d -name 'terrace-held-*' -user "$(id -u)" -mmin "+${2:-1}" 2>/dev/null | while read -r folder; do
	flock --nonblock --exclusive "$folder" rm -rf "$folder" 2>/dev/null
done
exit 0
