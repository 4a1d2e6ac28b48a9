/* Claims what only one daemon may have: the data folder and the paths of the sockets. */
#ifndef TERRACE_DAEMON_CLAIM_H
#define TERRACE_DAEMON_CLAIM_H

#include <stddef.h>

#include "store/status.h"

enum { CLAIM_WHY_MAX = 1024 }; /* a sentence with any path of the configuration, and the reason behind it */

/* Makes the folder (0700, with its parents) and locks PATH/lock; the lock lasts as long as *fd is open.
 * BUSY: another process has it. IO. why[size]: a sentence for people, on anything but OK. */
enum status claim_folder(const char *path, int *fd, char *why, size_t size);

/* Makes way for a socket at `path`: its folder exists (made 0755), and a socket that nobody answers is
 * removed. BUSY: somebody answers, or what is there is no socket. IO. */
enum status claim_socket(const char *path, char *why, size_t size);

/* The same, when the socket is about to be made: daemons of one path look and bind by turns, so that no two find it free. A turn is a lock on
 * PATH.lock, and *turn its descriptor. BUSY also: it did not come in five seconds. */
enum status claim_turn(const char *path, int *turn, char *why, size_t size);

/* Ends it, and removes the file. turn -1: there was none. */
void claim_turn_end(const char *path, int turn);

#endif
