/* See machine.h. A cgroup's bound is that of the least of it and those above it. */
#include "daemon/machine.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/log.h"
#include "store/disk.h"

enum {
	FILES_OTHER = 128,    /* logs, rings, the catalog, GPUs */
	FILES_CONNECTION = 6, /* of connections_max: a socket and a pidfd each, twice, and two of a connection by gRPC */
};

/* What a cgroup's file says, or `none`. */
typedef uint64_t bound_read(FILE *f, uint64_t none);

static uint64_t memory_read(FILE *f, uint64_t none)
{
	uint64_t bytes;

	return fscanf(f, "%" SCNu64, &bytes) == 1 ? bytes : none; /* or "max" */
}

/* Whole processors: two that have half of their time each are one. */
static uint64_t processors_read(FILE *f, uint64_t none)
{
	uint64_t quota, period;

	if (fscanf(f, "%" SCNu64 " %" SCNu64, &quota, &period) != 2 || !period) /* or "max" */
		return none;
	return quota < period ? 1 : quota / period;
}

/* The bound of one cgroup, or `none`. */
static uint64_t bound_of(const char *root, const char *group, const char *file, bound_read *read, uint64_t none)
{
	char path[2 * PATH_MAX];
	uint64_t bound;
	FILE *f;

	snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/%s", root, group, file);
	f = fopen(path, "re");
	if (!f)
		return none;
	bound = read(f, none);
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

/* What cgroups leave of `all`. */
static uint64_t left_of(const char *root, const char *file, bound_read *read, uint64_t all)
{
	char group[PATH_MAX];

	if (!group_of(root, group))
		return all;
	while (*group) {
		all = bound_of(root, group, file, read, all);
		*strrchr(group, '/') = 0;
	}
	return bound_of(root, "", file, read, all); /* a container's own, which it sees as the root */
}

uint64_t machine_memory(const char *root)
{
	return left_of(root, "memory.max", memory_read, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

uint32_t machine_processors(const char *root)
{
	const long online = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;
	uint64_t all = online > 0 ? (uint64_t)online : 1;

	if (!sched_getaffinity(0, sizeof set, &set)) /* fails with more than it has room for */
		all = (uint64_t)CPU_COUNT(&set);
	return (uint32_t)left_of(root, "cpu.max", processors_read, all);
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
