/* What a start takes up from the catalog and the slots' headers. */
#ifndef TERRACE_DAEMON_DISK_RESTORE_H
#define TERRACE_DAEMON_DISK_RESTORE_H

#include <stdbool.h>

#include "store/status.h"


/* The restorer's thread. */
void *restore_main(void *cache);
#endif
