/* Messages of any type in any shape, made from the type's descriptor: a new field of the protocol is sent without a change here.
 *
 * What a field means is told by its name (a session, keys, a token), so that valid messages are valid; a field of an unknown name gets
 * small numbers of its type.
 */
#ifndef TERRACE_TESTS_HOSTILE_WIRE_H
#define TERRACE_TESTS_HOSTILE_WIRE_H

#include <stddef.h>

#include "tests/hostile/kinds.h"

enum {
	TOKEN_BYTES = 16,
	LAYOUTS = 2,        /* of a session of ours */
	GRANTS_MAX = 32,    /* leases, or reservations, that are remembered of a session */
	FOREIGN_MAX = 64,
	SPARES_MAX = 8,
	MESSAGE_MAX = 6 << 20,
};

/* A session of ours, and what it was granted. */
struct opened {
	uint64_t session, attachment;
	uint8_t token[TOKEN_BYTES];
	uint64_t block_bytes[LAYOUTS];
	uint64_t leases[GRANTS_MAX], reservations[GRANTS_MAX];
	uint32_t lease_count, reservation_count;
	uint32_t extents[GRANTS_MAX], extent_count; /* where what was granted lies */
};

/* Handles of others. `session` holds what the daemon shows of the sessions of others, which must not be what a call accepts. */
struct foreign {
	uint64_t session[FOREIGN_MAX], lease[FOREIGN_MAX], reservation[FOREIGN_MAX], attachment[FOREIGN_MAX], extent[FOREIGN_MAX];
	uint32_t sessions, leases, reservations, attachments, extents;
};

struct book {
	struct opened open[4];
	uint32_t count;
	struct opened spare[SPARES_MAX]; /* sessions that are there to be closed */
	uint32_t spares;
	const struct foreign *foreign;
};

/* Writes a message for which `of` is the session. Returns its bytes. */
size_t wire_message(uint8_t *out, size_t room, const ProtobufCMessageDescriptor *type, enum shape shape, struct rng *rng, struct book *book,
		    struct opened *of);

/* Whether a reply says that something was done for the handles that the request named. */
bool reply_did_for_others(const ProtobufCMessage *reply);

/* Remembers what a reply grants. */
void book_note(struct opened *of, const ProtobufCMessage *reply);

#endif
