/* The inside of daemon/peers, shared by its files. */
#ifndef TERRACE_DAEMON_PEERS_STATE_H
#define TERRACE_DAEMON_PEERS_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/directory/hints.h"
#include "daemon/directory/outbox.h"
#include "daemon/directory/owners.h"
#include "daemon/directory/table.h"
#include "daemon/members/members.h"
#include "daemon/peers/links.h"
#include "daemon/peers/peers.h"
#include "daemon/process/config.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/tenants.h"
#include "terrace.pb-c.h"

struct forgets;
struct peer_source;

enum { PEERS_MESSAGES = 8 };           /* to owners, under way at a time */

/* A message to an owner, from outbox_next to outbox_end. */
struct peers_message {
	struct peers *peers;
	bool used;                     /* under the lock */
	bool answered;                 /* the reply could be read; what follows is of it */
	struct outbox_reply reply;
	struct digest_set differ;
	uint32_t refused[OUTBOX_MESSAGE_MAX];
	struct outbox_message message;
};

/* A Publish while it is packed. */
struct peers_packed {
	Terrace__V1__PublishRequest request;
	Terrace__V1__PublishGroup groups[OUTBOX_MESSAGE_MAX], *list[OUTBOX_MESSAGE_MAX];
	struct public_name names[OUTBOX_MESSAGE_MAX];
	uint32_t numbers[TENANTS_MAX];
	char *tenants[TENANTS_MAX];
};

struct peers {
	const struct daemon *daemon;
	struct members *members;
	struct members_observer observer;
	struct directory_run self;
	struct peer_links *links;
	struct peer_source *source;
	struct forgets *forgets;
	struct spills *spills;
	struct directory *directory;
	struct outbox *outbox;
	struct hints *hints;
	pthread_t thread;
	bool serving, joined;

	/* the thread's */
	struct peers_message *messages; /* [PEERS_MESSAGES] */
	struct peers_packed *packed;
	uint64_t send_us, take_us, probe_us, spill_us; /* when to do that next */
	uint64_t registrations;        /* as last seen */
	uint32_t probed;               /* the member that was looked at last */
	struct log_again failed_again;

	pthread_mutex_t lock;          /* what follows; the links' lock is taken inside */
	pthread_cond_t changed;
	bool stopping, members_changed, sent, offered;
	struct owners *owners;         /* of the newest list */
	struct peers_question *questions, **questions_end;
	uint32_t question_count;

	atomic_ullong asked, names_asked, found, unanswered;
};

/* publish.c, by the thread: changes of what is here; messages that are due. */
void peers_take_changes(struct peers *p, uint64_t now_us);
void peers_send(struct peers *p, uint64_t now_us);
/* ask.c, by the thread: begins a question; ends those that have not begun. */
void peers_question_begin(struct peers *p, struct peers_question *q);
void peers_question_end(struct peers_question *q, enum status s);
/* The owners of the newest list, held for the caller. */
struct owners *peers_owners(struct peers *p);

/* The name of the tenant of a number. */
const char *peers_tenant_name(const struct peers *p, uint32_t number);

#endif
