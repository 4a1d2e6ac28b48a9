/* Lines of the log that are not written: held back, since a fault repeats them, or lost. */
#ifndef TERRACE_DAEMON_PROCESS_LOG_UNWRITTEN_H
#define TERRACE_DAEMON_PROCESS_LOG_UNWRITTEN_H

#include <stdbool.h>
#include <stdint.h>

/* Whether to write a line that a fault repeats: once in LOG_AGAIN_US. *held then says how many were held back since.
 * Each such line has one struct of these, zeroed, and one thread. */
enum { LOG_AGAIN_US = 10000000 };
struct log_again {
	uint64_t last_us, held;
};
bool log_again(struct log_again *a, uint64_t now_us, uint64_t *held);

/* Lines that could not be written, as to a full file system or a pipe that nothing reads. The first line that can
 * be written again is followed by one that says how many were lost (event=log_lost). Any thread. */
uint64_t log_lost(void);

#endif
