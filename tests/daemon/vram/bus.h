/* A bus that takes its time, and no processor's: lists of one way run one after the other, each as long as its bytes take at that speed, and their
 * bytes stay where they are. What else is done for a list is then what a call takes longer than the bus. */
#ifndef TERRACE_TESTS_DAEMON_VRAM_BUS_H
#define TERRACE_TESTS_DAEMON_VRAM_BUS_H

#include "store/status.h"
#include "tests/daemon/vram/rig.h"

/* A thread a way. One bus at a time. */
void bus_open(double gb_s);
/* When all lists have ended. */
void bus_close(void);
/* A device's copy(). */
enum status bus_copy(struct device *d, struct device_copy *c, const char **why);

#endif
