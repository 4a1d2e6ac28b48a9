#!/bin/sh
# Runs a command on a slow disk: `sh tests/slow_disk.sh [WRITES [READS]] -- COMMAND...`. All reads and writes of it and its children that reach
# the disk under /tmp are held to so many a second (300 and 1,000), by a control group of its own, version 1 or 2, that is removed after it.
# Wants root and a kernel that has the groups. Exit code: the command's; 2: usage; 77: there are no such groups here.
set -u
writes=300 reads=1000
[ $# -lt 1 ] || [ "$1" = -- ] || { writes=$1; shift; }
[ $# -lt 1 ] || [ "$1" = -- ] || { reads=$1; shift; }
[ $# -ge 2 ] && [ "$1" = -- ] || { echo "usage: sh tests/slow_disk.sh [WRITES [READS]] -- COMMAND..." >&2; exit 2; }
shift
device=$(lsblk -ndo MAJ:MIN "$(findmnt -no SOURCE -T /tmp)" 2>/dev/null | tr -d ' ')
group=
if [ -n "$device" ] && [ -d /sys/fs/cgroup/blkio ]; then
	group=/sys/fs/cgroup/blkio/terrace.$$
	mkdir "$group" && echo "$device $writes" >"$group/blkio.throttle.write_iops_device" &&
		echo "$device $reads" >"$group/blkio.throttle.read_iops_device"
elif [ -n "$device" ] && grep -qs io /sys/fs/cgroup/cgroup.subtree_control; then
	group=/sys/fs/cgroup/terrace.$$
	mkdir "$group" && echo "$device riops=$reads wiops=$writes" >"$group/io.max"
else
	false
fi || { [ -z "$group" ] || rmdir "$group" 2>/dev/null; echo "skipped: no group that slows a disk here"; exit 77; }
trap 'rmdir "$group" 2>/dev/null' EXIT
sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
