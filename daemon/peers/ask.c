/* Questions: which members have these blocks. See peers.h.
 *
 * A question becomes a Find for each owner, with all of its names. Names of segments that this daemon owns are looked
 * up in its own directory first, and asked of the other owner if that has none: this daemon may be new. A Find that
 * fails is made again of the names' second owners, within the question's time. Of a name without an answer the hints
 * then say for a while that no member has it, so that it is not asked for again and again. */
#include "daemon/names/public_name.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/state.h"
#include "daemon/process/daemon.h"
#include "store/clock.h"
#include "terrace.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* A Find, to one owner. */
struct peers_find {
	struct peers *peers;
	struct peers_question *question;
	struct directory_run owner;
	bool second;                   /* another owner has failed */
	bool answered;                 /* the links' thread's */
	uint32_t count;
	uint32_t index[];              /* of the question's names */
};

/* Where each name of a question goes: an index of `owners`, or OWNERS_NONE. */
struct targets {
	const struct owners *owners;
	uint32_t *of;
};

static void find_begin(struct peers_find *f);

/* ---- the end of a question ---- */

void peers_question_end(struct peers_question *q, enum status s)
{
	q->ended(q, s);
}

/* One of what the question waits for is over. */
static void outstanding_drop(struct peers *p, struct peers_question *q, enum status s)
{
	pthread_mutex_lock(&p->lock);
	if (s != STATUS_OK)
		q->worst = s;
	const bool over = !--q->outstanding;

	s = q->worst;
	pthread_mutex_unlock(&p->lock);
	if (over)
		peers_question_end(q, s);
}

/* The names of a Find have no answer. */
static void give_up(struct peers_find *f, enum status s)
{
	struct peers *p = f->peers;
	struct peers_question *q = f->question;

	for (uint32_t i = 0; i < f->count; i++)
		hints_answer(p->hints, q->tenant, &q->names[f->index[i]].name, NULL, 0, clock_us());
	atomic_fetch_add_explicit(&p->unanswered, f->count, memory_order_relaxed);
	free(f);
	outstanding_drop(p, q, s);
}

/* ---- the owners of names ---- */

/* The owner to ask for a segment: not this daemon, not `not`, and rather one that is not avoided. */
static uint32_t owner_for(struct peers *p, const struct owners *o, uint64_t segment, const struct directory_run *not)
{
	uint32_t of[OWNERS_A_SEGMENT], best = OWNERS_NONE;

	owners_of(o, segment, of);
	for (int i = 0; i < OWNERS_A_SEGMENT; i++) {
		const struct directory_run *run =
			of[i] == OWNERS_NONE ? NULL : &owners_member(o, of[i])->run;

		if (!run || directory_run_equal(run, &p->self) || (not && directory_run_equal(run, not)))
			continue;
		if (!hints_avoided(p->hints, run, clock_us()))
			return of[i];
		if (best == OWNERS_NONE)
			best = of[i];
	}
	return best;
}

/* Whether this daemon owns the segment, too. */
static bool owns(const struct peers *p, const struct owners *o, uint64_t segment)
{
	uint32_t of[OWNERS_A_SEGMENT];

	owners_of(o, segment, of);
	for (int i = 0; i < OWNERS_A_SEGMENT; i++)
		if (of[i] != OWNERS_NONE && directory_run_equal(&owners_member(o, of[i])->run, &p->self))
			return true;
	return false;
}

/* Holders other than this daemon. */
static uint32_t others(const struct peers *p, const struct directory_run *at, uint32_t count,
		       struct directory_run out[DIRECTORY_HOLDERS_MAX])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < count && n < DIRECTORY_HOLDERS_MAX; i++)
		if (!directory_run_equal(&at[i], &p->self))
			out[n++] = at[i];
	return n;
}

static void answer(struct peers *p, const struct peers_question *q, uint32_t i, const struct directory_run *at,
		   uint32_t count)
{
	struct directory_run holders[DIRECTORY_HOLDERS_MAX];
	const uint32_t n = others(p, at, count, holders);

	hints_answer(p->hints, q->tenant, &q->names[i].name, holders, n, clock_us());
	if (n)
		atomic_fetch_add_explicit(&p->found, 1, memory_order_relaxed);
}

/* What the own directory has of a name; false: nothing. */
static bool answer_here(struct peers *p, const struct peers_question *q, uint32_t i)
{
	struct directory_found found;

	directory_find(p->directory, q->tenant, &q->names[i].name, 1, clock_us(), &found);
	if (!found.count && !found.refused)
		return false;
	answer(p, q, i, found.at, found.count);
	return true;
}

static uint32_t target_of(struct peers *p, const struct peers_question *q, const struct owners *o, uint32_t i)
{
	const uint64_t now = clock_us();
	const struct peers_name *name = &q->names[i];
	uint32_t target;

	if (!hints_ask(p->hints, q->tenant, &name->name, now, q->deadline_us))
		return OWNERS_NONE; /* known, or another question asks */
	atomic_fetch_add_explicit(&p->names_asked, 1, memory_order_relaxed);
	if (owns(p, o, name->segment) && answer_here(p, q, i))
		return OWNERS_NONE;
	target = owner_for(p, o, name->segment, NULL);
	if (target == OWNERS_NONE)
		answer(p, q, i, NULL, 0);
	return target;
}

