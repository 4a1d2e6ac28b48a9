/* See rpc/peers.h. */
#include "daemon/rpc/peers.h"

#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "store/status.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TRIM_AFTER_US = 2 * 1000 * 1000 };
enum { REFUSED_MAX = 32, EVENTS = 64, SLOTS_FIRST = 64 };

struct connection {
	struct connection *prev, *next; /* the ring of all */
	int fd, own;                   /* gRPC's number; the descriptor of ours */
	struct cache_peer peer;
	struct quota_holder *holder;
	uint64_t cut_us;               /* when it is cut: UINT64_MAX, unless it is refused */
	uint64_t moved_us;             /* when its output was last seen to be none, or less than before */
	int unread;                    /* bytes of it then */
	uint64_t vain_us;              /* since when its refused calls are counted */
	uint32_t vain;
	bool refused, cut;
	char why[RPC_REFUSAL_MAX];     /* of a refused one */
};

struct rpc_peers {
	struct quota *quota;
	int ended;                     /* an epoll of all `own` */
	uint64_t look_us;

	pthread_mutex_t lock;          /* what follows */
	struct connection all;         /* its links alone are used */
	struct connection **of;        /* by gRPC's number; NULL: none */
	int slots;
	uint32_t count, refused;
	uint64_t refused_total, stalled_total, vain_total;
	uint64_t trim_us;              /* when memory of a flood goes back to the kernel; UINT64_MAX: there was none */
	struct log_again said, cut_said;
};

enum status rpc_peers_create(struct quota *q, uint64_t max, struct rpc_peers **out)
{
	struct rpc_peers *p = calloc(1, sizeof *p);

	if (!p)
		return STATUS_EXHAUSTED;
	p->quota = q;
	p->all.next = p->all.prev = &p->all;
	p->trim_us = UINT64_MAX;
	p->ended = epoll_create1(EPOLL_CLOEXEC);
	pthread_mutex_init(&p->lock, NULL);
	quota_bound(q, QUOTA_RPC, max);
	if (p->ended < 0) {
		rpc_peers_destroy(p);
		return STATUS_IO;
	}
	*out = p;
	return STATUS_OK;
}

/* Forgets a connection. With the lock. */
static void forget(struct rpc_peers *p, struct connection *k)
{
	k->prev->next = k->next;
	k->next->prev = k->prev;
	if (p->of[k->fd] == k)
		p->of[k->fd] = NULL;
	epoll_ctl(p->ended, EPOLL_CTL_DEL, k->own, NULL); /* gRPC may not have closed its descriptor yet: to close this one alone would tell again */
	close(k->own);
	if (k->refused)
		p->refused--;
	else
		quota_give(k->holder, QUOTA_RPC, 1);
	quota_leave(k->holder);
	p->count--;
	free(k);
}

void rpc_peers_destroy(struct rpc_peers *p)
{
	if (!p)
		return;
	while (p->all.next != &p->all)
		forget(p, p->all.next);
	if (p->ended >= 0)
		close(p->ended);
	pthread_mutex_destroy(&p->lock);
	free(p->of);
	free(p);
}

/* Makes room in the table for that number. False: no memory. With the lock. */
static bool slots_for(struct rpc_peers *p, int fd)
{
	int slots = p->slots ? p->slots : SLOTS_FIRST;
	struct connection **of;

	while (slots <= fd)
		slots *= 2;
	if (slots == p->slots)
		return true;
	of = realloc(p->of, (size_t)slots * sizeof of[0]);
	if (!of)
		return false;
	memset(of + p->slots, 0, (size_t)(slots - p->slots) * sizeof of[0]);
	p->of = of;
	p->slots = slots;
	return true;
}

/* Whether the connection may stay, perhaps only for a moment, in which its calls are refused. */
static bool admit(struct rpc_peers *p, struct connection *k, const struct cache_peer *peer, uint64_t now_us)
{
	const char *why = "";
	uint64_t held;

	k->holder = quota_join(p->quota, peer);
	if (!k->holder)
		return false;
	if (quota_take(k->holder, QUOTA_RPC, 1, &why) == STATUS_OK)
		return true;
	k->refused = true;
	k->cut_us = now_us + RPC_REFUSED_US;
	strncpy(k->why, why, sizeof k->why - 1);
	p->refused_total++;
	if (log_again(&p->said, now_us, &held))
		log_warn("rpc_refused", LOG_TEXT("reason", k->why), LOG_NUM("held_back", held));
	return p->refused < REFUSED_MAX;
}

/* Adds the connection to the table. With the lock. */
static void link_up(struct rpc_peers *p, struct connection *k)
{
	k->next = p->all.next;
	k->prev = &p->all;
	k->next->prev = k;
	p->all.next = k;
	p->of[k->fd] = k;
	p->count++;
	p->refused += k->refused;
}

static void undo(struct connection *k)
{
	if (k->own >= 0)
		close(k->own);
	if (k->holder && !k->refused)
		quota_give(k->holder, QUOTA_RPC, 1);
	quota_leave(k->holder);
	free(k);
}

