/* See rpc/roles.h. Numbers are small and reused, the least free one first. Soon each role has as many numbers as it
 * ever had connections at a time, and needs no new ones. */
#include "daemon/rpc/roles.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NUMBERS_MAX = 1 << 20, TRIES = 16, ROLE_CERTIFIED = 0x80 };

enum status rpc_roles_init(struct rpc_roles *p, const struct config *c)
{
	struct rlimit limit;
	uint32_t count = NUMBERS_MAX;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < NUMBERS_MAX)
		count = (uint32_t)limit.rlim_cur;
	*p = (struct rpc_roles){ .config = c, .role = calloc(count, sizeof p->role[0]), .count = count };
	return p->role ? STATUS_OK : STATUS_EXHAUSTED;
}

void rpc_roles_fini(struct rpc_roles *p)
{
	free(p->role);
	*p = (struct rpc_roles){ .role = NULL };
}

/* False: the number is the other role's, or beyond the table. kind: as in the table. */
static bool take(struct rpc_roles *p, int number, uint8_t kind)
{
	uint8_t has;

	if ((uint32_t)number >= p->count)
		return false;
	has = atomic_load_explicit(&p->role[number], memory_order_relaxed);
	if (has && has != kind)
		return false;
	atomic_store_explicit(&p->role[number], kind, memory_order_relaxed);
	p->fresh = number < p->fresh ? p->fresh : number + 1;
	return true;
}

int rpc_roles_settle(struct rpc_roles *p, int fd, bool certified)
{
	int passed[TRIES + 1], n = 0, error = 0;
	struct who who = { .role = ROLE_ENGINE };

	if (!certified)
		rights_identify(p->config, fd, &who);
	const uint8_t kind = (uint8_t)((who.role + 1) | (certified ? ROLE_CERTIFIED : 0));

	while (!take(p, fd, kind)) {
		passed[n++] = fd;
		/* Free ones of its own may lie between those of the others; at last one that none has had. */
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

static uint8_t kind_of(const struct rpc_roles *p, int number)
{
	return (uint32_t)number < p->count ? atomic_load_explicit(&p->role[number], memory_order_relaxed) : 0;
}

enum role rpc_roles_role(const struct rpc_roles *p, int number)
{
	const uint8_t role = kind_of(p, number) & ~ROLE_CERTIFIED;

	return role ? (enum role)(role - 1) : ROLE_ENGINE;
}

bool rpc_roles_certified(const struct rpc_roles *p, int number)
{
	return kind_of(p, number) & ROLE_CERTIFIED;
}
