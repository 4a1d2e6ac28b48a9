/* What other members have, and how it comes.
 *
 *     ask:    find (holders of the names that members are told of) -> lend (what each has of all names) -> known
 *     fetch:  a stream for each loan
 *
 * A question asks the holders one after another, the one with the deepest name first, each for what is still missing,
 * so that a chain may come from several. A loan pins its blocks at the holder for a while: it is counted here from
 * before it was asked for, less a margin, and there from the grant. So what is known to be lent can be fetched; no
 * clocks are compared.
 *
 * What is known stands in a table of few sets, in which the newest replaces the oldest: what is lost from it is asked
 * for again. Absent names are kept for a second.
 *
 * Locks: `lock` guards everything here. It is taken under the cache's lock (the members of the table of a source), and
 * on the links' thread without it; while it is held nothing is called but links_cancel and functions that do not wait.
 */
#include "daemon/peers/source.h"

#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/source.h"
#include "daemon/directory/hints.h"
#include "daemon/exports/exports.h"
#include "daemon/members/members.h"
#include "daemon/names/names.h"
#include "daemon/peers/fetch.h"
#include "daemon/peers/links.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/spill.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
	SETS = 2048,
	WAYS = 4,
	LENT_MAX = 512,                /* loans that are known of */
	HOLDERS_MAX = 4,               /* that a question asks */
	SPEEDS = 64,                    /* members whose speed is known */
	HOLD_MS = 4000,                /* asked for */
	LEND_US = HOLD_MS * 1000 / 2,  /* that a holder has to answer */
	HOLD_MARGIN_PART = 8,          /* of a loan's time, and at least: */
	HOLD_MARGIN_US = 50 * 1000,
	ABSENT_US = 1000 * 1000,
	HAS_US = 500 * 1000,           /* that a fetch must have left of a loan's time */
	SPEED_STANDARD = 1000,          /* bytes a microsecond, before the first fetch: of a good network */
	TRIP_STANDARD_US = 1000,
	TRIP_WEIGHT = 8,                /* a new value counts so much in the average: 1/8 */
	SPEED_BYTES = 1 << 20,          /* as many bytes at the speed so far count beside those of a fetch */
	WRONG_US = 60 * 1000 * 1000,
	SPEED_DOUBLES_US = 1000 * 1000, /* without a fetch */
	SPEED_TRIPS = 4,                /* a fetch that takes fewer does not tell how fast bytes come */
};

/* A block that the index does not know. */
struct known {
	uint64_t id[2];                /* of its name, under a key of this run; zeroes: a free way */
	uint64_t until_us;             /* of the machine's clock */
	uint32_t lent;                 /* the loan's place; LENT_MAX: it is absent */
	uint32_t index;                /* in the loan */
	uint64_t loan;                 /* its handle: the place may have another one now */
};

struct lent {
	char member[MEMBER_NAME_MAX];
	const char *tenant;            /* its name, for the cache's life */
	uint64_t loan, until_us;       /* 0: a free place */
	uint64_t was;                  /* the handle of a loan that was returned */
	uint32_t left;                 /* blocks that have not been fetched */
};

/* How fast a member is. */
struct speed {
	char member[MEMBER_NAME_MAX];  /* empty: a free place */
	uint64_t bytes_a_ms, trip_us;
	uint64_t noted_us;             /* when bytes_a_ms last changed */
	uint64_t under_way;            /* bytes that are being fetched */
	uint64_t wrong_us;             /* until when nothing is taken from it, since what it sent was wrong */
};

struct question {
	struct peers_question find;    /* first */
	struct peers_name *name;       /* of it */
	uint32_t *of;                  /* of each of these: the number in the ask */
	struct peer_source *source;
	struct source_ask *ask;
	const char *tenant;
	uint32_t at;                   /* the holder that is asked */
	uint32_t holders, missing;     /* names of the ask that no holder has lent */
	char holder[HOLDERS_MAX][MEMBER_NAME_MAX];
	struct directory_run run[HOLDERS_MAX]; /* of these */
	uint64_t asked_us;
	bool answered;
	struct peer_call *call;
	uint32_t *number;              /* [missing]: of the ask's names, in the order of the request under way */
	bool *lent;                    /* [ask's names] */
};

struct stream {
	struct stream *next, *prev;
	struct peer_source *source;
	struct fetch *fetch;           /* NULL: all its pieces have ended */
	struct peer_stream *stream;    /* NULL: it has ended */
	char member[MEMBER_NAME_MAX];
	uint32_t left;
	uint64_t bytes, loan;
	uint32_t lent;
};