/* ---- a Find ---- */

static struct peers_find *find_create(struct peers *p, struct peers_question *q, const struct directory_run *owner,
				      uint32_t room)
{
	struct peers_find *f = malloc(sizeof *f + room * sizeof f->index[0]);

	if (!f)
		return NULL;
	*f = (struct peers_find){ .peers = p, .question = q, .owner = *owner };
	pthread_mutex_lock(&p->lock);
	q->outstanding++;
	pthread_mutex_unlock(&p->lock);
	return f;
}

/* Takes names of one target out of `t`, and makes a Find of them. */
static void gather(struct peers *p, struct peers_question *q, struct targets *t, uint32_t from)
{
	const uint32_t target = t->of[from];
	uint32_t n = 0;

	for (uint32_t i = from; i < q->count; i++)
		n += t->of[i] == target;
	n = n < PEERS_NAMES_MAX ? n : PEERS_NAMES_MAX;
	struct peers_find *f = find_create(p, q, &owners_member(t->owners, target)->run, n);

	for (uint32_t i = from; i < q->count && n; i++) {
		if (t->of[i] != target)
			continue;
		t->of[i] = OWNERS_NONE;
		n--;
		if (f)
			f->index[f->count++] = i;
		else
			answer(p, q, i, NULL, 0);
	}
	if (f)
		find_begin(f);
}

void peers_question_begin(struct peers *p, struct peers_question *q)
{
	struct owners *o = peers_owners(p);
	struct targets t = { .owners = o, .of = o ? malloc((q->count + 1) * sizeof *t.of) : NULL };

	atomic_fetch_add_explicit(&p->asked, 1, memory_order_relaxed);
	pthread_mutex_lock(&p->lock);
	q->outstanding = 1;
	q->worst = t.of ? STATUS_OK : STATUS_UNAVAILABLE;
	pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; t.of && i < q->count; i++)
		t.of[i] = target_of(p, q, o, i);
	for (uint32_t i = 0; t.of && i < q->count; i++)
		if (t.of[i] != OWNERS_NONE)
			gather(p, q, &t, i);
	free(t.of);
	owners_drop(o);
	outstanding_drop(p, q, STATUS_OK);
}

/* The names of a Find that failed, for their other owners. Ends the Find. */
static void ask_second(struct peers_find *f, enum status s)
{
	struct peers *p = f->peers;
	struct peers_question *q = f->question;
	struct owners *o = f->second || s == STATUS_CANCELLED || clock_us() >= q->deadline_us ?
				   NULL : peers_owners(p);

	/* The names of one owner are of few segments: mostly they go to one other owner, too. */
	for (uint32_t at = 0; o && at < f->count;) {
		const uint32_t target = owner_for(p, o, q->names[f->index[at]].segment, &f->owner);
		uint32_t end = at + 1;

		while (end < f->count && owner_for(p, o, q->names[f->index[end]].segment, &f->owner) == target)
			end++;
		struct peers_find *second = target == OWNERS_NONE ?
						    NULL : find_create(p, q, &owners_member(o, target)->run, end - at);

		if (!second)
			break;
		memcpy(second->index, f->index + at, (end - at) * sizeof f->index[0]);
		second->count = end - at;
		second->second = true;
		f->count -= end - at;
		memmove(f->index, f->index + end, f->count * sizeof f->index[0]);
		find_begin(second);
	}
	owners_drop(o);
	if (f->count) {
		give_up(f, s);
		return;
	}
	free(f);
	outstanding_drop(p, q, STATUS_OK);
}

/* ---- the answer: on the links' thread ---- */

static bool is_sound(const Terrace__V1__FindReply *r, uint32_t names)
{
	if (r->n_name != r->n_member || r->n_name > (size_t)names * DIRECTORY_HOLDERS_MAX)
		return false;
	for (size_t i = 0; i < r->n_members; i++)
		if (r->members[i]->node.len != DIRECTORY_NODE_BYTES)
			return false;
	for (size_t i = 0; i < r->n_name; i++)
		if (r->name[i] >= names || r->member[i] >= r->n_members)
			return false;
	return true;
}

static void take_reply(struct peers_find *f, const Terrace__V1__FindReply *r)
{
	struct directory_found *found = calloc(f->count, sizeof *found);

	for (size_t i = 0; found && i < r->n_name; i++) {
		struct directory_found *to = &found[r->name[i]];
		const Terrace__V1__FindMember *m = r->members[r->member[i]];

		if (to->count == DIRECTORY_HOLDERS_MAX)
			continue;
		to->at[to->count].epoch = m->epoch;
		memcpy(to->at[to->count++].node, m->node.data, DIRECTORY_NODE_BYTES);
	}
	for (uint32_t i = 0; found && i < f->count; i++)
		answer(f->peers, f->question, f->index[i], found[i].at, found[i].count);
	f->answered = found != NULL;
	free(found);
}

