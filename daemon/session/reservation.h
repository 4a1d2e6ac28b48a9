/* Reserved slots and their pending keys. */
#ifndef TERRACE_DAEMON_SESSION_RESERVATION_H
#define TERRACE_DAEMON_SESSION_RESERVATION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/aging.h"
#include "store/slot.h"
#include "store/status.h"

struct block;
struct cache;
struct gpu;
struct grid_rule;
struct index_ident;
struct layout_pool;
struct session;

enum { RESERVATIONS_MAX = 1 << 16 };

struct part {
	struct block *block;           /* NULL: stored already when reserved, or published */
	struct part *pending_key_next;
	bool claimed;
	uint32_t before;               /* tokens of its block before the key's unit */
	uint32_t written;              /* 1 + the host extent that the reservation's attachment may map writable for it; 0: none */
};

struct reservation {
	struct aging aging;            /* first */
	struct reservation *prev, *next; /* of the session */
	struct session *session;
	uint64_t handle, bytes;
	uint64_t charged;              /* bytes that the session's holder is charged with until the reservation ends */
	uint64_t call;                 /* as of a lease */
	uint64_t attachment;           /* the attachment whose process writes it; 0: the daemon itself */
	struct slot_info info;         /* of the key's unit: a block has the tokens of part.before too */
	uint32_t unit;                 /* not 0: all tokens of the unit must be valid, since later blocks continue it */
	uint32_t open_most;            /* with a unit: the most tokens of an open block; info.tokens counts all */
	struct gpu *gpu;               /* the GPU of its slots; NULL: in memory */
	bool open;                     /* without a key */
	bool stream;                   /* written by the daemon itself */
	bool committing;               /* being sealed without the lock: nothing else may change it */
	enum status sealed;            /* the status of the sealing */
	uint32_t slots, parts;
	uint8_t key_bytes, key[SLOT_KEY_MAX];
	struct part part[];
};

/* The arguments of a reservation. */
struct reservation_wish {
	struct gpu *gpu;               /* NULL: in memory */
	struct layout_pool *const *pools; /* [layouts] */
	uint32_t layouts;
	uint64_t cells;                /* a bit for each layout that is to have a slot */
	const struct grid_rule *rules; /* [layouts]; NULL: of a plain session */
	uint32_t unit;                 /* of the grid */
	uint64_t position;             /* of the key, in units */
	const uint8_t *key;            /* NULL: an open block */
	uint32_t key_bytes;
	const struct slot_info *info;
	bool stream;
	uint64_t call, attachment;     /* as in the reservation */
};

/* A sentence that says what holds all slots of host memory or of a GPU, and what to do. */
const char *reservation_no_room(bool gpu);
/* Reserves slots for a key or an open block. OK; EXISTS; BUSY: the key is pending, or with c->gpu_busy set something
 * will make room on the GPU; EXHAUSTED: *why has a sentence. */
enum status reservation_create(struct cache *c, struct session *s, const struct reservation_wish *w,
			       struct reservation **out, const char **why);
void reservation_end(struct cache *c, struct reservation *r);
/* Without the lock, while `committing`: zeroes what its engine has not written, and writes headers and checksums. On a
 * GPU: zeroes, and keeps what a header would say. */
void reservation_seal(struct cache *c, struct reservation *r, uint64_t unix_ms);
/* In a read section: OK or EXISTS; UNAVAILABLE: its GPU is lost; else why it could not be sealed. Published blocks are
 * in published[parts], else NULL; the caller enters them into the policy. */
enum status reservation_publish(struct cache *c, struct reservation *r, uint64_t now_us,
				struct block **published);
/* NULL, or what is wrong with the info for a key of so many tokens. whole: all tokens must be valid; tokens 0 means
 * all. */
const char *slot_info_problem(const struct slot_info *info, uint32_t unit, bool whole);
/* Without or with the lock: valid tokens of the part's block. */
static inline uint32_t part_tokens(const struct reservation *r, const struct part *p)
{
	return p->before + r->info.tokens;
}

/* Without or with the lock. */
void reserve_count(struct cache *c, enum status s);
/* The part with that pending key, or NULL. */
struct part *pending_key_find(struct cache *c, const struct index_ident *ident);
/* on: from now on the process that writes the reservation may have its slots mapped writable. Else this reservation is
 * no reason for that any more. */
void reservation_writes(struct cache *c, struct reservation *r, bool on);

#endif