struct peer_source {
	struct source source;          /* first */
	struct cache *cache;
	const struct names *names;
	struct peer_links *links;
	struct peers *peers;
	struct spills *spills;
	pthread_mutex_t lock;
	uint64_t seed[2];
	struct known known[SETS][WAYS];
	struct lent lent[LENT_MAX];
	struct speed speed[SPEEDS];
	struct stream *streams;
	struct {
		uint64_t asks, found, loans, blocks, bytes, failed;
	} figures;
};

static struct peer_source *of(struct source *s)
{
	return (struct peer_source *)s;
}

/* ---- what is known ---- */

static void name_id(const struct peer_source *s, const struct index_ident *name, uint64_t id[2])
{
	id[0] = ident_hash(name, s->seed[0]) | 1;
	id[1] = ident_hash(name, s->seed[1]);
}

static struct known *known_find(struct peer_source *s, const struct index_ident *name, uint64_t now_us)
{
	uint64_t id[2];

	name_id(s, name, id);
	for (uint32_t i = 0; i < WAYS; i++) {
		struct known *k = &s->known[id[1] % SETS][i];

		if (k->id[0] == id[0] && k->id[1] == id[1])
			return k->until_us > now_us ? k : NULL;
	}
	return NULL;
}

/* The name's way, or the one of its set that is over first. */
static struct known *known_make(struct peer_source *s, const struct index_ident *name)
{
	struct known *least, *set;
	uint64_t id[2];

	name_id(s, name, id);
	set = s->known[id[1] % SETS];
	least = set;
	for (uint32_t i = 0; i < WAYS; i++) {
		if (set[i].id[0] == id[0] && set[i].id[1] == id[1])
			return &set[i];
		if (set[i].until_us < least->until_us)
			least = &set[i];
	}
	least->id[0] = id[0];
	least->id[1] = id[1];
	return least;
}

static void known_absent(struct peer_source *s, const struct index_ident *name, uint64_t now_us)
{
	struct known *k = known_make(s, name);

	k->lent = LENT_MAX;
	k->until_us = now_us + ABSENT_US;
}

static void known_lent(struct peer_source *s, const struct index_ident *name, uint32_t lent, uint32_t index)
{
	struct known *k = known_make(s, name);

	k->lent = lent;
	k->index = index;
	k->loan = s->lent[lent].loan;
	k->until_us = s->lent[lent].until_us;
}

/* The loan that has the block, with time enough to fetch it; NULL: none. */
static const struct lent *lent_of(const struct peer_source *s, const struct known *k, uint64_t now_us)
{
	const struct lent *l = k && k->lent < LENT_MAX ? &s->lent[k->lent] : NULL;

	return l && l->loan == k->loan && l->until_us > now_us + HAS_US ? l : NULL;
}

/* Whether blocks of the tenant have public names: without one nothing can be asked for. A run is of one tenant. */
static bool has_secret(const struct peer_source *s, uint32_t number)
{
	const uint32_t tenant = names_tenant(s->names, number);
	uint32_t fingerprints[NAMES_SECRETS];

	return tenant != NAMES_NO_TENANT && names_fingerprints(s->names, tenant, fingerprints);
}

static void source_known(struct cache *c, struct source *source, const struct key_run *run, uint8_t *word)
{
	struct peer_source *s = of(source);
	const uint64_t now_us = clock_us();
	bool may = false;

	(void)c;
	if (!run->count || !has_secret(s, run->key[0].name.tenant)) {
		memset(word, SOURCE_NOT, run->count);
		return;
	}
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < run->count; i++) {
		const struct known *k = known_find(s, &run->key[i].name, now_us);

		word[i] = !k			  ? SOURCE_MAY
			  : lent_of(s, k, now_us) ? SOURCE_HAS
			  : k->lent == LENT_MAX	  ? SOURCE_NOT
						  : SOURCE_MAY;
		may |= word[i] == SOURCE_MAY && run->key[i].told && run->key[i].segment_key;
		may |= word[i] == SOURCE_MAY && spills_find(s->spills, &run->key[i].name, NULL);
	}
	pthread_mutex_unlock(&s->lock);
	for (uint32_t i = 0; i < run->count && !may; i++) /* none of which members are told */
		if (word[i] == SOURCE_MAY)
			word[i] = SOURCE_NOT;
}

