/* What of the machine this process may use. */
#ifndef TERRACE_DAEMON_MACHINE_H
#define TERRACE_DAEMON_MACHINE_H

#include <stdint.h>

/* Bytes of memory: the machine's, or what the process's cgroups (version 2: a container's, a unit's) leave of it. root: "", or a folder in the
 * place of "/". */
uint64_t machine_memory(const char *root);

#endif
