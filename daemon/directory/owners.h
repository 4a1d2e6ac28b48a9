/* Which members own a segment: the two with the highest rendezvous hash of (node id, segment). When a member leaves,
 * only its own segments move, and their second owner becomes the first, which has their entries already.
 *
 * Members that drain own nothing. If all of them drain, all of them own: an old answer is better than none. The epoch
 * does not matter: a daemon that was started again owns what it owned, and is told anew (outbox.h).
 *
 * A struct owners is made once for each list of members and never changes after that. Any thread reads it. */
#ifndef TERRACE_DAEMON_DIRECTORY_OWNERS_H
#define TERRACE_DAEMON_DIRECTORY_OWNERS_H

#include <stdint.h>

#include "daemon/directory/name.h"
#include "store/status.h"

enum { OWNERS_A_SEGMENT = 2 };
#define OWNERS_NONE UINT32_MAX

struct owners;

/* Makes the owners of one list of members (copied; each node once). The maker holds it once. EXHAUSTED: no memory. */
enum status owners_create(const struct directory_member *at, uint32_t count, struct owners **out);
/* Holds it once more, for another reader; owners_drop frees it with the last one. NULL may be dropped. */
struct owners *owners_hold(struct owners *o);
void owners_drop(struct owners *o);

uint32_t owners_members(const struct owners *o);
/* The member of an index, as owners_create got it. */
const struct directory_member *owners_member(const struct owners *o, uint32_t index);
/* The index of a node. OWNERS_NONE: it is no member. */
uint32_t owners_find(const struct owners *o, const uint8_t node[DIRECTORY_NODE_BYTES]);

/* How well a node suits a segment: by this owners_of chooses. */
uint64_t owners_weight(const uint8_t node[DIRECTORY_NODE_BYTES], uint64_t segment);
/* The indexes of the first and the second owner of a segment (word[0] of its first key's public name). OWNERS_NONE
 * where there are fewer members. About a microsecond with 1,000 members. */
void owners_of(const struct owners *o, uint64_t segment, uint32_t out[OWNERS_A_SEGMENT]);

#endif
