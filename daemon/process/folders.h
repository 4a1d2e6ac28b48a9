/* The folders that the configuration names, data_dir and disks, as they are on this machine: what would keep the daemon from starting, and what it
 * would start without. `terraced --check-config` tells of all; a start refuses overlaps by the same check, and finds the rest when it locks
 * data_dir (process/data_dir_lock.c) and opens the disks (disk/open.c). Nothing is made or changed. The same for the
 * certificates of `listen`. */
#ifndef TERRACE_DAEMON_PROCESS_FOLDERS_H
#define TERRACE_DAEMON_PROCESS_FOLDERS_H

#include "store/status.h"

struct config;
struct config_errors;

enum place_fault {
	PLACE_REFUSED, /* folders that overlap: the daemon does not start */
	PLACE_CLOSED,  /* a data_dir that cannot be used: the daemon does not start, as it finds when it locks the folder */
	PLACE_BROKEN,  /* a disk that cannot be used: the daemon starts without it */
	PLACE_SMALL,   /* a file system that is smaller than its disks' sizes: they are used as far as they go */
};

/* Calls found for each fault; text: a sentence with the option, the folder, the cause and the next step. */
void places_check(const struct config *c, void (*found)(void *arg, enum place_fault fault, const char *text), void *arg);

/* Adds the faults to the errors: those that a start refuses, and with --check-config all of them. INVALID if there are any, else s. s not OK: the
 * configuration could not be read, and nothing is looked at. */
enum status places_refuse(const struct config *c, enum status s, struct config_errors *errors);

/* Logs the file systems that are too small: a disk that cannot be used has its own line. */
void places_warn(const struct config *c);

#endif
