/* A member as etcd has it: a key, and a message Member (terrace.proto) as its value. What another program wrote there
 * is bytes from outside: it is a member only if it is whole, and says the name that its key has. */
#ifndef TERRACE_DAEMON_MEMBERSHIP_RECORD_H
#define TERRACE_DAEMON_MEMBERSHIP_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/members/members.h"

struct names;

enum { RECORD_BYTES_MAX = 4096, RECORD_PREFIX_MAX = 128 };

/* Writes "/terrace/CLUSTER/members/". */
void record_prefix(const char *cluster, char out[RECORD_PREFIX_MAX]);

/* Writes name, node, epoch, address, version, host_bytes, draining and peer_protocol of `m`, and the fingerprints of
 * `names`. Returns how many bytes, at most RECORD_BYTES_MAX. */
size_t record_write(const struct member *m, const struct names *names, uint8_t out[RECORD_BYTES_MAX]);

/* Reads a record; name[n]: the key without the prefix. NULL: *out has those fields, what its fingerprints say
 * beside those of `names`, and zeroes else. Otherwise what is wrong with it. */
const char *record_read(const uint8_t *name, size_t n, const uint8_t *value, size_t bytes, const struct names *names,
			struct member *out);

#endif
