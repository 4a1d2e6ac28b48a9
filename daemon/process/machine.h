/* Which resources of the machine this process may use, and whether they are enough. */
#ifndef TERRACE_DAEMON_PROCESS_MACHINE_H
#define TERRACE_DAEMON_PROCESS_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/process/cgroup.h"
#include "store/status.h"

struct config;

/* Opens /dev/null in place of a missing standard input, output or error. Otherwise a file that is opened later would
 * get its number, and what is printed and logged would go into it. Writes to that /dev/null fail. Called first in the
 * process. */
void machine_streams(void);

/* The bytes of memory that the process may use. It is the smallest of the machine's memory, what the process's cgroups
 * leave of it (a container's, a unit's; daemon/process/cgroup.h), and the limit on address space. why: which of them it
 * is. root: "", or a folder in place of "/". */
enum { MACHINE_WHY_MAX = CGROUP_WHERE_MAX };
uint64_t machine_memory(const char *root, char why[MACHINE_WHY_MAX]);

/* The number of processors that the process may use at a time: those that it may run on, or what its cgroups leave of
 * their time, at least 1. root: as above. */
uint32_t machine_processors(const char *root);

/* Raises the limit on the process's descriptors as far as allowed, and returns it. The default of a shell or of systemd
 * is low, for programs that use select(). */
uint64_t machine_files(void);

/* Finds what keeps a daemon of this configuration from serving at all: limits on the size of files, address space,
 * descriptors and threads. All but the first are tried out. IO, EXHAUSTED: why[size] has a sentence for people. Called
 * before other threads start. */
enum status machine_problem(const struct config *c, char *why, size_t size);

/* The number of slab files that a disk may have. It leaves as many of the `files` descriptors as connections and memory
 * need, and is half of the rest, since a disk may have twice as many slabs (store/slab/disk.h). 0: no bound. */
uint32_t machine_slab_files(const struct config *c, uint64_t files);

/* Logs which resources the configuration needs and the machine lacks: memory, descriptors (`files` of them), the size
 * of files, memory that may be locked. */
void machine_warn(const struct config *c, uint64_t files);

#endif
