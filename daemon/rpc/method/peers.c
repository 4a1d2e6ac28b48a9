/* Peers: the members of the cluster as this daemon knows them. */
#include "daemon/members/members.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <string.h>

/* In the arena, since the list may be gone before the reply is packed. NULL: too much. */
static char *keep(struct rpc_call *c, const char *text)
{
	char *copy = rpc_take(c, strlen(text) + 1);

	return copy ? rpc_text(strcpy(copy, text)) : NULL;
}

struct row {
	Terrace__V1__PeerRow row;
	Terrace__V1__Member member;
};

static bool fill(struct rpc_call *c, struct row *to, const struct member *m)
{
	uint8_t *node = rpc_take(c, sizeof m->node);

	terrace__v1__peer_row__init(&to->row);
	terrace__v1__member__init(&to->member);
	to->row.member = &to->member;
	to->row.self = m->self;
	to->row.absent = m->absent;
	to->row.known_ms = (daemon_now_us() - m->since_us) / 1000;
	to->member.name = keep(c, m->name);
	to->member.address = keep(c, m->address);
	to->member.version = keep(c, m->version);
	to->member.epoch = m->epoch;
	to->member.host_bytes = m->host_bytes;
	to->member.draining = m->draining;
	if (!node || !to->member.name || !to->member.address || !to->member.version)
		return false;
	memcpy(node, m->node, sizeof m->node);
	to->member.node = (ProtobufCBinaryData){ .len = sizeof m->node, .data = node };
	return true;
}

static enum status fill_rows(struct rpc_call *c, Terrace__V1__PeersReply *r, const struct members_list *list)
{
	struct row *rows = rpc_take(c, (list->count + 1) * sizeof *rows);

	r->rows = rpc_take(c, (list->count + 1) * sizeof *r->rows);
	if (!rows || !r->rows)
		return rpc_too_big(c);
	for (uint32_t i = 0; i < list->count; i++) {
		if (!fill(c, &rows[i], &list->at[i]))
			return rpc_too_big(c);
		r->rows[i] = &rows[i].row;
	}
	r->n_rows = list->count;
	return STATUS_OK;
}

static enum status fill_status(struct rpc_call *c, Terrace__V1__PeersReply *r)
{
	struct members_status now;

	members_status(c->daemon->members, &now);
	r->cluster = (char *)c->daemon->config->cluster;
	r->node_name = (char *)c->daemon->config->node_name;
	r->state = (char *)members_state_text(now.state);
	r->reason = keep(c, now.reason);
	r->endpoint = keep(c, now.endpoint);
	r->confirmed = now.confirmed_us != 0;
	r->confirmed_ms = r->confirmed ? (daemon_now_us() - now.confirmed_us) / 1000 : 0;
	return r->reason && r->endpoint ? STATUS_OK : rpc_too_big(c);
}

enum status rpc_peers(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	Terrace__V1__PeersReply *r = rpc_take(c, sizeof *r);
	enum status s = STATUS_OK;

	(void)request;
	if (!r)
		return rpc_too_big(c);
	terrace__v1__peers_reply__init(r);
	if (c->daemon->members) {
		const struct members_list *list = members_take(c->daemon->members);

		s = fill_rows(c, r, list);
		members_drop(list);
		if (s == STATUS_OK)
			s = fill_status(c, r);
	}
	*reply = &r->base;
	return s;
}
