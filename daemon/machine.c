/* See machine.h. A cgroup's bound is that of the least of it and those above it. */
#include "daemon/machine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
