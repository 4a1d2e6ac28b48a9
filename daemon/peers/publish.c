/* What this daemon tells the owners of its blocks' segments. See peers.h and directory/outbox.h. */
#include "daemon/exports/exports.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/state.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "store/clock.h"
#include "terrace.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_US 5000000ull
#define SEND_US 100000ull

/* ---- what is here ---- */

void peers_take_changes(struct peers *p, uint64_t now_us)
{
	if (!exports_publish(p->daemon->cache, daemon_now_us(), p->outbox, now_us))
		log_warn("peers_changes_lost",
			 LOG_TEXT("reason", "blocks came and went faster than they could be told of"),
			 LOG_TEXT("remedy", "none needed: all of them are told of anew"));
}

/* ---- a message ---- */

/* The index of a tenant in the message; it is added if it is not there. */
static uint32_t tenant_index(const struct peers *p, struct peers_packed *to, uint32_t number)
{
	uint32_t i = 0;

	while (i < to->request.n_tenants && to->numbers[i] != number)
		i++;
	if (i == to->request.n_tenants) {
		to->numbers[i] = number;
		to->tenants[i] = (char *)peers_tenant_name(p, number);
		to->request.n_tenants++;
	}
	return i;
}

/* Changes that follow each other and are alike but for the name are a group, so the names keep their numbers. */
static void pack_groups(const struct peers *p, const struct outbox_message *m, struct peers_packed *to)
{
	const struct directory_change *last = NULL;
	size_t n = 0;

	for (uint32_t i = 0; i < m->count; i++) {
		const struct directory_change *c = &m->changes[i];

		to->names[i] = c->name;
		if (!last || last->segment != c->segment || last->tenant != c->tenant || last->remove != c->remove) {
			Terrace__V1__PublishGroup *g = &to->groups[n];

			terrace__v1__publish_group__init(g);
			g->tenant = tenant_index(p, to, c->tenant);
			g->segment = c->segment;
			g->remove = c->remove;
			g->names.data = to->names[i].bytes;
			to->list[n++] = g;
		}
		to->groups[n - 1].names.len += sizeof c->name;
		last = c;
	}
	to->request.n_groups = n;
	to->request.groups = to->list;
	to->request.tenants = to->tenants;
}

static void pack(struct peers *p, const struct outbox_message *m)
{
	struct peers_packed *to = p->packed;
	Terrace__V1__PublishRequest *r = &to->request;

	terrace__v1__publish_request__init(r);
	r->protocol = PEERS_PROTOCOL;
	r->node = (ProtobufCBinaryData){ .len = sizeof p->self.node, .data = p->self.node };
	r->epoch = p->self.epoch;
	r->sequence = m->sequence;
	if (m->kind == OUTBOX_DIGEST) {
		r->kind = TERRACE__V1__PUBLISH_KIND__PUBLISH_DIGEST;
		r->buckets = m->digest.buckets;
		r->n_sums = r->n_counts = m->digest.buckets;
		r->sums = (uint64_t *)m->digest.sum;
		r->counts = (uint32_t *)m->digest.count;
		return;
	}
	pack_groups(p, m, to);
	r->told = m->told;
	if (m->kind == OUTBOX_REPLACE) {
		r->kind = TERRACE__V1__PUBLISH_KIND__PUBLISH_CONTENT;
		r->buckets = m->set.buckets;
		r->n_set = (m->set.buckets + 63) / 64;
		r->set = (uint64_t *)m->set.bits;
		r->part = m->part;
	}
}

/* ---- its answer: on the links' thread, but for messages to itself ---- */

