/* The members of the cluster: what this daemon knows of the others, and how good that knowledge is.
 *
 * One writer (daemon/membership) publishes whole lists. Readers take the newest list, which never changes, and drop it
 * when they are done; observers hear what one list has that the list before had not. While etcd cannot be reached
 * nothing is published: the last list stays, and the status says `lost`.
 *
 * A member is known by name and epoch: a new epoch is another run of the daemon, without what the earlier run had in
 * memory. This daemon itself is in the list too (`self`), once it is registered. */
#ifndef TERRACE_DAEMON_MEMBERS_MEMBERS_H
#define TERRACE_DAEMON_MEMBERS_MEMBERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum {
	MEMBERS_MAX = 4096,
	MEMBERS_OBSERVERS_MAX = 4,
	MEMBER_NAME_MAX = 64,        /* with its NUL, as all texts here */
	MEMBER_ADDRESS_MAX = 272,
	MEMBER_VERSION_MAX = 32,
	MEMBER_NODE_BYTES = 16,
	MEMBERS_REASON_MAX = 512,
	MEMBER_TENANT_WORDS = 4,
};

struct member {
	char name[MEMBER_NAME_MAX];
	char address[MEMBER_ADDRESS_MAX]; /* HOST:PORT */
	char version[MEMBER_VERSION_MAX];
	uint8_t node[MEMBER_NODE_BYTES];  /* of its data folder */
	uint64_t epoch, host_bytes;
	/* bits by index in this daemon's table of tenants: of those whose secret is this daemon's current or old one;
	 * and of those whose secret is another one. Tenants without a secret here or there are in neither */
	uint64_t same_secret[MEMBER_TENANT_WORDS], other_secret[MEMBER_TENANT_WORDS];
	uint64_t since_us;                /* daemon_now_us() at which this epoch of it became known here */
	uint32_t peer_protocol;           /* of its Peer service; 0: it keeps none of the directory */
	bool draining;
	bool self;
	bool absent;                      /* kept for now though etcd does not have it (daemon/membership/view.h) */
};

struct members_list {
	_Atomic uint32_t readers;         /* members.c's */
	uint64_t version;                 /* rises with each list */
	uint32_t count;
	struct member at[];               /* by name, as strcmp orders */
};

enum members_state {
	MEMBERS_JOINING,                  /* etcd has not been reached yet */
	MEMBERS_JOINED,                   /* registered, and the list is etcd's */
	MEMBERS_LOST,                     /* etcd is not reached: the list is the last one */
	MEMBERS_REFUSED,                  /* the list is etcd's, but the name is another daemon's: not registered */
};

struct members_status {
	enum members_state state;
	char reason[MEMBERS_REASON_MAX];  /* empty if joined: why not, and what to do */
	char endpoint[MEMBER_ADDRESS_MAX]; /* of etcd, in use or last tried */
	uint64_t registrations;           /* how often this daemon became a member; each time but the first
					   * the others had forgotten it */
	uint64_t confirmed_us;            /* daemon_now_us() of etcd's last answer; 0: none yet */
};

enum member_change { MEMBER_JOINED, MEMBER_LEFT, MEMBER_CHANGED, MEMBER_RESTARTED };

/* Called on the writer's thread, without a lock, after the new list can be read. The member is the new one, of
 * MEMBER_LEFT the old one. CHANGED: same epoch. RESTARTED: another epoch. */
struct members_observer {
	void (*changed)(void *arg, enum member_change change, const struct member *m);
	void *arg;
};

struct members;

/* Makes an empty list, in state MEMBERS_JOINING. EXHAUSTED. */
enum status members_create(struct members **out);
void members_destroy(struct members *m);

/* Adds an observer, before the first list is published; MEMBERS_OBSERVERS_MAX at most. The observer must live as long
 * as `m`. */
void members_observe(struct members *m, const struct members_observer *o);

/* Takes the newest list; it stays valid until members_drop. Any thread; never NULL. */
const struct members_list *members_take(struct members *m);
void members_drop(const struct members_list *list);

void members_status(struct members *m, struct members_status *out);
/* "joining", "joined", "lost", "refused". */
const char *members_state_text(enum members_state state);

/* ---- the writer alone ---- */

/* at[count]: by name, without doubles, at most MEMBERS_MAX. EXHAUSTED: the list before stays. */
enum status members_publish(struct members *m, const struct member *at, uint32_t count);
void members_tell(struct members *m, const struct members_status *status);

#endif
