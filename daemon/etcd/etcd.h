/* A client of etcd v3 over its own gRPC API, with only the calls that membership needs.
 *
 * One thread makes all calls and waits inside them; only etcd_interrupt may come from another thread. There is one
 * connection at a time, to one endpoint; etcd_connect takes the next endpoint of the list. After a call that failed
 * with UNAVAILABLE, DEADLINE or DENIED the caller disconnects: another endpoint, or a new token, may succeed.
 *
 * Every call has a deadline of its own (the options' call_us), so an endpoint that has stopped costs that time. A call
 * that fails leaves a sentence in etcd_why: endpoint, call, cause.
 *
 * The statuses of every call: OK; UNAVAILABLE (no connection, or etcd has no leader); DEADLINE; DENIED (user, password,
 * or the user's rights; a password file that cannot be read); CANCELLED (after etcd_interrupt); INVALID (an answer that
 * makes no sense, or that is larger than ETCD_MESSAGE_MAX); NOT_FOUND (etcd's word for a lease that has ended);
 * STALE (the revision is compacted); EXHAUSTED (no memory); INTERNAL. etcd_watch_next has MISS besides.
 */
#ifndef TERRACE_DAEMON_ETCD_ETCD_H
#define TERRACE_DAEMON_ETCD_ETCD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

enum {
	ETCD_ENDPOINTS_MAX = 8,
	ETCD_WHY_MAX = 512,
	ETCD_MESSAGE_MAX = 4 << 20,  /* bytes of one answer: a page of members has 0.3 MiB */
	ETCD_PAGE = 512,             /* keys of one answer of etcd_range */
	ETCD_TTL_MAX_S = 24 * 3600,  /* of a lease: etcd may give more than was asked for, by its election timeout */
};

/* The texts must stay valid as long as the client. */
struct etcd_options {
	const char *endpoints;       /* HOST:PORT, separated by commas */
	const char *user;            /* NULL or empty: none */
	const char *password_file;   /* its first line; read at each connection */
	const char *ca, *cert, *key; /* PEM files, read at each connection; ca empty: no TLS; the others may be empty */
	const char *agent;           /* how the client names itself */
	uint64_t call_us;
};

struct etcd;

/* NULL: no memory. */
struct etcd *etcd_create(const struct etcd_options *options);
void etcd_destroy(struct etcd *e);

/* Called once, from any thread: the call under way and all later ones soon end with CANCELLED. etcd_resume, on the
 * client's thread, lets calls of at most call_us work again: for the calls of an orderly end. */
void etcd_interrupt(struct etcd *e);
void etcd_resume(struct etcd *e, uint64_t call_us);
/* Waits, without a call. CANCELLED: interrupted. */
enum status etcd_sleep(struct etcd *e, uint64_t wait_us);

uint32_t etcd_endpoint_count(const struct etcd *e);
/* The endpoint in use, or last tried; "" before the first. */
const char *etcd_endpoint(const struct etcd *e);
const char *etcd_why(const struct etcd *e);

/* Connects to the next endpoint of the list and ends an earlier connection. Authenticates if there is a user. */
enum status etcd_connect(struct etcd *e);
void etcd_disconnect(struct etcd *e);

/* ---- leases ---- */

/* Takes a lease. *got_s: the time that etcd has chosen for it. */
enum status etcd_lease_grant(struct etcd *e, int64_t ttl_s, int64_t *id, int64_t *got_s);
/* Renews a lease. *ttl_s 0: there is no such lease any more. */
enum status etcd_lease_keep(struct etcd *e, int64_t id, int64_t *ttl_s);
/* Ends a lease; OK also if there is none. */
enum status etcd_lease_revoke(struct etcd *e, int64_t id);

/* ---- keys ---- */

/* A key and its value, valid during the call that gets them. */
struct etcd_key {
	const uint8_t *key, *value;
	size_t key_bytes, value_bytes;
	int64_t mod_revision;        /* of the last write: etcd numbers all writes */
	int64_t lease;               /* 0: it has none */
	bool deleted;                /* a watch's event: the key is not there any more, and value is empty */
};
typedef void etcd_take_fn(void *arg, const struct etcd_key *key);

/* Reads every key that begins with `prefix`, as of one revision, which is *revision. INVALID also: there are more than
 * 32768 such keys, or they are not in order. `take` may then have had some of them. */
enum status etcd_range(struct etcd *e, const char *prefix, etcd_take_fn *take, void *arg, int64_t *revision);

/* Writes the key if its last write was mod_revision (0: if there is no such key). *written false: the condition did not
 * hold, and nothing was written. The condition for a missing key, too, compares its mod_revision, with 0: a comparison
 * of its *value* would be false, whatever is compared (etcd's documentation of Compare). */
enum status etcd_put_if(struct etcd *e, const char *key, int64_t mod_revision, const uint8_t *value, size_t bytes,
			int64_t lease, bool *written);

/* ---- one watch ---- */

/* Watches the keys that begin with `prefix`, from that revision on. Returns when etcd has confirmed the watch. Ends an
 * earlier watch. STALE: the revision is compacted; begin with etcd_range again. */
enum status etcd_watch(struct etcd *e, const char *prefix, int64_t revision);
/* Hands over the events of the next answer, in order. MISS: none came in wait_us. The watch has ended: STALE
 * (compacted), DENIED, UNAVAILABLE. */
enum status etcd_watch_next(struct etcd *e, uint64_t wait_us, etcd_take_fn *take, void *arg);

#endif