/* ---- speeds ---- */

/* The member's place, made if new; NULL: there is no room. Only fetches tell how fast a member is, and a slow one gets
 * none: so it counts as faster again with time. */
static struct speed *speed_of(struct peer_source *s, const char *member, uint64_t now_us)
{
	const uint64_t standard = SPEED_STANDARD * 1000ull;
	struct speed *oldest = NULL;

	for (uint32_t i = 0; i < SPEEDS; i++) {
		struct speed *r = &s->speed[i];

		if (!strcmp(r->member, member)) {
			for (; !r->under_way && r->bytes_a_ms < standard && r->noted_us + SPEED_DOUBLES_US < now_us;
			     r->noted_us += SPEED_DOUBLES_US)
				r->bytes_a_ms *= 2;
			return r;
		}
		if (!r->under_way && r->wrong_us <= now_us && (!oldest || r->noted_us < oldest->noted_us))
			oldest = r;
	}
	if (oldest) {
		*oldest = (struct speed){ .bytes_a_ms = standard, .trip_us = TRIP_STANDARD_US, .noted_us = now_us };
		snprintf(oldest->member, sizeof(oldest->member), "%s", member);
	}
	return oldest;
}

static bool source_estimate(struct cache *c, struct source *source, const struct key_run *run, struct source_cost *out)
{
	struct peer_source *s = of(source);
	const uint64_t now_us = clock_us();
	const struct lent *before = NULL;
	const struct speed *r = NULL;
	uint64_t first = 0, last = 0;
	bool can = run->count;

	(void)c;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < run->count && can; i++) {
		const struct lent *l = lent_of(s, known_find(s, &run->key[i].name, now_us), now_us);

		if (l != before)
			r = l ? speed_of(s, l->member, now_us) : NULL;
		before = l;
		can = l && r;
		if (!can)
			break;
		const uint64_t bytes = run->key[i].pool->geometry.need_bytes;

		last += bytes * 1000 / r->bytes_a_ms;
		if (!i) {
			first = r->trip_us + (r->under_way + bytes) * 1000 / r->bytes_a_ms;
			last += r->trip_us + r->under_way * 1000 / r->bytes_a_ms;
		}
	}
	pthread_mutex_unlock(&s->lock);
	*out = (struct source_cost){ first, last };
	return can;
}

/* ---- asking ---- */

static void question_free(struct question *q)
{
	free(q->name);
	free(q->of);
	free(q->number);
	free(q->lent);
	free(q);
}

/* What no holder has lent counts as absent for a while, also if the question came to nothing: so it is not repeated at
 * once. On the links' thread. */
static void question_end(struct question *q, enum status status)
{
	struct peer_source *s = q->source;
	struct source_ask *a = q->ask;
	const uint64_t now_us = clock_us();

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < a->run.count; i++)
		if (!q->lent[i])
			known_absent(s, &a->run.key[i].name, now_us);
	pthread_mutex_unlock(&s->lock);
	question_free(q);
	cache_lock(s->cache);
	a->ended(s->cache, a, status);
	cache_unlock(s->cache);
}

static struct lent *lent_take(struct peer_source *s, uint64_t now_us)
{
	for (uint32_t i = 0; i < LENT_MAX; i++)
		if (!s->lent[i].loan || s->lent[i].until_us <= now_us)
			return &s->lent[i];
	return NULL;
}

static void question_lend(struct question *q);

static void loan_return(struct peer_source *s, const char *member, const char *tenant, uint64_t loan);

/* So much of a loan's time is used: less a margin for what is under way. */
static uint64_t lent_us(uint64_t hold_us)
{
	const uint64_t part = hold_us / HOLD_MARGIN_PART, margin_us = part > HOLD_MARGIN_US ? part : HOLD_MARGIN_US;

	return hold_us > margin_us ? hold_us - margin_us : 0;
}

/* A new loan's place; NULL: there is none. */
static struct lent *lent_make(const struct question *q, uint64_t loan, uint64_t hold_us)
{
	struct lent *l = lent_take(q->source, clock_us());

	if (!l)
		return NULL;
	*l = (struct lent){ .tenant = q->tenant, .loan = loan, .until_us = q->asked_us + hold_us };
	snprintf(l->member, sizeof(l->member), "%s", q->holder[q->at]);
	q->source->figures.loans++;
	return l;
}

