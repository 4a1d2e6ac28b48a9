/* What the log says of copies in memory that were not what was committed (block/check.c): a line each, as far as the core had room to note them.
 * Keys appear at the level debug alone.
 */
#ifndef TERRACE_DAEMON_PROCESS_MEMORY_LOG_H
#define TERRACE_DAEMON_PROCESS_MEMORY_LOG_H

struct cache;

/* Logs what has been found since the last look. One thread. */
void memory_log_look(struct cache *c);

#endif
