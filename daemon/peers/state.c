/* What all files of this folder ask of its state. See state.h. */
#include "daemon/peers/state.h"

#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/tenants.h"

#include <string.h>

struct owners *peers_owners(struct peers *p)
{
	struct owners *o;

	pthread_mutex_lock(&p->lock);
	o = p->owners ? owners_hold(p->owners) : NULL;
	pthread_mutex_unlock(&p->lock);
	return o;
}

bool peers_member(struct peers *p, const struct directory_run *run, char name[MEMBER_NAME_MAX])
{
	pthread_mutex_lock(&p->lock);
	const struct members_list *list = p->stopping ? NULL : members_take(p->members);
	uint32_t i = 0;

	pthread_mutex_unlock(&p->lock);
	if (!list)
		return false;
	while (i < list->count && (list->at[i].epoch != run->epoch ||
				   memcmp(list->at[i].node, run->node, sizeof run->node)))
		i++;
	if (i < list->count)
		strcpy(name, list->at[i].name);
	const bool found = i < list->count;

	members_drop(list);
	return found;
}

struct hints *peers_hints(struct peers *p)
{
	return p->hints;
}

struct peer_links *peers_links(struct peers *p)
{
	return p->links;
}

struct peer_source *peers_source(struct peers *p)
{
	return p->source;
}

struct spills *peers_spills(struct peers *p)
{
	return p->spills;
}

struct directory *peers_directory(struct peers *p)
{
	return p->directory;
}

const char *peers_tenant_name(const struct peers *p, uint32_t number)
{
	const struct tenants *t = p->daemon->config->tenants;

	for (uint32_t i = 0; t && i < t->count; i++)
		if (t->of[i].number == number)
			return t->of[i].name;
	return "default";
}