/* Notes what a holder has lent. It is not believed that it lends for longer than it was asked to, so that it cannot
 * keep places for long. */
static void lend_note(struct question *q, const Terrace__V1__LendReply *r)
{
	struct peer_source *s = q->source;
	const uint64_t us = lent_us((r->hold_ms < HOLD_MS ? r->hold_ms : HOLD_MS) * 1000ull);
	struct lent *l = NULL;

	if (!r->loan || !us)
		return;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < q->missing; i++) {
		if (i / 8 >= r->lent.len || !(r->lent.data[i / 8] >> i % 8 & 1))
			continue;
		l = l ? l : lent_make(q, r->loan, us);
		if (!l)
			break;
		q->lent[q->number[i]] = true;
		l->left++;
		known_lent(s, &q->ask->run.key[q->number[i]].name, (uint32_t)(l - s->lent), i);
		s->figures.found++;
	}
	pthread_mutex_unlock(&s->lock);
	if (!l)
		loan_return(s, q->holder[q->at], q->tenant, r->loan);
}

static void lend_message(void *arg, const struct grpc_byte_buffer *bytes)
{
	struct question *q = arg;
	ProtobufCMessage *m = q->answered ? NULL : links_unpack(&terrace__v1__lend_reply__descriptor, bytes);

	if (!m)
		return;
	q->answered = true; /* one loan a call */
	lend_note(q, (const Terrace__V1__LendReply *)m);
	protobuf_c_message_free_unpacked(m, NULL);
}

/* What the owners have said of this holder was wrong: it has not lent these names. */
static void hints_mend(struct question *q)
{
	for (uint32_t i = 0; i < q->find.count; i++)
		if (!q->lent[q->of[i]])
			hints_wrong(peers_hints(q->source->peers), q->find.tenant, &q->name[i].name, &q->run[q->at]);
}

/* The next holder is asked for what is still missing. */
static void lend_ended(void *arg, enum status status, const char *why)
{
	struct question *q = arg;
	struct peer_source *s = q->source;
	struct speed *r;

	(void)why;
	pthread_mutex_lock(&s->lock);
	r = speed_of(s, q->holder[q->at], clock_us());
	if (r && !status)
		r->trip_us += ((int64_t)(clock_us() - q->asked_us) - (int64_t)r->trip_us) / TRIP_WEIGHT;
	pthread_mutex_unlock(&s->lock);
	if (!status && q->answered)
		hints_mend(q);
	for (uint32_t i = 0; !status && q->answered && i < q->ask->run.count; i++)
		if (!q->lent[i])
			spills_forget(s->spills, &q->ask->run.key[i].name, &q->run[q->at]);
	q->at++;
	question_lend(q);
}

/* Names of one layout and key size, in a row, are one entry of the request. Returns how many entries there are. */
static size_t lend_pack(struct question *q, Terrace__V1__LayoutKeys *of, Terrace__V1__LayoutKeys **list, uint8_t *bytes)
{
	const struct key_run *run = &q->ask->run;
	size_t n = 0;

	q->missing = 0;
	for (uint32_t i = 0; i < run->count; i++) {
		const struct index_ident *name = &run->key[i].name;

		if (q->lent[i])
			continue;
		q->number[q->missing++] = i;
		if (!n || of[n - 1].layout_id != name->layout_id || of[n - 1].key_bytes != name->key_bytes) {
			terrace__v1__layout_keys__init(&of[n]);
			of[n].layout_id = name->layout_id;
			of[n].key_bytes = name->key_bytes;
			of[n].keys = (ProtobufCBinaryData){ 0, bytes };
			list[n] = &of[n];
			n++;
		}
		memcpy(bytes, name->key, name->key_bytes);
		of[n - 1].keys.len += name->key_bytes;
		bytes += name->key_bytes;
	}
	return n;
}

/* Whether the member has sent wrong bytes of late. */
static bool is_wrong(struct peer_source *s, const char *member)
{
	const uint64_t now_us = clock_us();
	bool wrong = false;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < SPEEDS; i++)
		wrong |= s->speed[i].wrong_us > now_us && !strcmp(s->speed[i].member, member);
	pthread_mutex_unlock(&s->lock);
	return wrong;
}

/* An answer that comes later is of a loan that is nearly over: the next holder is asked instead. */
static uint64_t lend_deadline(const struct question *q)
{
	const uint64_t until = q->asked_us + LEND_US;

	return until < q->ask->deadline_us ? until : q->ask->deadline_us;
}