static void message(void *arg, const struct grpc_byte_buffer *bytes)
{
	struct peers_find *f = arg;
	Terrace__V1__FindReply *r =
		(Terrace__V1__FindReply *)links_unpack(&terrace__v1__find_reply__descriptor, bytes);

	if (!r)
		return;
	if (!f->answered && is_sound(r, f->count))
		take_reply(f, r);
	protobuf_c_message_free_unpacked(&r->base, NULL);
}

static void ended(void *arg, enum status s, const char *why)
{
	struct peers_find *f = arg;
	struct peers *p = f->peers;
	struct peers_question *q = f->question;

	(void)why;
	if (!f->answered) {
		ask_second(f, s == STATUS_OK ? STATUS_INVALID : s);
		return;
	}
	free(f);
	outstanding_drop(p, q, STATUS_OK);
}

/* ---- the request ---- */

struct packed {
	Terrace__V1__FindRequest request;
	Terrace__V1__FindGroup *groups, **list;
	struct public_name *names;
};

static void pack_groups(const struct peers_find *f, struct packed *to)
{
	const struct peers_question *q = f->question;
	size_t n = 0;

	for (uint32_t i = 0; i < f->count; i++) {
		const struct peers_name *name = &q->names[f->index[i]];

		to->names[i] = name->name;
		if (!n || to->groups[n - 1].segment != name->segment) {
			terrace__v1__find_group__init(&to->groups[n]);
			to->groups[n].segment = name->segment;
			to->groups[n].names.data = to->names[i].bytes;
			to->list[n] = &to->groups[n];
			n++;
		}
		to->groups[n - 1].names.len += sizeof name->name;
	}
	to->request.n_groups = n;
	to->request.groups = to->list;
}

static uint64_t deadline_of(const struct peers_find *f)
{
	const uint64_t now = clock_us(), last = f->question->deadline_us;

	return f->second || now >= last ? last : now + (last - now) / 2; /* time is left for the second owner */
}

static enum status find_call(struct peers_find *f, const char *member)
{
	static const struct peer_call_ops ops = { message, ended };
	struct packed to = { .groups = malloc(f->count * sizeof *to.groups),
			     .list = malloc(f->count * sizeof *to.list),
			     .names = malloc(f->count * sizeof *to.names) };
	struct peers *p = f->peers;
	enum status s = STATUS_EXHAUSTED;
	struct peer_call *call;

	if (to.groups && to.list && to.names) {
		terrace__v1__find_request__init(&to.request);
		to.request.protocol = PEERS_PROTOCOL;
		to.request.tenant = (char *)peers_tenant_name(p, f->question->tenant);
		pack_groups(f, &to);
		s = links_call(p->links, member,
			       &(struct peer_ask){ "/terrace.v1.Peer/Find", &to.request.base, deadline_of(f), &ops, f },
			       &call);
	}
	free(to.groups);
	free(to.list);
	free(to.names);
	return s;
}

/* Begins the call, or goes on with the names' second owners. */
static void find_begin(struct peers_find *f)
{
	char member[MEMBER_NAME_MAX];
	enum status s = STATUS_UNAVAILABLE;

	if (peers_member(f->peers, &f->owner, member))
		s = find_call(f, member);
	if (s != STATUS_OK)
		ask_second(f, s);
}

/* ---- peers.h ---- */

enum status peers_ask(struct peers *p, struct peers_question *q)
{
	enum status s = STATUS_OK;

	q->next = NULL;
	q->outstanding = 0;
	pthread_mutex_lock(&p->lock);
	if (p->stopping || !p->serving)
		s = STATUS_CANCELLED;
	else if (p->question_count == PEERS_QUESTIONS_MAX)
		s = STATUS_EXHAUSTED;
	if (s == STATUS_OK) {
		*p->questions_end = q;
		p->questions_end = &q->next;
		p->question_count++;
		pthread_cond_signal(&p->changed);
	}
	pthread_mutex_unlock(&p->lock);
	return s;
}

struct question_copy {
	struct peers_question question; /* first */
	struct peers_name names[];
};

static void copy_ended(struct peers_question *q, enum status s)
{
	(void)s;
	free(q);
}

enum status peers_ask_copy(struct peers *p, uint32_t tenant, const struct peers_name *names, uint32_t count,
			   uint64_t deadline_us)
{
	struct question_copy *c = malloc(sizeof *c + count * sizeof c->names[0]);
	enum status s;

	if (!c)
		return STATUS_EXHAUSTED;
	memcpy(c->names, names, count * sizeof c->names[0]);
	c->question = (struct peers_question){ .tenant = tenant, .count = count, .names = c->names,
					       .deadline_us = deadline_us, .ended = copy_ended };
	s = peers_ask(p, &c->question);
	if (s != STATUS_OK)
		free(c);
	return s;
}
