#!/bin/bash
# Runs a command in a QEMU guest that has two real soft-RoCE devices (rdma_rxe), and returns its exit code:
# `bash tests/rdma/vm.sh [-t SECONDS] [-v] -- COMMAND...`. 77: this machine cannot have such a guest.
#
# The guest's root is this machine's, read-only, under what it writes (9p and overlayfs), so it runs what was built here.
# It has Debian's kernel, rxe0 on veth0 (10.77.0.1) and rxe1 on veth1 (10.77.0.2), and packets between the two go over
# the wire: two processes are as good as two hosts. It runs without KVM, which not every machine has, so it is slow: it
# shows what is right, not what is fast.
#
# QEMU and the rest come from Debian's packages, which are installed if they are missing. The kernel and the initramfs
# stay in RDMA_VM_CACHE (build/rdma).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${RDMA_VM_CACHE:-$here/../../build/rdma}

# Loaded in this order, with what they need.
base_modules='virtio_pci virtio_console 9p 9pnet_virtio overlay'
rdma_modules='veth crc32_generic crc32-pclmul rdma_rxe ib_umad virtio-rng'

skip() { echo "skipped: $*" >&2; exit 77; }
die() { echo "rdma/vm.sh: $*" >&2; exit 125; }

packages() {
	local want=() p
	for p in qemu-system-x86 busybox-static kmod cpio xz-utils zstd iproute2 ibverbs-providers; do
		dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || want+=("$p")
	done
	((${#want[@]})) || return 0
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${want[@]}" >&2 ||
		skip "${want[*]} cannot be installed"
}

# fetch_kernel: downloads and unpacks the kernel's package
fetch_kernel() {
	local package
	package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
	rm -rf "$cache/kernel" "$cache/deb"
	mkdir -p "$cache/kernel" "$cache/deb"
	(cd "$cache/deb" && apt-get download "$package" >&2) || skip "the kernel $package cannot be downloaded"
	dpkg -x "$cache"/deb/*.deb "$cache/kernel"
	[[ -d $cache/kernel/lib/modules ]] || ln -s usr/lib "$cache/kernel/lib"
	rm -rf "$cache/deb"
}

# unpack_kernel VERSION: the kernel as ELF, which QEMU starts by PVH: unpacking it in the guest would take 10 s
unpack_kernel() {
	local bz=$cache/kernel/boot/vmlinuz-$1 sectors offset bytes
	sectors=$(od -An -tu1 -j $((0x1f1)) -N1 "$bz")
	offset=$(od -An -tu4 -j $((0x248)) -N4 "$bz")
	bytes=$(od -An -tu4 -j $((0x24c)) -N4 "$bz")
	dd if="$bz" of="$cache/payload" iflag=skip_bytes,count_bytes bs=64K skip=$(((sectors + 1) * 512 + offset)) \
		count=$((bytes)) status=none
	case $(od -An -tx1 -N4 "$cache/payload" | tr -d ' ') in
	fd377a58) xz -dc --single-stream "$cache/payload" ;;
	28b52ffd) zstd -dcq "$cache/payload" 2>/dev/null || true ;;
	1f8b*) gzip -dc "$cache/payload" 2>/dev/null || true ;;
	*) die "unknown compression of $bz" ;;
	esac >"$cache/vmlinux"
	rm -f "$cache/payload"
	[[ $(od -An -c -j1 -N3 "$cache/vmlinux" | tr -d ' ') == ELF ]] || die "no ELF kernel in $bz"
}

# put_modules SET MODULE...: the modules, unpacked, and the order to load them in
put_modules() {
	local set=$1 module file name
	shift
	for module; do
		# a module that is built in prints nothing to load
		modprobe -d "$cache/kernel" -S "$version" --show-depends "$module" 2>/dev/null | awk '/^insmod/ { print $2 }' || true
	done | while read -r file; do
		name=$(basename "$file")
		name=${name%.xz}
		name=${name%.zst}
		grep -qxF "$name" "$root"/mod/*.list 2>/dev/null && continue
		case $file in *.xz) xz -dc "$file" ;; *.zst) zstd -dcq "$file" ;; *) cat "$file" ;; esac >"$root/mod/$name"
		echo "$name" >>"$root/mod/$set.list"
	done
}

setup() {
	packages
	[[ -s $cache/vmlinux && $cache/initrd.gz -nt ${BASH_SOURCE[0]} ]] && return 0
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	fetch_kernel
	version=$(ls "$cache/kernel/lib/modules") root=$cache/initrd
	depmod -b "$cache/kernel" "$version"
	unpack_kernel "$version"
	rm -rf "$root"
	mkdir -p "$root"/{bin,mod,proc,sys,dev,host,rw,root}
	cp "$(readlink -f "$(command -v busybox)")" "$root/bin/busybox"
	# shellcheck disable=SC2086 # lists of words
	put_modules base $base_modules
	# shellcheck disable=SC2086
	put_modules rdma $rdma_modules
	cp "$here/init" "$root/init"
	chmod +x "$root/init"
	(cd "$root" && find . -print0 | cpio --null -o -H newc --quiet | gzip -1) >"$cache/initrd.gz.new"
	mv "$cache/initrd.gz.new" "$cache/initrd.gz"
	rm -rf "$cache/kernel" "$root" # 380 MB; a start needs two files
	exec 9>&-
}

limit=300 verbose=
while (($#)); do
	case $1 in
	-t) limit=$2; shift ;;
	-v) verbose=1 ;;
	--) shift; break ;;
	*) die "usage: bash tests/rdma/vm.sh [-t SECONDS] [-v] -- COMMAND..." ;;
	esac
	shift
done
(($#)) || die 'no command'
[[ $(uname -m) == x86_64 ]] || skip 'the guest is of x86-64'
command -v apt-get >/dev/null || skip 'no apt-get here'
((EUID == 0)) || skip 'packages and the whole root file system want root'
setup

job=$(mktemp -d "${TMPDIR:-/tmp}/terrace-rdma-XXXXXX") qemu=
trap '[[ -z $qemu ]] || kill "$qemu" 2>/dev/null; rm -rf "$job"' EXIT
trap 'exit 1' INT TERM
cp "$here/guest.sh" "$job/guest.sh"
{
	printf 'cd %q || exit 125\n' "$PWD"
	printf '%q ' "$@"
	echo
} >"$job/command"

mkfifo "$job/out"
cat "$job/out" &
reader=$!
timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi,tb-size=256 -cpu max -smp 2 -m 1536 -nodefaults -no-user-config -display none -no-reboot \
	-kernel "$cache/vmlinux" -initrd "$cache/initrd.gz" -serial "file:$job/console" \
	-append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on rcupdate.rcu_expedited=1' \
	-device virtio-serial-pci -chardev "file,id=out,path=$job/out" -device virtserialport,chardev=out,name=out \
	-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=root,mount_tag=hostroot \
	-fsdev "local,id=job,path=$job,security_model=none,multidevs=remap" -device virtio-9p-pci,fsdev=job,mount_tag=job \
	-object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng </dev/null >/dev/null 2>"$job/errors" &
qemu=$!
code=0
wait "$qemu" || code=$?
qemu=
: <>"$job/out" # ends the reader, if QEMU has never opened it
wait "$reader" 2>/dev/null || true
[[ -z $verbose ]] || cat "$job/console" >&2
[[ ! -s $job/rc ]] || exit "$(cat "$job/rc")"
cat "$job/errors" >&2
tail -n 20 "$job/console" >&2
((code != 124)) || die "gave up after $limit s"
die 'the guest stopped before the command ended'