static void question_lend(struct question *q)
{
	static const struct peer_call_ops ops = { lend_message, lend_ended };
	const uint32_t count = q->ask->run.count;
	Terrace__V1__LayoutKeys *of = malloc(count * sizeof *of), **list = malloc(count * sizeof *list);
	uint8_t *bytes = malloc((size_t)count * SLOT_KEY_MAX);
	Terrace__V1__LendRequest ask = TERRACE__V1__LEND_REQUEST__INIT;
	enum status status = of && list && bytes ? STATUS_UNAVAILABLE : STATUS_EXHAUSTED;

	while (status == STATUS_UNAVAILABLE && q->at < q->holders) {
		if (is_wrong(q->source, q->holder[q->at])) {
			q->at++;
			continue;
		}
		ask.n_wants = lend_pack(q, of, list, bytes);
		if (!ask.n_wants)
			break;
		ask.tenant = (char *)q->tenant;
		ask.wants = list;
		ask.hold_ms = HOLD_MS;
		q->answered = false;
		q->asked_us = clock_us();
		status = links_call(q->source->links, q->holder[q->at],
				    &(struct peer_ask){ "/terrace.v1.Peer/Lend", &ask.base, lend_deadline(q), &ops, q },
				    &q->call);
		if (status == STATUS_UNSUPPORTED)
			status = STATUS_UNAVAILABLE; /* its version lends nothing */
		/* avoided, or gone: the next one. After OK the question may be gone */
		if (status == STATUS_UNAVAILABLE)
			q->at++;
	}
	free(of);
	free(list);
	free(bytes);
	if (status)
		question_end(q, STATUS_OK);
}

/* Adds a holder, unless the question has it already. */
static void holder_add(struct question *q, const struct directory_run *run)
{
	char member[MEMBER_NAME_MAX];

	if (q->holders == HOLDERS_MAX || !peers_member(q->source->peers, run, member))
		return;
	for (uint32_t i = 0; i < q->holders; i++)
		if (!strcmp(q->holder[i], member))
			return;
	q->run[q->holders] = *run;
	memcpy(q->holder[q->holders++], member, sizeof member);
}

/* The owners have answered: the holders of the deepest name are asked first. On the peers' or the links' thread. */
static void question_found(struct peers_question *find, enum status status)
{
	struct question *q = (struct question *)find;
	const uint64_t now_us = clock_us();

	for (uint32_t i = find->count; i-- > 0;) {
		struct hint_holders holders;

		if (hints_find(peers_hints(q->source->peers), find->tenant, &q->name[i].name, now_us, &holders) !=
		    HINT_HELD)
			continue;
		for (uint32_t k = 0; k < holders.count; k++)
			holder_add(q, &holders.at[k]);
	}
	if (status && !q->holders)
		question_end(q, status);
	else
		question_lend(q);
}

/* The names that members are told of, by each secret, their segments, and the numbers of their blocks in the run.
 * Returns how many. */
static uint32_t names_gather(const struct peer_source *s, uint32_t tenant, const struct key_run *run,
			     struct peers_name *out, uint32_t *of_name)
{
	const uint8_t *segment_key = NULL;
	uint64_t segment[NAMES_SECRETS];
	uint32_t n = 0, segments = 0;

	for (uint32_t i = 0; i < run->count; i++) {
		const struct run_key *k = &run->key[i];
		struct public_name name[NAMES_SECRETS];
		uint32_t names;

		if (!k->told || !k->segment_key)
			continue;
		if (k->segment_key != segment_key)
			segments =
				exports_segment(s->names, k->name.tenant, k->segment_key, k->name.key_bytes, segment);
		segment_key = k->segment_key;
		names = names_of(s->names, tenant, k->name.layout_id, k->name.key, k->name.key_bytes, name);
		for (uint32_t j = 0; j < names && j < segments; j++) {
			of_name[n] = i;
			out[n++] = (struct peers_name){ name[j], segment[j] };
		}
	}
	return n;
}

/* A question without its names. NULL: no memory. */
static struct question *question_create(struct peer_source *s, struct source_ask *a, const struct tenant *t)
{
	const uint32_t count = a->run.count;
	struct question *q = calloc(1, sizeof *q);

