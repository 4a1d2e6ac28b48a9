/* Checks the folders that the configuration names, data_dir and disks, on this machine: faults that keep the daemon
 * from starting, and disks that it would start without. `terraced --check-config` reports all faults. A start refuses
 * overlapping folders by this check. It finds the other faults when it locks data_dir (process/data_dir_lock.c) and
 * opens the disks (disk/open.c). Nothing is made or changed here. The certificates of `listen` are checked in the same
 * way.
 */
#ifndef TERRACE_DAEMON_PROCESS_FOLDERS_H
#define TERRACE_DAEMON_PROCESS_FOLDERS_H

#include "store/status.h"

struct config;
struct config_errors;

enum place_fault {
	PLACE_REFUSED, /* folders overlap: the daemon does not start */
	PLACE_CLOSED,  /* data_dir cannot be used: the daemon does not start, since it cannot lock the folder */
	PLACE_BROKEN,  /* a disk cannot be used: the daemon starts without it */
	PLACE_SMALL,   /* a file system is smaller than its disks' sizes: the disks are used as far as it has room */
};

/* Calls found for each fault; text: a sentence with the option, the folder, the cause and the next step. */
void places_check(const struct config *c, void (*found)(void *arg, enum place_fault fault, const char *text), void *arg);

/* Adds to the errors the faults that a start refuses, and with --check-config all faults. Returns INVALID if there are
 * any, else s. s not OK: the configuration could not be read, and no folder is checked. */
enum status places_refuse(const struct config *c, enum status s, struct config_errors *errors);

/* Logs the file systems that are too small. A disk that cannot be used has a log line of its own elsewhere. */
void places_warn(const struct config *c);

#endif
