/* See rpc/roles.h. Numbers are small and reused, the least free one first. Soon each role has as many numbers as it
 * ever had connections at a time, and needs no new ones. */
#include "daemon/rpc/roles.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NUMBERS_MAX = 1 << 20, TRIES = 16, CERTIFIED = 0x80, ROLE_BITS = 0x7f, SET_SHIFT = 8 };

enum status rpc_roles_init(struct rpc_roles *p, const struct config *c)
{
	struct rlimit limit;
	uint32_t count = NUMBERS_MAX;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < NUMBERS_MAX)
		count = (uint32_t)limit.rlim_cur;
	*p = (struct rpc_roles){ .config = c, .kind = calloc(count, sizeof p->kind[0]), .count = count };
	p->peer_of = p->kind ? calloc(RPC_PEER_SETS_MAX, sizeof p->peer_of[0]) : NULL;
	if (p->peer_of)
		return STATUS_OK;
	rpc_roles_fini(p);
	return STATUS_EXHAUSTED;
}

void rpc_roles_fini(struct rpc_roles *p)
{
	free(p->kind);
	free(p->peer_of);
	*p = (struct rpc_roles){ .kind = NULL };
}

/* Takes a number for connections of a kind. False: it is another kind's, or beyond the table. kind: as in the table. */
static bool take(struct rpc_roles *p, int number, uint64_t kind)
{
	uint64_t has;

	if ((uint32_t)number >= p->count)
		return false;
	has = atomic_load_explicit(&p->kind[number], memory_order_relaxed);
	if (has && has != kind)
		return false;
	atomic_store_explicit(&p->kind[number], kind, memory_order_release);
	p->fresh = number < p->fresh ? p->fresh : number + 1;
	return true;
}

/* The number of a set of tenants; a set stays for ever, as kinds do. -1: there are too many. Calls read a set by a kind
 * that was stored after it. */
static int set_of(struct rpc_roles *p, const uint64_t tenants[WHO_TENANT_WORDS])
{
	for (uint32_t i = 0; i < p->peer_sets; i++)
		if (!memcmp(p->peer_of[i], tenants, sizeof p->peer_of[i]))
			return (int)i;
	if (p->peer_sets == RPC_PEER_SETS_MAX)
		return -1;
	memcpy(p->peer_of[p->peer_sets], tenants, sizeof p->peer_of[0]);
	return (int)p->peer_sets++;
}

int rpc_roles_settle(struct rpc_roles *p, int fd, const struct who *who)
{
	const int set = who->role == ROLE_PEER ? set_of(p, who->peer_of) : 0;
	const uint64_t kind = (uint64_t)who->tenant << 32 | (uint64_t)(set < 0 ? 0 : set) << SET_SHIFT |
			      (who->certified ? CERTIFIED : 0) | (who->role + 1);
	int passed[TRIES + 1], n = 0, error = 0;

	if (set < 0) {
		close(fd);
		errno = ENOSPC;
		return -1;
	}

	while (!take(p, fd, kind)) {
		passed[n++] = fd;
		/* Among numbers of other kinds free ones of this kind may lie. The last try is a number that no
		 * connection has had. */
		fd = n > TRIES ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, n < TRIES && fd + 1 < p->fresh ? fd + 1 : p->fresh);
		if (fd < 0) {
			error = EMFILE;
			break;
		}
	}
	while (n > 0)
		close(passed[--n]);
	errno = error;
	return fd;
}

static uint64_t kind_of(const struct rpc_roles *p, int number)
{
	return (uint32_t)number < p->count ? atomic_load_explicit(&p->kind[number], memory_order_acquire) : 0;
}

enum role rpc_roles_role(const struct rpc_roles *p, int number)
{
	const uint32_t role = (uint32_t)kind_of(p, number) & ROLE_BITS;

	return role ? (enum role)(role - 1) : ROLE_ENGINE;
}

uint32_t rpc_roles_tenant(const struct rpc_roles *p, int number)
{
	const uint64_t kind = kind_of(p, number);

	return kind ? (uint32_t)(kind >> 32) : rights_unknown_tenant(p->config);
}

bool rpc_roles_certified(const struct rpc_roles *p, int number)
{
	return kind_of(p, number) & CERTIFIED;
}

void rpc_roles_peer_of(const struct rpc_roles *p, int number, uint64_t out[WHO_TENANT_WORDS])
{
	static const uint64_t none[WHO_TENANT_WORDS];
	const uint32_t kind = (uint32_t)kind_of(p, number);
	const bool is_peer = (kind & ROLE_BITS) == ROLE_PEER + 1;

	memcpy(out, is_peer ? p->peer_of[kind >> SET_SHIFT] : none, sizeof none);
}
