/* Which resources of the machine this process may use, and whether they are enough. */
#ifndef TERRACE_DAEMON_PROCESS_MACHINE_H
#define TERRACE_DAEMON_PROCESS_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/process/cgroup.h"
#include "store/status.h"

struct config;

/* Opens /dev/null where there is no standard input, output or error, so that nothing opened later gets their numbers, and with them what is
 * printed and logged; a write there fails. To be called first. */
void machine_streams(void);

/* Bytes of memory that the process may use: the machine's, or what its cgroups (a container's, a unit's; daemon/process/cgroup.h) or its limit on
 * address space leave of it. why: which of them it is. root: "", or a folder in the place of "/". */
enum { MACHINE_WHY_MAX = CGROUP_WHERE_MAX };
uint64_t machine_memory(const char *root, char why[MACHINE_WHY_MAX]);

/* Processors that it may use at a time: those that it may run on, or what its cgroups leave of their time, at least 1. root: as above. */
uint32_t machine_processors(const char *root);

/* Raises the number of descriptors that the process may have as far as allowed, and returns it: the default of a shell
 * or systemd suits programs that use select(). */
uint64_t machine_files(void);

/* What keeps a daemon of this configuration from serving at all: the size of files, address space, descriptors, threads. All but the first are
 * tried. IO, EXHAUSTED: why[size] says it for people. Before other threads are started. */
enum status machine_problem(const struct config *c, char *why, size_t size);

/* Slab files that a disk may have, so that as many descriptors as connections and memory want are left of `files`: a
 * half of what is left, since a disk may have twice as many (store/slab/disk.h). 0: as many as the disks like. */
uint32_t machine_slab_files(const struct config *c, uint64_t files);

/* Logs what the configuration wants, and the machine does not have: memory, descriptors (`files` of them), the size
 * of files, memory that may be locked. */
void machine_warn(const struct config *c, uint64_t files);

#endif