	if (!q)
		return NULL;
	q->source = s;
	q->ask = a;
	q->tenant = t->name;
	q->name = malloc(count * NAMES_SECRETS * sizeof q->name[0]);
	q->of = malloc(count * NAMES_SECRETS * sizeof q->of[0]);
	q->number = malloc(count * sizeof q->number[0]);
	q->lent = calloc(count, sizeof q->lent[0]);
	if (q->name && q->of && q->number && q->lent)
		return q;
	question_free(q);
	return NULL;
}

static enum status source_begins_ask(struct cache *c, struct source *source, struct source_ask *a)
{
	struct peer_source *s = of(source);
	const uint32_t number = a->run.key[0].name.tenant, tenant = names_tenant(s->names, number);
	const struct tenant *t = tenant_of_number(c, number);
	struct question *q = t && tenant != NAMES_NO_TENANT ? question_create(s, a, t) : NULL;
	struct directory_run at;
	enum status status;

	if (!q)
		return STATUS_EXHAUSTED;
	q->find = (struct peers_question){
		.tenant = number, .names = q->name, .deadline_us = a->deadline_us, .ended = question_found
	};
	q->find.count = names_gather(s, tenant, &a->run, q->name, q->of);
	for (uint32_t i = 0; i < a->run.count; i++)
		if (spills_find(s->spills, &a->run.key[i].name, &at))
			holder_add(q, &at);
	status = q->find.count || q->holders ? peers_ask(s->peers, &q->find) : STATUS_UNAVAILABLE;
	if (status)
		question_free(q);
	pthread_mutex_lock(&s->lock);
	s->figures.asks += !status;
	pthread_mutex_unlock(&s->lock);
	return status;
}

enum status peer_source_lent(struct peer_source *s, const struct peer_lent *q, const struct key_run *run)
{
	const uint64_t now_us = clock_us();
	char member[MEMBER_NAME_MAX];
	struct lent *l;

	if (!q->loan || !peers_member(s->peers, q->run, member) || is_wrong(s, member))
		return STATUS_MISS;
	pthread_mutex_lock(&s->lock);
	l = lent_take(s, now_us);
	if (l) {
		*l = (struct lent){ .tenant = q->tenant, .loan = q->loan, .until_us = now_us + lent_us(q->hold_us),
				    .left = run->count };
		memcpy(l->member, member, sizeof member);
		for (uint32_t i = 0; i < run->count; i++)
			known_lent(s, &run->key[i].name, (uint32_t)(l - s->lent), i);
	}
	pthread_mutex_unlock(&s->lock);
	return l ? STATUS_OK : STATUS_MISS;
}

/* ---- fetching ---- */

static void stream_leave(struct stream *x)
{
	if (x->prev)
		x->prev->next = x->next;
	else
		x->source->streams = x->next;
	if (x->next)
		x->next->prev = x->prev;
}

static void piece_came(void *arg, uint32_t own, enum status status)
{
	struct stream *x = arg;
	struct peer_source *s = x->source;
	struct fetch *f = x->fetch;

	pthread_mutex_lock(&s->lock);
	if (status) /* it is asked for again */
		known_absent(s, &f->piece[own].key.name, clock_us() - (status == STATUS_MISS ? 0 : ABSENT_US));
	s->figures.blocks += !status;
	if (s->lent[x->lent].loan == x->loan && s->lent[x->lent].left)
		s->lent[x->lent].left--;
	s->figures.failed += status && status != STATUS_MISS && status != STATUS_CANCELLED;
	if (--x->left == 0)
		x->fetch = NULL; /* it may be gone after the last piece's end */
	pthread_mutex_unlock(&s->lock);
	source_came(f, own, status);
}

static void no_answer(void *arg, enum status status, const char *why)
{
	(void)arg;
	(void)status;
	(void)why;
}

/* Sends EndLoan. If it does not arrive, the loan ends by itself. */
static void loan_return(struct peer_source *s, const char *member, const char *tenant, uint64_t loan)
{
	static const struct peer_call_ops ops = { NULL, no_answer };
	Terrace__V1__EndLoanRequest ask = TERRACE__V1__END_LOAN_REQUEST__INIT;
	struct peer_call *call;

	ask.tenant = (char *)tenant;
	ask.loan = loan;
	links_call(
		s->links, member,
		&(struct peer_ask){ "/terrace.v1.Peer/EndLoan", &ask.base, clock_us() + HOLD_MS * 1000ull, &ops, NULL },
		&call);
}

