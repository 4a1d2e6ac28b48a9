/* The file node_id of the data folder: 16 random bytes, in hex, by which a daemon that was started again is told from
 * another daemon of the same name. */
#ifndef TERRACE_DAEMON_MEMBERSHIP_NODE_ID_H
#define TERRACE_DAEMON_MEMBERSHIP_NODE_ID_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/members/members.h"
#include "store/status.h"

/* Reads the id of the data folder, or makes one. A file with something else in it is CORRUPT. IO. why[size] has a
 * sentence then. */
enum status node_id_read(const char *data_dir, uint8_t out[MEMBER_NODE_BYTES], char *why, size_t size);

#endif
