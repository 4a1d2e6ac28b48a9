/* See machine.h. */
#include "daemon/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/cgroup.h"
#include "daemon/log.h"
#include "store/disk.h"

enum {
	FILES_OTHER = 128,    /* logs, rings, the catalog, GPUs */
	FILES_CONNECTION = 5, /* of connections_max: a socket and a pidfd each, twice, and one by gRPC */
};

uint64_t machine_memory(const char *root, char why[MACHINE_WHY_MAX])
{
	const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char where[CGROUP_WHERE_MAX];
	uint64_t left = cgroup_memory(root, all, where);
	struct rlimit space;

	snprintf(why, MACHINE_WHY_MAX, "%s", where[0] ? where : "the machine's memory");
	if (!getrlimit(RLIMIT_AS, &space) && space.rlim_cur < left) {
		left = space.rlim_cur;
		snprintf(why, MACHINE_WHY_MAX, "the limit on address space (ulimit -v, LimitAS)");
	}
	return left;
}

uint32_t machine_processors(const char *root)
{
	const long online = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;
	uint64_t all = online > 0 ? (uint64_t)online : 1;

	if (!sched_getaffinity(0, sizeof set, &set)) /* fails with more than it has room for */
		all = (uint64_t)CPU_COUNT(&set);
	return (uint32_t)cgroup_processors(root, all);
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

static void warn_of_memory(const struct config *c)
{
	char bound[MACHINE_WHY_MAX];
	const uint64_t memory = machine_memory("", bound);

	if (c->host_bytes > memory)
		log_warn("host_bytes", LOG_NUM("host_bytes", c->host_bytes), LOG_NUM("memory", memory), LOG_TEXT("bound", bound),
			 LOG_TEXT("reason", "host_bytes is more than this process may use: the kernel may end it: lower host_bytes, or raise the bound"));
}

void machine_warn(const struct config *c, uint64_t files)
{
	const uint64_t wanted = FILES_OTHER + FILES_CONNECTION * c->connections_max + slabs_wanted(c) + 8 + c->host_bytes / c->extent_bytes;

	warn_of_memory(c);
	if (files < wanted)
		log_warn("files", LOG_NUM("wanted", wanted), LOG_NUM("limit", files),
			 LOG_TEXT("reason", "without descriptors nobody can connect, and disks are not filled: ulimit -n, LimitNOFILE"));
}