/* Times are averaged, by bytes: so one fetch tells of a link that has become slow, and the first one of any link, and a
 * small one that was held up tells little. */
static void speed_note(struct peer_source *s, const struct stream *x, uint64_t bytes, uint64_t us)
{
	const uint64_t now_us = clock_us();
	struct speed *r = speed_of(s, x->member, now_us);

	if (!r)
		return;
	r->under_way -= x->bytes < r->under_way ? x->bytes : r->under_way;
	if (bytes && us > SPEED_TRIPS * r->trip_us) {
		const uint64_t before_us = SPEED_BYTES * 1000ull / r->bytes_a_ms;

		r->bytes_a_ms = (SPEED_BYTES + bytes) * 1000 / (before_us + us - r->trip_us);
		r->noted_us = now_us;
	}
	if (!r->bytes_a_ms)
		r->bytes_a_ms = 1;
}

/* Whether another stream reads out of the loan. */
static bool lent_is_read(const struct peer_source *s, uint32_t lent, uint64_t loan)
{
	const struct stream *x = s->streams;

	while (x && (x->lent != lent || x->loan != loan))
		x = x->next;
	return x;
}

static void stream_ended(void *arg, enum status status, uint64_t bytes, uint64_t us)
{
	struct stream *x = arg;
	struct peer_source *s = x->source;
	struct lent *l = &s->lent[x->lent];
	const char *tenant = NULL;

	pthread_mutex_lock(&s->lock);
	stream_leave(x);
	speed_note(s, x, bytes, us);
	s->figures.bytes += bytes;
	if (l->loan == x->loan && (status || !l->left) &&
	    !lent_is_read(s, x->lent, x->loan)) { /* what it has else is asked for again */
		tenant = l->tenant;
		l->was = l->loan;
		l->loan = 0;
	}
	pthread_mutex_unlock(&s->lock);
	if (tenant)
		loan_return(s, x->member, tenant, x->loan);
	free(x);
}

/* The pieces of a fetch that one loan has. */
struct share {
	uint32_t lent, count;
	struct peer_piece piece[FETCH_PIECES_MAX];
};

/* Gathers the first piece that is not decided yet, and all of the same loan. False: there is none. */
static bool share_gather(struct peer_source *s, struct fetch *f, uint32_t *at, struct share *x)
{
	const uint64_t now_us = clock_us();

	x->count = 0;
	for (uint32_t i = *at; i < f->count && x->count < FETCH_PIECES_MAX; i++) {
		struct fetch_piece *p = &f->piece[i];
		const struct known *k;
		const struct lent *l;

		if (p->begun != STATUS_BUSY)
			continue;
		k = known_find(s, &p->key.name, now_us);
		l = lent_of(s, k, now_us);
		if (!l) {
			p->begun = STATUS_UNAVAILABLE;
			continue;
		}
		if (!x->count) {
			x->lent = k->lent;
			*at = i;
		} else if (x->lent != k->lent) {
			continue;
		}
		x->piece[x->count++] = (struct peer_piece){ k->index, p->slot.at,
							    SLOT_HEADER_BYTES + p->key.pool->geometry.block_bytes, i };
	}
	return x->count;
}

/* Begins to fetch a share. With the lock. */
static enum status share_begin(struct peer_source *s, struct fetch *f, const struct share *share)
{
	static const struct peer_stream_ops ops = { piece_came, stream_ended };
	struct stream *x = calloc(1, sizeof *x);
	struct lent *l = &s->lent[share->lent];
	struct speed *r = speed_of(s, l->member, clock_us());
	enum status status;

	if (!x)
		return STATUS_EXHAUSTED;
	*x = (struct stream){ .source = s, .fetch = f, .left = share->count, .loan = l->loan, .lent = share->lent };
	snprintf(x->member, sizeof(x->member), "%s", l->member);
	for (uint32_t i = 0; i < share->count; i++)
		x->bytes += share->piece[i].bytes;
	const struct peer_stream_call call = {
		x->member, l->tenant, l->loan, share->piece, share->count, f->deadline_us
	};

	status = peer_stream_begin(s->links, &call, &ops, x, &x->stream);
	if (status) {
		free(x);
		return status;
	}
	x->next = s->streams;
	if (x->next)
		x->next->prev = x;
	s->streams = x;
	if (r)
		r->under_way += x->bytes;
	return STATUS_OK;
}

