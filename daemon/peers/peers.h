/* The other members of the cluster, as far as blocks go: tells owners of segments what this daemon has, keeps what
 * others tell it, and asks (daemon/directory has the tables; links.h the calls).
 *
 * One thread takes changes of what is here (exports/exports.h), sends what is due, follows the list of members and
 * begins questions. Answers come on the links' thread. Handlers of the Peer service call what stands under "others".
 *
 * There is none without a cluster, certificates and a secret, or with directory = off (peers_wanted). */
#ifndef TERRACE_DAEMON_PEERS_PEERS_H
#define TERRACE_DAEMON_PEERS_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/directory/name.h"
#include "daemon/directory/table.h"
#include "daemon/members/members.h"
#include "daemon/peers/links.h"
#include "store/status.h"

struct daemon;
struct hints;
struct part_ops;
struct peer_source;
struct peers;
struct spills;

enum {
	PEERS_PROTOCOL = 2,            /* of the Peer service: 2 has Offer */
	PEERS_NAMES_MAX = 4096,        /* of one Find, and of one Publish */
	PEERS_QUESTION_MAX = 32768,    /* names of one question */
	PEERS_QUESTIONS_MAX = 1024,    /* that wait for the thread */
};

/* Whether the configuration has all that is needed. False: *why has a sentence, NULL if nothing needs to be said. */
bool peers_wanted(const struct daemon *d, const char **why);
/* Makes d->peers, after the membership has been created and before it serves. EXHAUSTED, INTERNAL: why[size] has a
 * sentence. */
enum status peers_create(struct daemon *d, char *why, size_t size);
/* Frees it, after the cache, whose source of other members' blocks uses it. NULL allowed. */
void peers_destroy(struct peers *p);
/* Starts the thread. NULL allowed. Called by main, when the daemon serves. */
void peers_serve(struct peers *p);
/* Stop and figures. Its `destroy` stops alone. */
extern const struct part_ops peers_part;

/* ---- asking: any thread ---- */

/* A name and the segment in which it lies: word[0] of the public name of the segment's first key. */
struct peers_name {
	struct public_name name;
	uint64_t segment;
};

/* Names of which nothing is known. Struct and names belong to the peers from peers_ask's OK until `ended`. */
struct peers_question {
	uint32_t tenant;               /* its number */
	uint32_t count;                /* at most PEERS_QUESTION_MAX; 0: it only ends, on the peers' thread */
	const struct peers_name *names;
	uint64_t deadline_us;          /* of the machine's clock */
	/* The hints (hints.h) have what was learnt. OK: an owner has answered for each name; else why not for all of
	 * them: DEADLINE, UNAVAILABLE, CANCELLED... Once, on the peers' or the links' thread, without a lock. */
	void (*ended)(struct peers_question *q, enum status s);
	/* the peers' own */
	struct peers_question *next;
	uint32_t outstanding;
	enum status worst;
};

/* Begins to ask the owners, each once with all of its names, the second owner where the first fails. Never waits.
 * EXHAUSTED: PEERS_QUESTIONS_MAX; CANCELLED: the peers are stopped. */
enum status peers_ask(struct peers *p, struct peers_question *q);
/* As peers_ask, of a copy of the names, for a caller that looks at the hints itself. */
enum status peers_ask_copy(struct peers *p, uint32_t tenant, const struct peers_name *names, uint32_t count,
			   uint64_t deadline_us);

struct hints *peers_hints(struct peers *p);
struct peer_links *peers_links(struct peers *p);
struct peer_source *peers_source(struct peers *p);
struct spills *peers_spills(struct peers *p);
/* The name of the member that a run is of, for links_call; epoch and node as in the list of members. False: it is none,
 * any more. */
bool peers_member(struct peers *p, const struct directory_run *run, char name[MEMBER_NAME_MAX]);

/* ---- others: the Peer service ---- */

/* Applies a message of another member to the table (directory/table.h has the statuses). */
struct directory *peers_directory(struct peers *p);

/* ---- for people ---- */

struct peers_view {
	enum link_state state;
	uint32_t calls;
	bool avoided;
};
void peers_look_at(struct peers *p, const struct member *m, struct peers_view *out);

#endif
