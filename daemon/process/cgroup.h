/* What control groups leave of the machine to this process, of version 2 and of version 1, and of both at a time (a
 * hybrid host). */
#ifndef TERRACE_DAEMON_PROCESS_CGROUP_H
#define TERRACE_DAEMON_PROCESS_CGROUP_H

#include <stdint.h>

enum { CGROUP_WHERE_MAX = 512 };

/* Bytes of memory: the least bound of the process's group and of the groups above it, or `all` if that is less. Version
 * 2: memory.max, and memory.high, above which the kernel slows the process down. Version 1: memory.limit_in_bytes, and
 * memory.memsw.limit_in_bytes, the bound of memory and swap together. root: "", or a folder in the place of "/". where:
 * the file that bounds it, "" if none does. */
uint64_t cgroup_memory(const char *root, uint64_t all, char where[CGROUP_WHERE_MAX]);

/* How many whole processors the process's cgroups leave of `all`, at least 1. Version 2: cpu.max. Version 1:
 * cpu.cfs_quota_us and cpu.cfs_period_us. root: as for cgroup_memory. */
uint64_t cgroup_processors(const char *root, uint64_t all);

#endif