static void message_end(struct peers_message *m)
{
	struct peers *p = m->peers;

	m->reply.refused = m->refused;
	m->reply.differ = &m->differ;
	outbox_end(p->outbox, &m->message, &m->reply, clock_us());
	pthread_mutex_lock(&p->lock);
	m->used = false;
	p->sent = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

static void take_set(struct peers_message *m, const Terrace__V1__PublishReply *r)
{
	const uint32_t buckets = m->message.digest.buckets, words = (buckets + 63) / 64;

	m->differ = (struct digest_set){ .buckets = buckets };
	for (uint32_t i = 0; i < words && i < r->n_set; i++)
		m->differ.bits[i] = r->set[i];
	if (buckets < 64)
		m->differ.bits[0] &= (1ull << buckets) - 1;
}

static void take_reply(struct peers_message *m, const Terrace__V1__PublishReply *r)
{
	m->reply = (struct outbox_reply){ .status = r->result == TERRACE__V1__PUBLISH_RESULT__PUBLISH_STALE ?
							    STATUS_STALE :
					  r->result == TERRACE__V1__PUBLISH_RESULT__PUBLISH_UNKNOWN ?
							    STATUS_UNAVAILABLE : STATUS_OK,
					  .digest_wanted = r->digest_wanted };
	for (size_t i = 0; i < r->n_refused && i < m->message.count; i++)
		if (r->refused[i] < m->message.count)
			m->refused[m->reply.refused_count++] = r->refused[i];
	if (m->message.kind == OUTBOX_DIGEST)
		take_set(m, r);
	m->answered = true;
}

static void message(void *arg, const struct grpc_byte_buffer *bytes)
{
	struct peers_message *m = arg;
	Terrace__V1__PublishReply *r =
		(Terrace__V1__PublishReply *)links_unpack(&terrace__v1__publish_reply__descriptor, bytes);

	if (!r)
		return;
	take_reply(m, r);
	protobuf_c_message_free_unpacked(&r->base, NULL);
}

static void ended(void *arg, enum status s, const char *why)
{
	struct peers_message *m = arg;
	struct peers *p = m->peers;
	uint64_t held;

	if (s != STATUS_OK || !m->answered)
		m->reply = (struct outbox_reply){ .status = s == STATUS_OK ? STATUS_INVALID : s };
	const bool is_failure = s != STATUS_OK && s != STATUS_CANCELLED && s != STATUS_UNSUPPORTED; /* links.c tells */

	if (is_failure && log_again(&p->failed_again, daemon_now_us(), &held))
		log_warn("peer_not_told", LOG_TEXT("reason", why),
			 LOG_TEXT("used", "the segments' other owners; it is told again later"),
			 LOG_TEXT("remedy",
				  "see 'terracectl peers' of both daemons, and that the certificate of each is "
				  "a peer's to the other"),
			 LOG_NUM("held", held));
	message_end(m);
}

/* ---- sending: the peers' thread ---- */

/* To this daemon's own directory. */
static void apply(struct peers_message *m)
{
	struct peers *p = m->peers;
	const struct outbox_message *o = &m->message;
	const struct directory_sender from = { .run = p->self, .sequence = o->sequence };
	struct directory_published out = { .refused = m->refused };
	const struct directory_buckets content = { .set = &o->set, .changes = o->changes, .count = o->count,
						   .part = o->part };
	enum status s;

	if (o->kind == OUTBOX_DIGEST)
		s = directory_digest(p->directory, &from, &o->digest, &m->differ);
	else if (o->kind == OUTBOX_REPLACE)
		s = directory_replace(p->directory, &from, &content, clock_us(), &out);
	else
		s = directory_publish(p->directory, &from, o->changes, o->count, o->told, clock_us(), &out);
	m->reply = (struct outbox_reply){ .status = s, .digest_wanted = out.digest_wanted,
					  .refused_count = out.refused_count };
	message_end(m);
}

static void send_one(struct peers *p, struct peers_message *m)
{
	static const struct peer_call_ops ops = { message, ended };
	char member[MEMBER_NAME_MAX];
	struct peer_call *call;
	enum status s = STATUS_UNAVAILABLE;

	if (directory_run_equal(&m->message.to, &p->self)) {
		apply(m);
		return;
	}
	pack(p, &m->message);
	if (peers_member(p, &m->message.to, member))
		s = links_call(p->links, member,
			       &(struct peer_ask){ "/terrace.v1.Peer/Publish", &p->packed->request.base,
						   clock_us() + MESSAGE_US, &ops, m }, &call);
	if (s == STATUS_OK)
		return;
	m->reply = (struct outbox_reply){ .status = s };
	message_end(m);
}

static struct peers_message *room(struct peers *p)
{
	struct peers_message *free_one = NULL;

	pthread_mutex_lock(&p->lock);
	for (int i = 0; i < PEERS_MESSAGES && !free_one; i++)
		if (!p->messages[i].used)
			free_one = &p->messages[i];
	pthread_mutex_unlock(&p->lock);
	return free_one;
}

void peers_send(struct peers *p, uint64_t now_us)
{
	struct peers_message *m;

	while ((m = room(p))) {
		if (!outbox_next(p->outbox, now_us, &m->message)) {
			p->send_us = now_us + SEND_US;
			return;
		}
		m->peers = p;
		m->answered = false;
		m->used = true; /* only this thread takes it, so it needs no lock to be seen as free */
		send_one(p, m);
	}
	p->send_us = UINT64_MAX; /* the end of a message wakes the thread */
}
