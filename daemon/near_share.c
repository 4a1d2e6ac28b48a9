/* Who has how many of the connections for near calls. One engine is to leave room for others, whoever it is: a process that opens many
 * sessions, or a session with many processes. So each of both has as many at most as it leaves free, which needs no bound of its own: alone half of
 * them, and who has none gets one while there is any. See near_engine.h. */
#include <stdlib.h>

#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/near_engine.h"

/* With the lock: the place of who has some, or of the bucket's end. */
static struct near_holder **find(struct near *n, enum near_kind kind, uint64_t id)
{
	struct near_holder **at = &n->holders[id % NEAR_HOLDER_BUCKETS];

	while (*at && ((*at)->id != id || (*at)->kind != kind))
		at = &(*at)->next;
	return at;
}

bool near_share_allows(struct near *n, pid_t pid, uint64_t session)
{
	const uint64_t ids[NEAR_KINDS] = { [NEAR_BY_PROCESS] = (uint64_t)pid, [NEAR_BY_SESSION] = session };
	const uint64_t taken = atomic_load_explicit(&n->connections, memory_order_relaxed), max = n->daemon->config->connections_max;
	bool allowed = taken < max;

	pthread_mutex_lock(&n->lock);
	for (int kind = 0; kind < NEAR_KINDS && allowed; kind++) {
		const struct near_holder *h = *find(n, (enum near_kind)kind, ids[kind]);

		allowed = !h || h->count < max - taken;
	}
	pthread_mutex_unlock(&n->lock);
	return allowed;
}

bool near_share_take(struct near_connection *k, pid_t pid)
{
	const uint64_t ids[NEAR_KINDS] = { [NEAR_BY_PROCESS] = (uint64_t)pid, [NEAR_BY_SESSION] = k->session };
	bool taken = true;

	pthread_mutex_lock(&k->near->lock);
	for (int kind = 0; kind < NEAR_KINDS && taken; kind++) {
		struct near_holder **at = find(k->near, (enum near_kind)kind, ids[kind]);

		if (!*at && (*at = calloc(1, sizeof **at)))
			**at = (struct near_holder){ .kind = (enum near_kind)kind, .id = ids[kind] };
		taken = *at;
		if (taken) {
			(*at)->count++;
			k->holder[kind] = *at;
		}
	}
	pthread_mutex_unlock(&k->near->lock);
	return taken;
}

void near_share_leave(struct near_connection *k)
{
	pthread_mutex_lock(&k->near->lock);
	for (int kind = 0; kind < NEAR_KINDS; kind++) {
		struct near_holder *h = k->holder[kind], **at;

		if (!h || --h->count)
			continue;
		at = find(k->near, h->kind, h->id);
		*at = h->next;
		free(h);
	}
	pthread_mutex_unlock(&k->near->lock);
}