bool rpc_peers_add(struct rpc_peers *p, int fd, const struct cache_peer *peer, uint64_t now_us)
{
	struct connection *k = malloc(sizeof *k);
	bool added;

	if (!k)
		return false;
	*k = (struct connection){
		.fd = fd, .own = fcntl(fd, F_DUPFD_CLOEXEC, 0), .peer = *peer, .cut_us = UINT64_MAX, .moved_us = now_us
	};
	struct epoll_event e = { .events = 0, .data.ptr = k }; /* a hang-up is always told */

	pthread_mutex_lock(&p->lock);
	added = k->own >= 0 && slots_for(p, fd) && admit(p, k, peer, now_us) && !epoll_ctl(p->ended, EPOLL_CTL_ADD, k->own, &e);
	if (added)
		link_up(p, k);
	pthread_mutex_unlock(&p->lock);
	if (!added)
		undo(k);
	return added;
}

int rpc_peers_fd(const struct rpc_peers *p)
{
	return p->ended;
}

/* Whether the client has not read for too long. What gRPC cannot write it keeps, without a bound of its own: so what
 * matters is a buffer that fills up. A client without a call may leave small frames unread, window updates and pings,
 * as one does whose library reads only while a call is under way. */
static bool stalls(struct connection *k, uint64_t now_us)
{
	int unread = 0;

	if (ioctl(k->own, SIOCOUTQ, &unread))
		unread = 0;
	if (unread < RPC_STALL_BYTES || unread < k->unread)
		k->moved_us = now_us;
	k->unread = unread;
	return now_us - k->moved_us > RPC_STALL_US;
}

/* Cuts a connection: gRPC and the peer see its end, and then it is forgotten. why: the reason for the log; NULL: it has
 * been told. With the lock. */
static void cut(struct rpc_peers *p, struct connection *k, const char *why)
{
	uint64_t held;

	shutdown(k->own, SHUT_RDWR);
	k->cut = true;
	if (why && log_again(&p->cut_said, daemon_now_us(), &held))
		log_warn("rpc_cut", LOG_NUM("fd", k->fd), LOG_NUM("unread_bytes", k->unread), LOG_TEXT("reason", why), LOG_NUM("held_back", held));
}

static void look_at(struct rpc_peers *p, struct connection *k, uint64_t now_us)
{
	if (k->cut)
		return;
	if (k->cut_us <= now_us) {
		cut(p, k, NULL);
	} else if (stalls(k, now_us)) {
		p->stalled_total++;
		cut(p, k, "its peer does not read what it has asked for");
	}
}

uint64_t rpc_peers_look(struct rpc_peers *p, uint64_t now_us)
{
	struct epoll_event e[EVENTS];
	bool trim;
	int n;

	pthread_mutex_lock(&p->lock);
	do {
		n = epoll_wait(p->ended, e, EVENTS, 0);
		for (int i = 0; i < n; i++)
			forget(p, e[i].data.ptr);
	} while (n == EVENTS);
	if (now_us >= p->look_us) {
		for (struct connection *k = p->all.next; k != &p->all; k = k->next)
			look_at(p, k, now_us);
		p->look_us = now_us + RPC_LOOK_US;
	}
	trim = p->trim_us <= now_us;
	if (trim)
		p->trim_us = UINT64_MAX;
	n = (int)p->count + (p->trim_us != UINT64_MAX);
	pthread_mutex_unlock(&p->lock);
	if (trim)
		malloc_trim(0); /* else the allocator keeps what the flood's calls took */
	return n ? p->look_us : UINT64_MAX;
}

struct quota_holder *rpc_peers_holder(struct rpc_peers *p, int fd, char *why)
{
	struct quota_holder *h = NULL;
	const struct connection *k;

	*why = 0;
	pthread_mutex_lock(&p->lock);
	k = fd >= 0 && fd < p->slots ? p->of[fd] : NULL;
	if (k) {
		h = quota_join_again(k->holder);
		strcpy(why, k->why);
	}
	pthread_mutex_unlock(&p->lock);
	return h;
}

void rpc_peers_peer(struct rpc_peers *p, int fd, struct cache_peer *out)
{
	const struct connection *k;

	*out = (struct cache_peer){ .process = 0 };
	pthread_mutex_lock(&p->lock);
	k = fd >= 0 && fd < p->slots ? p->of[fd] : NULL;
	if (k)
		*out = k->peer;
	pthread_mutex_unlock(&p->lock);
}

void rpc_peers_called_in_vain(struct rpc_peers *p, int fd, uint64_t now_us)
{
	struct connection *k;

	pthread_mutex_lock(&p->lock);
	k = fd >= 0 && fd < p->slots ? p->of[fd] : NULL;
	if (k && now_us - k->vain_us > 1000000) {
		k->vain_us = now_us;
		k->vain = 0;
	}
	if (k && !k->cut && ++k->vain > RPC_REFUSALS_A_SECOND) {
		p->vain_total++;
		p->trim_us = now_us + TRIM_AFTER_US;
		cut(p, k, "it goes on calling though its calls are refused");
	}
	pthread_mutex_unlock(&p->lock);
}

void rpc_peers_stats(struct rpc_peers *p, cache_stat_fn *emit, void *arg)
{
	pthread_mutex_lock(&p->lock);
	const double count = p->count - p->refused;
	const struct {
		const char *labels;
		double value;
	} cuts[] = { { "reason=share", (double)p->refused_total }, { "reason=unread", (double)p->stalled_total }, { "reason=calls", (double)p->vain_total } };

	pthread_mutex_unlock(&p->lock);
	emit(arg, "terrace_rpc_connections", "", count, false, "connections of gRPC's clients");
	for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
		emit(arg, "terrace_rpc_connections_cut_total", cuts[i].labels, cuts[i].value, true,
		     "connections of gRPC's clients that were not kept: beyond a share, or did not read replies, or went on calling while refused");
}