static enum status source_begins_fetch(struct cache *c, struct source *source, struct fetch *f)
{
	struct peer_source *s = of(source);
	struct share *share = malloc(sizeof *share);
	bool begun = false;
	uint32_t at = 0;

	(void)c;
	for (uint32_t i = 0; i < f->count; i++)
		f->piece[i].begun = share ? STATUS_BUSY : STATUS_EXHAUSTED; /* not decided yet */
	pthread_mutex_lock(&s->lock);
	while (share && share_gather(s, f, &at, share)) {
		const enum status status = share_begin(s, f, share);

		for (uint32_t i = 0; i < share->count; i++)
			f->piece[share->piece[i].own].begun = status;
		begun |= !status;
	}
	pthread_mutex_unlock(&s->lock);
	free(share);
	return begun ? STATUS_OK : STATUS_UNAVAILABLE;
}

/* The member is not asked for a while, and what it has lent is not used. */
static void source_is_wrong(struct cache *c, struct source *source, const struct index_ident *name)
{
	struct peer_source *s = of(source);
	const uint64_t now_us = clock_us();
	const struct known *k;

	(void)c;
	pthread_mutex_lock(&s->lock);
	k = known_find(s, name, now_us);
	if (k && k->lent < LENT_MAX && (s->lent[k->lent].loan == k->loan || s->lent[k->lent].was == k->loan)) {
		char member[MEMBER_NAME_MAX];
		struct speed *r;

		memcpy(member, s->lent[k->lent].member, sizeof member);
		for (uint32_t i = 0; i < LENT_MAX; i++)
			if (s->lent[i].loan && !strcmp(s->lent[i].member, member))
				s->lent[i].until_us = now_us;
		r = speed_of(s, member, now_us);
		if (r)
			r->wrong_us = now_us + WRONG_US;
		s->figures.failed++;
	}
	pthread_mutex_unlock(&s->lock);
}

static void source_cancels(struct cache *c, struct source *source, struct fetch *f)
{
	struct peer_source *s = of(source);

	(void)c;
	pthread_mutex_lock(&s->lock);
	f->cancelled = true;
	for (struct stream *x = s->streams; x; x = x->next)
		if (x->fetch == f)
			peer_stream_cancel(x->stream);
	pthread_mutex_unlock(&s->lock);
}

/* ---- the source ---- */

static const struct source_ops ops = {
	.name = "peer",
	.known = source_known,
	.ask = source_begins_ask,
	.estimate = source_estimate,
	.fetch = source_begins_fetch,
	.cancel = source_cancels,
	.wrong = source_is_wrong,
};

enum status peer_source_create(struct cache *c, const struct names *names, struct peers *peers,
			       struct peer_source **out)
{
	struct peer_source *s = calloc(1, sizeof *s);
	enum status status = STATUS_EXHAUSTED;

	if (s && getrandom(s->seed, sizeof s->seed, 0) == sizeof s->seed) {
		s->source = (struct source){ .ops = &ops, .tier = TIER_KINDS };
		s->cache = c;
		s->names = names;
		s->peers = peers;
		s->links = peers_links(peers);
		s->spills = peers_spills(peers);
		pthread_mutex_init(&s->lock, NULL);
		status = source_add(c, &s->source);
	}
	if (status) {
		free(s);
		return status;
	}
	*out = s;
	return STATUS_OK;
}

void peer_source_destroy(struct peer_source *s)
{
	if (s)
		pthread_mutex_destroy(&s->lock);
	free(s);
}

void peer_source_stats(struct peer_source *s, cache_stat_fn *emit, void *arg)
{
	pthread_mutex_lock(&s->lock);
	const __typeof__(s->figures) now = s->figures;

	pthread_mutex_unlock(&s->lock);
	emit(arg, "terrace_peer_asks_total", "", (double)now.asks, true,
	     "questions to other members, each of several blocks");
	emit(arg, "terrace_peer_loans_total", "", (double)now.loans, true, "loans that other members have granted");
	emit(arg, "terrace_peer_lent_blocks_total", "", (double)now.found, true, "blocks that other members have lent");
	emit(arg, "terrace_peer_fetched_blocks_total", "", (double)now.blocks, true,
	     "blocks that have come from other members");
	emit(arg, "terrace_peer_fetched_bytes_total", "", (double)now.bytes, true,
	     "their bytes, with those of blocks that did not come whole");
	emit(arg, "terrace_peer_failed_blocks_total", "", (double)now.failed, true,
	     "blocks that a member was to send and did not");
}
