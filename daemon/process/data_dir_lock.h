/* Locks what only one daemon may have: the data folder and the paths of the sockets. */
#ifndef TERRACE_DAEMON_PROCESS_DATA_DIR_LOCK_H
#define TERRACE_DAEMON_PROCESS_DATA_DIR_LOCK_H

#include <stddef.h>

#include "store/status.h"

enum { DATA_DIR_LOCK_WHY_MAX = 1024 }; /* a sentence with any path of the configuration, and the reason behind it */

/* Makes the folder (0700, with its parents) and locks PATH/lock; the lock lasts as long as *fd is open.
 * BUSY: another process has it. IO. why[size]: a sentence for people, on anything but OK. */
enum status data_dir_lock(const char *path, int *fd, char *why, size_t size);

/* Daemons take turns to check, bind and remove the path of a socket, so that no two find it free and none removes
 * another's socket. A turn is a lock on PATH.lock, and *turn is its descriptor. Makes the path's folder (0755). BUSY:
 * the turn did not come in five seconds. IO. */
enum status data_dir_lock_turn(const char *path, int *turn, char *why, size_t size);
/* Ends the turn, and removes the lock's file. turn -1: there was none. */
void data_dir_lock_turn_end(const char *path, int turn);

/* Makes way, in a turn, for a socket at `path`: removes a socket at which no daemon answers. BUSY: a daemon answers, or
 * what is there is no socket. IO. */
enum status data_dir_lock_path(const char *path, char *why, size_t size);

/* data_dir_lock_path in a turn of its own: finds out at the daemon's start whether the path can be had. */
enum status data_dir_lock_socket(const char *path, char *why, size_t size);

#endif
