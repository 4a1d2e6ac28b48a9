/* See machine.h. A cgroup's bound is that of the least of it and those above it. */
#include "daemon/machine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/log.h"
#include "store/disk.h"

enum {
	FILES_OTHER = 128,    /* logs, rings, the catalog, GPUs */
	FILES_CONNECTION = 5, /* of connections_max: a socket and a pidfd each, twice, and one by gRPC */
};

/* The bound of one cgroup, or `none`. */
static uint64_t bound_of(const char *root, const char *group, uint64_t none)
{
	char path[2 * PATH_MAX];
	uint64_t bound;
	FILE *f;

	snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.max", root, group);
	f = fopen(path, "re");
	if (!f)
		return none;
	if (fscanf(f, "%" SCNu64, &bound) != 1) /* "max" */
		bound = none;
	fclose(f);
	return bound < none ? bound : none;
}

/* The process's cgroup: "" or "/a/b". False: it has none. */
static bool group_of(const char *root, char group[PATH_MAX])
{
	char path[PATH_MAX], line[PATH_MAX];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof line, f))
		found = !strncmp(line, "0::/", 4);
	if (f)
		fclose(f);
	if (!found)
		return false;
	line[strcspn(line, "\n")] = 0;
	strcpy(group, line[4] ? line + 3 : "");
	return true;
}

uint64_t machine_memory(const char *root)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char group[PATH_MAX];

	if (!group_of(root, group))
		return memory;
	while (*group) {
		memory = bound_of(root, group, memory);
		*strrchr(group, '/') = 0;
	}
	return bound_of(root, "", memory); /* a container's own, which it sees as the root */
}

void machine_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

uint64_t machine_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return UINT64_MAX;
	if (limit.rlim_cur < limit.rlim_max) {
		const rlim_t before = limit.rlim_cur;

		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit))
			limit.rlim_cur = before;
	}
	return limit.rlim_cur;
}

/* Warns of a disk that is larger than its slab files can be. How many files there may be of all disks. */
static uint64_t slabs_wanted(const struct config *c)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	const char *problem;
	const uint32_t n = c->disks[0] ? config_disks(c->disks, disks, &problem) : 0;
	uint64_t wanted = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t slabs = disks[i].bytes / c->slab_bytes + 1;

		wanted += slabs < DISK_SLABS_MAX ? slabs : DISK_SLABS_MAX;
		if (slabs > DISK_SLABS_MAX)
			log_warn("disk_slabs", LOG_NUM("disk", i), LOG_NUM("wanted", slabs), LOG_NUM("most", DISK_SLABS_MAX),
				 LOG_TEXT("reason", "the disk will not be filled: slab_bytes is too small for it"));
	}
	return wanted;
}

void machine_warn(const struct config *c, uint64_t files)
{
	const uint64_t wanted = FILES_OTHER + FILES_CONNECTION * c->connections_max + slabs_wanted(c) + 8 + c->host_bytes / c->extent_bytes;

	if (c->host_bytes > machine_memory(""))
		log_warn("host_bytes", LOG_TEXT("reason", "more than the machine has, or its cgroup leaves: the kernel may end processes"));
	if (files < wanted)
		log_warn("files", LOG_NUM("wanted", wanted), LOG_NUM("limit", files),
			 LOG_TEXT("reason", "without descriptors nobody can connect, and disks are not filled: ulimit -n, LimitNOFILE"));
}
