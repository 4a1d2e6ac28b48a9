/* Spill to other members, at the holder: offers what memory is about to drop (call/offer.h), and remembers which member
 * took it. Off unless peer_spill is on.
 *
 * A segment of a chain goes to the member with the highest rendezvous hash (directory/owners.h) among those that serve,
 * have the tenant's secret, are not avoided and have not refused of late. A member that has no room is not asked for 5
 * s, after each further refusal for twice as long, for 5 min at most. */
#ifndef TERRACE_DAEMON_PEERS_SPILL_H
#define TERRACE_DAEMON_PEERS_SPILL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"

struct cache;
struct directory_run;
struct index_ident;
struct member;
struct peers;
struct spills;

#define SPILL_AGAIN_US (5ull * 1000 * 1000)
#define SPILL_AGAIN_US_MAX (300ull * 1000 * 1000)
#define SPILL_SOON_US (500ull * 1000)

struct spills *spills_create(void); /* NULL: no memory */
void spills_destroy(struct spills *s); /* NULL allowed */
void spills_stats(struct spills *s, struct cache *c, cache_stat_fn *emit, void *arg);

/* By the peers' thread: begins offers. Returns when to call it again. */
uint64_t peers_spill(struct peers *p, uint64_t now_us);

/* Which member took that block last, as far as is remembered. at may be NULL. Any thread. */
bool spills_find(struct spills *s, const struct index_ident *name, struct directory_run *at);
/* That member has it no more. */
void spills_forget(struct spills *s, const struct index_ident *name, const struct directory_run *at);

/* ---- for tests ---- */

/* What an offer to a node has come to. */
enum spill_end { SPILL_TAKEN, SPILL_NO_ROOM, SPILL_BUSY, SPILL_FAILED, SPILL_ENDS };
void spills_note_end(struct spills *s, const uint8_t *node, enum spill_end end, uint64_t now_us);
void spills_note_taken(struct spills *s, uint64_t id, const struct directory_run *at);
/* The member of [count] that a segment of the tenant of this index goes to; NULL: there is none now, or it is busy. */
const struct member *spills_choose(struct spills *s, const struct member *of, uint32_t count, uint32_t tenant,
				   uint64_t segment, uint64_t now_us);

#endif
