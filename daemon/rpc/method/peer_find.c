/* Find: which members have blocks, as far as this one knows as an owner of their segments. */
#include "daemon/directory/table.h"
#include "daemon/peers/peers.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/clock.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <string.h>

enum { NAME_BYTES = sizeof(struct public_name) };

struct finder {
	struct rpc_call *c;
	struct directory_found *found;
	uint32_t count;                /* names */
	Terrace__V1__FindReply *reply;
};

/* How many names the request has. INVALID: something is wrong with them. */
static enum status check(struct rpc_call *c, const Terrace__V1__FindRequest *q, uint32_t *count)
{
	size_t names = 0;

	if (!q->protocol)
		return rpc_fail(c, STATUS_INVALID, "protocol: not given");
	if (q->n_groups > PEERS_NAMES_MAX)
		return rpc_fail(c, STATUS_INVALID, "groups: %zu, at most %d", q->n_groups, PEERS_NAMES_MAX);
	for (size_t i = 0; i < q->n_groups; i++) {
		if (!q->groups[i]->names.len || q->groups[i]->names.len % NAME_BYTES)
			return rpc_fail(c, STATUS_INVALID, "groups[%zu].names: no multiple of %d bytes", i, NAME_BYTES);
		names += q->groups[i]->names.len / NAME_BYTES;
	}
	if (!names || names > PEERS_NAMES_MAX)
		return rpc_fail(c, STATUS_INVALID, "groups: %zu names, 1 to %d are possible", names, PEERS_NAMES_MAX);
	*count = (uint32_t)names;
	return STATUS_OK;
}

static struct public_name *read_names(struct rpc_call *c, const Terrace__V1__FindRequest *q, uint32_t count)
{
	struct public_name *names = rpc_take(c, count * sizeof *names);
	uint32_t n = 0;

	for (size_t i = 0; names && i < q->n_groups; i++) {
		memcpy(&names[n], q->groups[i]->names.data, q->groups[i]->names.len);
		n += (uint32_t)(q->groups[i]->names.len / NAME_BYTES);
	}
	return names;
}

/* The index of a member in the reply; it is added if it is not there. UINT32_MAX: no memory. */
static uint32_t member_index(struct finder *f, const struct directory_run *run)
{
	Terrace__V1__FindReply *r = f->reply;
	Terrace__V1__FindMember *m;

	for (size_t i = r->n_members; i--;)
		if (r->members[i]->epoch == run->epoch &&
		    !memcmp(r->members[i]->node.data, run->node, sizeof run->node))
			return (uint32_t)i;
	m = rpc_take(f->c, sizeof *m);
	if (!m)
		return UINT32_MAX;
	terrace__v1__find_member__init(m);
	m->epoch = run->epoch;
	m->node = (ProtobufCBinaryData){ .len = sizeof run->node, .data = (uint8_t *)run->node };
	r->members[r->n_members] = m;
	return (uint32_t)r->n_members++;
}

static enum status fill(struct finder *f)
{
	Terrace__V1__FindReply *r = f->reply;
	size_t n = 0;

	for (uint32_t i = 0; i < f->count; i++)
		n += f->found[i].count;
	r->members = rpc_take(f->c, (n + 1) * sizeof *r->members);
	r->name = rpc_take(f->c, (n + 1) * sizeof *r->name);
	r->member = rpc_take(f->c, (n + 1) * sizeof *r->member);
	if (!r->members || !r->name || !r->member)
		return rpc_too_big(f->c);
	for (uint32_t i = 0; i < f->count; i++)
		for (uint32_t k = 0; k < f->found[i].count; k++) {
			const uint32_t member = member_index(f, &f->found[i].at[k]);

			if (member == UINT32_MAX)
				return rpc_too_big(f->c);
			r->name[r->n_name++] = i;
			r->member[r->n_member++] = member;
		}
	return STATUS_OK;
}

enum status rpc_peer_find(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__FindRequest *q = (const Terrace__V1__FindRequest *)request;
	struct finder f = { .c = c, .reply = rpc_take(c, sizeof *f.reply) };
	const struct public_name *names;
	uint32_t tenant;
	enum status s = check(c, q, &f.count);

	if (s == STATUS_OK)
		s = rpc_peer_tenant(c, q->tenant, &tenant);
	if (s != STATUS_OK)
		return s;
	if (!c->daemon->peers)
		return rpc_no_directory(c);
	names = read_names(c, q, f.count);
	f.found = rpc_take(c, f.count * sizeof *f.found);
	if (!f.reply || !names || !f.found)
		return rpc_too_big(c);
	directory_find(peers_directory(c->daemon->peers), tenant, names, f.count, clock_us(), f.found);
	terrace__v1__find_reply__init(f.reply);
	f.reply->protocol = PEERS_PROTOCOL;
	s = fill(&f);
	if (s != STATUS_OK)
		return s;
	*reply = &f.reply->base;
	return STATUS_OK;
}
