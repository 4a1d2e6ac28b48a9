/* Deletes that the other members are told of: Peer.Forget at the end that deletes.
 *
 * All members are told, not only those that the directory has as holders: it has few names of a chain. A delete is
 * confirmed when each of them has answered. Who does not answer in time may still have the blocks. */
#ifndef TERRACE_DAEMON_PEERS_FORGET_H
#define TERRACE_DAEMON_PEERS_FORGET_H

#include <stdint.h>

#include "daemon/members/members.h"

struct cache_forget_call;
struct peers;

enum { FORGETS_MAX = 256 };            /* deletes that members are being told of */

struct peers_forgotten {
	enum { FORGET_GOES_ON, FORGET_CONFIRMED, FORGET_UNCONFIRMED } state;
	uint32_t members;              /* of UNCONFIRMED: that have not confirmed, */
	char member[MEMBER_NAME_MAX];  /* one of them, */
	char why[128];                 /* and why not */
};

/* Begins to tell all other members. deadline_us: of the machine's clock. Returns the delete's number for
 * peers_forget_look; 0: too many deletes are under way. Any thread; never waits. */
uint64_t peers_forget(struct peers *p, const struct cache_forget_call *q, uint64_t deadline_us);
/* How it stands. After another answer than GOES_ON the number is not used any more; it is kept for a minute at most. */
void peers_forget_look(struct peers *p, uint64_t number, struct peers_forgotten *out);

struct forgets;
struct forgets *forgets_create(void);  /* NULL: no memory */
/* After the links. NULL allowed. */
void forgets_destroy(struct forgets *f);

#endif
