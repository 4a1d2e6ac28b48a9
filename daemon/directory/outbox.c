/* See outbox.h. Names, segments and peers (the owners) lie in arrays and are linked by index.
 *
 * A segment has a *side* for each of its two owners; side k of segment s is called the link 2 * s + k. Each peer has a
 * list of its links, those with something to tell first. What a name's side was told is one of three states; it is
 * *pending* if that is not what is wanted. A message makes what it carries UNKNOWN, which is pending too, until it is
 * ended: an answer that is lost leaves UNKNOWN, and the name is told again. Only its end knows what is left to tell:
 * so a link is marked when one of its names has to be told and no message under way carries it. */
#include "daemon/directory/outbox.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "store/short_lock.h"

enum {
	PEERS = 2 * DIRECTORY_MEMBERS_MAX, /* those of a list, and those of lists before it that still have segments */
	NAMES_MAX = 1 << 26,
	REFRESHED_A_CALL = 1024,
	REMOVED_A_HOLD = 1024,
	SIDES = OWNERS_A_SEGMENT,
};
#define NONE UINT32_MAX
#define NO_PEER UINT16_MAX
#define SECOND_US 1000000ull

enum told { ABSENT, PRESENT, UNKNOWN };

struct name {
	struct public_name name;
	uint32_t next;                /* in the bucket's chain, or of the free names */
	uint32_t before, behind;      /* of the same segment */
	uint32_t segment : 26;
	uint32_t wanted : 1;
	uint32_t refused : 1;         /* by an owner: wanted, but not to be told */
	uint32_t told : 4;            /* two bits a side */
};

struct segment {
	uint64_t bits;
	uint32_t tenant;
	uint32_t next;                /* in the bucket's chain, or of the free segments */
	uint32_t names, count;
	uint16_t peer[SIDES];
	uint32_t before[SIDES], behind[SIDES]; /* links of the same peer */
	uint32_t version : 30;        /* of the owners that it has */
	uint32_t marked : 2;          /* a bit a side */
};

_Static_assert(sizeof(struct name) == 32 && sizeof(struct segment) == 48, "the memory that the header promises");

struct peer {
	struct directory_run run;
	uint32_t first, last;         /* links */
	uint32_t links, pending, present; /* counts: of links, and of names' sides that are so */
	bool used, left;              /* left: it is no member any more */
	bool busy;                    /* a message is under way */
	bool told;                    /* something, since a digest found it to have nothing as it should */
	uint64_t publish_us;          /* when to tell what is pending; 0: nothing is, or a message carries it */
	uint64_t retry_us, retry_wait_us;
	uint64_t digest_us, digested_us;  /* when the next one is due, when the last was made */
	struct digest_set *differ;    /* buckets to be sent whole; NULL: none */
};

struct outbox {
	pthread_mutex_t lock;
	struct outbox_options options;
	struct name *names;
	struct segment *segments;
	uint32_t *name_buckets, *segment_buckets; /* names_max of them each: index + 1, 0: empty */
	uint32_t names_free, names_touched, segments_free, segments_touched;
	struct peer *peers;
	uint32_t peers_touched, peer_next;        /* peer_next: where the search for a peer begins */
	uint32_t peers_told;
	struct owners *owners;                    /* NULL: no list yet */
	uint16_t *peer_of;                        /* by the owners' index */
	uint32_t version;
	uint32_t refresh_at, refresh_left;        /* segments to look at since the last list */
	uint64_t refresh_us;                      /* when that list came */
	uint32_t refresh_all;                     /* how many there were */
	uint64_t sequence;
	uint64_t tokens_us;                       /* time that is worth messages */
	uint64_t token_clock_us;
	struct outbox_counts counts;
};

static uint32_t bucket_of(const struct outbox *o, uint64_t hash)
{
	return (uint32_t)((hash >> 32) * o->options.names_max >> 32);
}

/* ---- what is told and what is pending ---- */

static enum told told(const struct name *n, uint32_t side)
{
	return (enum told)(n->told >> 2 * side & 3);
}

static bool is_wanted(const struct name *n)
{
	return n->wanted && !n->refused;
}

static bool pending(const struct outbox *o, const struct name *n, uint32_t side)
{
	if (o->segments[n->segment].peer[side] == NO_PEER)
		return false;
	return told(n, side) != (is_wanted(n) ? PRESENT : ABSENT);
}

/* Takes a name's side out of its peer's counts, or puts it there: around each change. */
static void count_side(struct outbox *o, const struct name *n, uint32_t side, int by)
{
	const uint16_t p = o->segments[n->segment].peer[side];

	if (p == NO_PEER)
		return;
	if (pending(o, n, side)) {
		o->peers[p].pending += (uint32_t)by;
		o->counts.waiting += (uint64_t)(int64_t)by;
	}
	if (told(n, side) == PRESENT)
		o->peers[p].present += (uint32_t)by;
}

static void told_set(struct outbox *o, struct name *n, uint32_t side, enum told now)
{
	count_side(o, n, side, -1);
	n->told = (n->told & ~(3u << 2 * side)) | (uint32_t)now << 2 * side;
	count_side(o, n, side, 1);
}

static void wanted_set(struct outbox *o, struct name *n, bool wanted, bool refused)
{
	for (uint32_t side = 0; side < SIDES; side++)
		count_side(o, n, side, -1);
	n->wanted = wanted;
	n->refused = refused;
	for (uint32_t side = 0; side < SIDES; side++)
		count_side(o, n, side, 1);
}

/* ---- a peer's links ---- */

static uint32_t *link_before(struct outbox *o, uint32_t link)
{
	return &o->segments[link / SIDES].before[link % SIDES];
}

static uint32_t *link_behind(struct outbox *o, uint32_t link)
{
	return &o->segments[link / SIDES].behind[link % SIDES];
}

static struct peer *link_peer(struct outbox *o, uint32_t link)
{
	return &o->peers[o->segments[link / SIDES].peer[link % SIDES]];
}

static void link_take(struct outbox *o, uint32_t link)
{
	struct peer *p = link_peer(o, link);
	const uint32_t before = *link_before(o, link), behind = *link_behind(o, link);

	*(before == NONE ? &p->first : link_behind(o, before)) = behind;
	*(behind == NONE ? &p->last : link_before(o, behind)) = before;
	p->links--;
}

static void link_put(struct outbox *o, uint32_t link, bool first)
{
	struct peer *p = link_peer(o, link);
	const uint32_t before = first ? NONE : p->last, behind = first ? p->first : NONE;

	*link_before(o, link) = before;
	*link_behind(o, link) = behind;
	*(before == NONE ? &p->first : link_behind(o, before)) = link;
	*(behind == NONE ? &p->last : link_before(o, behind)) = link;
	p->links++;
}

static bool link_marked(const struct outbox *o, uint32_t link)
{
	return o->segments[link / SIDES].marked >> link % SIDES & 1;
}

/* Moves a link to the part of its peer's list where it belongs: to the front if it is marked. */
static void link_order(struct outbox *o, uint32_t link, bool marked)
{
	struct segment *s = &o->segments[link / SIDES];

	link_take(o, link);
	s->marked = (s->marked & ~(1u << link % SIDES)) | (uint32_t)marked << link % SIDES;
	link_put(o, link, marked);
}

/* A name's side has something to be told that no message carries. */
static void pend(struct outbox *o, const struct name *n, uint32_t side, uint64_t now_us)
{
	const uint64_t at_us = now_us + (is_wanted(n) ? OUTBOX_WAIT_US : OUTBOX_REMOVE_WAIT_US);
	const uint32_t link = n->segment * SIDES + side;
	struct peer *p;

	if (!pending(o, n, side))
		return;
	if (!link_marked(o, link))
		link_order(o, link, true);
	p = link_peer(o, link);
	if (!p->publish_us || at_us < p->publish_us)
		p->publish_us = at_us;
}

/* ---- peers ---- */

static void peer_free(struct outbox *o, struct peer *p)
{
	assert(!p->links && !p->pending && !p->busy);
	o->peers_told -= p->told;
	free(p->differ);
	memset(p, 0, sizeof *p);
}

static void peer_look(struct outbox *o, struct peer *p)
{
	if (p->used && p->left && !p->links && !p->busy)
		peer_free(o, p);
}

/* A part of a time, by the peer and the outbox's seed, so that neither all peers of an outbox nor all outboxes of a
 * peer are at it at once. */
static uint64_t part_of(const struct outbox *o, const struct directory_run *run, uint64_t time_us)
{
	uint64_t word[2];

	memcpy(word, run->node, sizeof word);
	uint64_t x = (word[0] ^ o->options.seed) * 0x9e3779b97f4a7c15ull ^ word[1];

	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
	return (uint64_t)((x >> 32) * time_us >> 32);
}

static uint16_t peer_make(struct outbox *o, const struct directory_run *run)
{
	uint32_t p = 0;

	while (p < o->peers_touched && o->peers[p].used)
		p++;
	if (p == PEERS)
		return NO_PEER;
	if (p == o->peers_touched)
		o->peers_touched++;
	o->peers[p] = (struct peer){ .run = *run, .first = NONE, .last = NONE, .used = true, .digest_us = UINT64_MAX };
	return (uint16_t)p;
}

/* ---- names and segments ---- */

static uint32_t name_find(const struct outbox *o, const struct public_name *name)
{
	for (uint32_t n = o->name_buckets[bucket_of(o, name->word[0])]; n; n = o->names[n - 1].next)
		if (public_name_equal(&o->names[n - 1].name, name))
			return n - 1;
	return NONE;
}

static uint32_t segment_find(const struct outbox *o, uint32_t tenant, uint64_t bits)
{
	for (uint32_t s = o->segment_buckets[bucket_of(o, bits)]; s; s = o->segments[s - 1].next)
		if (o->segments[s - 1].bits == bits && o->segments[s - 1].tenant == tenant)
			return s - 1;
	return NONE;
}

static void segment_free(struct outbox *o, uint32_t s)
{
	struct segment *segment = &o->segments[s];
	uint32_t *at = &o->segment_buckets[bucket_of(o, segment->bits)];

	for (uint32_t side = 0; side < SIDES; side++) {
		if (segment->peer[side] == NO_PEER)
			continue;
		struct peer *p = &o->peers[segment->peer[side]];

		link_take(o, s * SIDES + side);
		peer_look(o, p);
	}
	while (*at != s + 1)
		at = &o->segments[*at - 1].next;
	*at = segment->next;
	segment->bits = 0;
	segment->count = 0;
	segment->next = o->segments_free;
	o->segments_free = s;
	o->counts.segments--;
}

static uint32_t segment_make(struct outbox *o, uint32_t tenant, uint64_t bits)
{
	/* There are as many as names: one is free. */
	const uint32_t s = o->segments_free != NONE ? o->segments_free : o->segments_touched;
	uint32_t *head = &o->segment_buckets[bucket_of(o, bits)];

	if (s == o->segments_touched)
		o->segments_touched++;
	else
		o->segments_free = o->segments[s].next;
	o->segments[s] = (struct segment){ .bits = bits, .tenant = tenant, .next = *head, .names = NONE,
					   .peer = { NO_PEER, NO_PEER } };
	*head = s + 1;
	o->counts.segments++;
	return s;
}

/* Frees a name that is not wanted and that no owner has, and its segment with the last one. */
static void name_look(struct outbox *o, uint32_t n)
{
	struct name *name = &o->names[n];
	struct segment *segment = &o->segments[name->segment];
	uint32_t *at = &o->name_buckets[bucket_of(o, name->name.word[0])];

	if (name->wanted || name->told)
		return;
	while (*at != n + 1)
		at = &o->names[*at - 1].next;
	*at = name->next;
	*(name->before == NONE ? &segment->names : &o->names[name->before].behind) = name->behind;
	if (name->behind != NONE)
		o->names[name->behind].before = name->before;
	name->next = o->names_free;
	o->names_free = n;
	o->counts.names--;
	if (!--segment->count)
		segment_free(o, name->segment);
}

static uint32_t name_make(struct outbox *o, const struct public_name *name, uint32_t s)
{
	const uint32_t n = o->names_free != NONE ? o->names_free : o->names_touched;
	uint32_t *head = &o->name_buckets[bucket_of(o, name->word[0])];
	struct segment *segment = &o->segments[s];

	if (n == o->names_touched)
		o->names_touched++;
	else
		o->names_free = o->names[n].next;
	o->names[n] = (struct name){
		.name = *name,
		.next = *head,
		.before = NONE,
		.behind = segment->names,
		.segment = s,
	};
	*head = n + 1;
	if (segment->names != NONE)
		o->names[segment->names].before = n;
	segment->names = n;
	segment->count++;
	o->counts.names++;
	return n;
}

/* ---- owners of a segment ---- */

/* Gives a segment its sides' peers; what the names of side k were told comes from the former side from[k], or is
 * nothing. May free the segment, if its names were there to be taken back from peers that it has no more. */
static void sides_set(struct outbox *o, uint32_t s, const uint16_t peer[SIDES], const uint32_t from[SIDES],
		      uint64_t now_us)
{
	struct segment *segment = &o->segments[s];
	uint16_t former[SIDES];

	for (uint32_t n = segment->names; n != NONE; n = o->names[n].behind)
		for (uint32_t side = 0; side < SIDES; side++)
			count_side(o, &o->names[n], side, -1);
	for (uint32_t side = 0; side < SIDES; side++) {
		former[side] = segment->peer[side];
		if (former[side] != NO_PEER)
			link_take(o, s * SIDES + side);
	}
	segment->marked = 0;
	for (uint32_t side = 0; side < SIDES; side++) {
		segment->peer[side] = peer[side];
		if (peer[side] != NO_PEER)
			link_put(o, s * SIDES + side, false);
	}
	for (uint32_t n = segment->names, behind; n != NONE; n = behind) {
		struct name *name = &o->names[n];
		uint32_t now = 0;

		behind = name->behind;
		for (uint32_t side = 0; side < SIDES; side++)
			if (from[side] != NONE)
				now |= (uint32_t)told(name, from[side]) << 2 * side;
		name->told = now & 15;
		for (uint32_t side = 0; side < SIDES; side++)
			count_side(o, name, side, 1);
	}
	for (uint32_t side = 0; side < SIDES; side++) {
		struct peer *p = former[side] == NO_PEER ? NULL : &o->peers[former[side]];

		/* A digest lets it forget what it need not have any more. */
		if (p && p->told && former[side] != peer[0] && former[side] != peer[1] &&
		    p->digest_us > now_us + OUTBOX_SPREAD_US)
			p->digest_us = now_us + OUTBOX_SPREAD_US + part_of(o, &p->run, OUTBOX_SPREAD_US);
		if (p)
			peer_look(o, p);
	}
	for (uint32_t n = segment->names, behind; n != NONE; n = behind) {
		behind = o->names[n].behind;
		for (uint32_t side = 0; side < SIDES; side++)
			pend(o, &o->names[n], side, now_us);
		name_look(o, n);
	}
}

/* Computes a segment's owners, if it has those of an older list. May free it. */
static void segment_refresh(struct outbox *o, uint32_t s, uint64_t now_us)
{
	struct segment *segment = &o->segments[s];
	uint32_t owner[SIDES], from[SIDES] = { NONE, NONE };
	uint16_t peer[SIDES];
	bool moved = false;

	if (!o->owners || segment->version == o->version)
		return;
	segment->version = o->version;
	owners_of(o->owners, segment->bits, owner);
	for (uint32_t side = 0; side < SIDES; side++) {
		peer[side] = owner[side] == OWNERS_NONE ? NO_PEER : o->peer_of[owner[side]];
		for (uint32_t k = 0; k < SIDES; k++)
			if (peer[side] != NO_PEER && segment->peer[k] == peer[side])
				from[side] = k;
		moved |= peer[side] != segment->peer[side];
		o->counts.moved += peer[side] != NO_PEER && from[side] == NONE && segment->count;
	}
	if (moved)
		sides_set(o, s, peer, from, now_us);
}

/* How many segments are to have the owners of the newest list by now. */
static uint64_t refresh_due(const struct outbox *o, uint64_t now_us)
{
	const uint64_t past_us = now_us > o->refresh_us ? now_us - o->refresh_us : 0;
	const uint64_t part = o->refresh_all * past_us / OUTBOX_SPREAD_US;
	const uint64_t least = past_us * OUTBOX_SEGMENTS_A_SECOND / SECOND_US;

	return past_us >= OUTBOX_SPREAD_US ? o->refresh_all : part > least ? part : least;
}

/* Goes on with the segments that have the owners of an older list, as far as the time says. */
static void refresh(struct outbox *o, uint64_t now_us)
{
	const uint64_t due = refresh_due(o, now_us);

	for (uint32_t i = 0; i < REFRESHED_A_CALL && o->refresh_left && o->refresh_all - o->refresh_left < due; i++) {
		if (o->refresh_at >= o->segments_touched)
			o->refresh_at = 0;
		if (o->segments[o->refresh_at].count)
			segment_refresh(o, o->refresh_at, now_us);
		o->refresh_at++;
		o->refresh_left--;
	}
}

void outbox_members(struct outbox *o, struct owners *owners, uint64_t now_us)
{
	const uint32_t count = owners_members(owners);

	assert(count <= DIRECTORY_MEMBERS_MAX);
	pthread_mutex_lock(&o->lock);
	for (uint32_t i = 0; i < count; i++)
		o->peer_of[i] = NO_PEER;
	for (uint32_t p = 0; p < o->peers_touched; p++) {
		struct peer *peer = &o->peers[p];
		const uint32_t at = peer->used ? owners_find(owners, peer->run.node) : OWNERS_NONE;
		const bool member = at != OWNERS_NONE && owners_member(owners, at)->run.epoch == peer->run.epoch;

		if (member && o->peer_of[at] == NO_PEER) {
			/* A run that left and came back has told its table to forget what it had of this one. */
			if (!peer->left)
				o->peer_of[at] = (uint16_t)p;
		} else if (peer->used) {
			peer->left = true;
		}
		peer_look(o, peer);
	}
	for (uint32_t i = 0; i < count; i++)
		if (o->peer_of[i] == NO_PEER)
			o->peer_of[i] = peer_make(o, &owners_member(owners, i)->run);
	owners_drop(o->owners);
	o->owners = owners_hold(owners);
	o->version = (o->version + 1) & ((1u << 30) - 1);
	o->refresh_us = now_us;
	o->refresh_all = o->refresh_left = o->segments_touched;
	pthread_mutex_unlock(&o->lock);
}

/* ---- what the holder has ---- */

enum status outbox_add(struct outbox *o, const struct directory_change *change, uint64_t now_us)
{
	enum status status = STATUS_OK;

	pthread_mutex_lock(&o->lock);
	uint32_t n = name_find(o, &change->name);

	if (n == NONE && o->names_free == NONE && o->names_touched == o->options.names_max) {
		o->counts.turned_away++;
		status = STATUS_EXHAUSTED;
	} else if (n == NONE || !is_wanted(&o->names[n])) {
		if (n == NONE) {
			uint32_t s = segment_find(o, change->tenant, change->segment);

			if (s == NONE) {
				s = segment_make(o, change->tenant, change->segment);
				o->segments[s].version = o->version - 1;
			}
			n = name_make(o, &change->name, s);
		}
		wanted_set(o, &o->names[n], true, false);
		segment_refresh(o, o->names[n].segment, now_us);
		for (uint32_t side = 0; side < SIDES; side++)
			pend(o, &o->names[n], side, now_us);
	}
	pthread_mutex_unlock(&o->lock);
	return status;
}

static void take_back(struct outbox *o, uint32_t n, uint64_t now_us)
{
	/* The segment is looked at first, while the name keeps it. */
	segment_refresh(o, o->names[n].segment, now_us);
	wanted_set(o, &o->names[n], false, false);
	for (uint32_t side = 0; side < SIDES; side++)
		pend(o, &o->names[n], side, now_us);
	name_look(o, n);
}

void outbox_remove(struct outbox *o, const struct public_name *name, uint64_t now_us)
{
	pthread_mutex_lock(&o->lock);
	const uint32_t n = name_find(o, name);

	if (n != NONE && o->names[n].wanted)
		take_back(o, n, now_us);
	pthread_mutex_unlock(&o->lock);
}

void outbox_remove_all(struct outbox *o, uint64_t now_us)
{
	bool more = true;

	for (uint32_t n = 0; more;) { /* others wait for the lock for a part at most */
		pthread_mutex_lock(&o->lock);
		for (uint32_t i = 0; i < REMOVED_A_HOLD && n < o->names_touched; i++, n++)
			if (o->names[n].wanted) /* a free one is not */
				take_back(o, n, now_us);
		more = n < o->names_touched;
		pthread_mutex_unlock(&o->lock);
	}
}

/* ---- messages ---- */

static void take_change(struct outbox *o, struct name *n, uint32_t side, struct outbox_message *out)
{
	const struct segment *s = &o->segments[n->segment];

	out->changes[out->count++] = (struct directory_change){
		.name = n->name,
		.segment = s->bits,
		.tenant = s->tenant,
		.remove = !is_wanted(n),
	};
	told_set(o, n, side, UNKNOWN);
}

/* Takes what is pending of one link. False: it has more than there is room for. */
static bool take_link(struct outbox *o, uint32_t link, struct outbox_message *out, uint32_t *adds)
{
	for (uint32_t n = o->segments[link / SIDES].names; n != NONE; n = o->names[n].behind) {
		if (!pending(o, &o->names[n], link % SIDES))
			continue;
		if (out->count == OUTBOX_MESSAGE_MAX)
			return false;
		*adds += is_wanted(&o->names[n]);
		take_change(o, &o->names[n], link % SIDES, out);
	}
	return true;
}

static void make_publish(struct outbox *o, struct peer *p, struct outbox_message *out)
{
	uint32_t adds = 0;

	while (p->first != NONE && link_marked(o, p->first) && take_link(o, p->first, out, &adds))
		link_order(o, p->first, false);
	out->kind = OUTBOX_PUBLISH;
	out->told = p->present + adds;
	p->publish_us = 0;
}

static void make_digest(struct outbox *o, struct peer *p, uint64_t now_us, struct outbox_message *out)
{
	out->kind = OUTBOX_DIGEST;
	digest_begin(&out->digest, digest_buckets_for(p->present));
	for (uint32_t link = p->first; link != NONE; link = *link_behind(o, link))
		for (uint32_t n = o->segments[link / SIDES].names; n != NONE; n = o->names[n].behind)
			if (told(&o->names[n], link % SIDES) == PRESENT)
				digest_add(&out->digest, &o->names[n].name);
	p->digested_us = now_us;
	o->counts.digests++;
}

static void make_replace(struct outbox *o, struct peer *p, struct outbox_message *out)
{
	out->kind = OUTBOX_REPLACE;
	out->set = *p->differ;
	for (uint32_t link = p->first; link != NONE; link = *link_behind(o, link))
		for (uint32_t n = o->segments[link / SIDES].names; n != NONE; n = o->names[n].behind) {
			if (!is_wanted(&o->names[n]) || !digest_set_has(&out->set, &o->names[n].name))
				continue;
			if (out->count == OUTBOX_MESSAGE_MAX) {
				out->part = true;
				return;
			}
			take_change(o, &o->names[n], link % SIDES, out);
		}
}

/* Whether a peer is to get a message now, and of which kind. */
static bool due(const struct peer *p, uint64_t now_us, enum outbox_kind *kind)
{
	if (!p->used || p->left || p->busy || now_us < p->retry_us)
		return false;
	if (p->publish_us && p->pending && (p->pending >= OUTBOX_BATCH || now_us >= p->publish_us))
		*kind = OUTBOX_PUBLISH;
	else if (p->differ)
		*kind = OUTBOX_REPLACE;
	else if (p->told && now_us >= p->digest_us)
		*kind = OUTBOX_DIGEST;
	else
		return false;
	return true;
}

/* Messages are worth time: one is 1 / messages_a_second. A fifth of a second can be saved up. */
static bool token(struct outbox *o, uint64_t now_us)
{
	const uint64_t price_us = SECOND_US / o->options.messages_a_second;
	const uint64_t most_us = price_us > SECOND_US / 5 ? price_us : SECOND_US / 5;

	if (now_us > o->token_clock_us)
		o->tokens_us += now_us - o->token_clock_us;
	if (o->tokens_us > most_us)
		o->tokens_us = most_us;
	o->token_clock_us = now_us;
	return o->tokens_us >= price_us;
}

static void make(struct outbox *o, uint32_t peer, enum outbox_kind kind, uint64_t now_us, struct outbox_message *out)
{
	struct peer *p = &o->peers[peer];

	out->to = p->run;
	out->peer = peer;
	out->count = 0;
	out->told = 0;
	out->part = false;
	out->sequence = ++o->sequence;
	if (kind == OUTBOX_PUBLISH)
		make_publish(o, p, out);
	else if (kind == OUTBOX_DIGEST)
		make_digest(o, p, now_us, out);
	else
		make_replace(o, p, out);
	p->busy = true;
	if (!p->told) {
		p->told = true;
		o->peers_told++;
		p->digest_us = now_us + part_of(o, &p->run, OUTBOX_DIGEST_US);
	}
	o->counts.messages++;
	o->counts.replaced += kind == OUTBOX_REPLACE;
}

bool outbox_next(struct outbox *o, uint64_t now_us, struct outbox_message *out)
{
	bool found = false;

	pthread_mutex_lock(&o->lock);
	refresh(o, now_us);
	const bool any = token(o, now_us);

	for (uint32_t i = 0; i < o->peers_touched && !found; i++) {
		const uint32_t peer = o->peer_next < o->peers_touched ? o->peer_next : 0;
		const struct peer *p = &o->peers[peer];
		enum outbox_kind kind;

		o->peer_next = peer + 1;
		if (!due(p, now_us, &kind))
			continue;
		const bool own = !memcmp(p->run.node, o->options.self, DIRECTORY_NODE_BYTES);

		if (!own && !any) {
			o->peer_next = peer;
			break;
		}
		if (!own)
			o->tokens_us -= SECOND_US / o->options.messages_a_second;
		make(o, peer, kind, now_us, out);
		found = true;
	}
	pthread_mutex_unlock(&o->lock);
	return found;
}

/* ---- ends ---- */

/* The side that a peer has of a name's segment; SIDES: none any more. */
static uint32_t side_of(const struct outbox *o, uint32_t n, uint32_t peer)
{
	const struct segment *s = &o->segments[o->names[n].segment];
	uint32_t side = 0;

	while (side < SIDES && s->peer[side] != peer)
		side++;
	return side;
}

static void end_change(struct outbox *o, const struct outbox_message *m, uint32_t i, bool ok, uint64_t now_us)
{
	const uint32_t n = name_find(o, &m->changes[i].name);
	const uint32_t side = n == NONE ? SIDES : side_of(o, n, m->peer);

	if (side == SIDES)
		return;
	if (ok)
		told_set(o, &o->names[n], side, m->changes[i].remove ? ABSENT : PRESENT);
	pend(o, &o->names[n], side, now_us);
	name_look(o, n);
}

static void end_refused(struct outbox *o, const struct outbox_message *m, uint32_t i, uint64_t now_us)
{
	const uint32_t n = i < m->count ? name_find(o, &m->changes[i].name) : NONE;

	if (n == NONE || m->changes[i].remove)
		return;
	const uint32_t side = side_of(o, n, m->peer);

	if (side < SIDES)
		told_set(o, &o->names[n], side, ABSENT);
	if (o->names[n].wanted)
		wanted_set(o, &o->names[n], true, true);
	for (uint32_t k = 0; k < SIDES; k++)
		pend(o, &o->names[n], k, now_us);
	name_look(o, n);
}

static void digest_again(struct peer *p, uint64_t at_us)
{
	if (p->digest_us > at_us)
		p->digest_us = at_us;
}

static void end_digest(struct outbox *o, struct peer *p, const struct digest_set *differ, uint64_t now_us)
{
	/* So many owners can be told things that their digests alone would be most of the messages. */
	const uint64_t all_us = (uint64_t)o->peers_told * SECOND_US / OUTBOX_DIGESTS_A_SECOND;

	p->digest_us = now_us + (all_us > OUTBOX_DIGEST_US ? all_us : OUTBOX_DIGEST_US);
	if (differ && !digest_set_empty(differ)) {
		p->differ = malloc(sizeof *p->differ);
		if (p->differ)
			*p->differ = *differ;
		else
			digest_again(p, now_us + OUTBOX_DIGEST_SOONEST_US);
	} else if (!p->links) {
		p->told = false;
		o->peers_told--;
	}
}

static void end_replace(struct peer *p, bool part, uint64_t now_us)
{
	free(p->differ);
	p->differ = NULL;
	if (part)
		digest_again(p, now_us + OUTBOX_DIGEST_SOONEST_US);
}

void outbox_end(struct outbox *o, const struct outbox_message *m, const struct outbox_reply *reply, uint64_t now_us)
{
	const bool ok = reply->status == STATUS_OK;

	pthread_mutex_lock(&o->lock);
	struct peer *p = &o->peers[m->peer];

	assert(p->used && p->busy);
	for (uint32_t i = 0; m->kind != OUTBOX_DIGEST && i < m->count; i++)
		end_change(o, m, i, ok, now_us);
	for (uint32_t i = 0; ok && m->kind != OUTBOX_DIGEST && i < reply->refused_count; i++)
		end_refused(o, m, reply->refused[i], now_us);
	p->busy = false;
	if (!ok) {
		p->retry_wait_us = !p->retry_wait_us ? OUTBOX_RETRY_US : 2 * p->retry_wait_us;
		if (p->retry_wait_us > OUTBOX_RETRY_MAX_US)
			p->retry_wait_us = OUTBOX_RETRY_MAX_US;
		p->retry_us = now_us + p->retry_wait_us;
		o->counts.failed++;
	} else {
		p->retry_wait_us = 0;
		if (m->kind == OUTBOX_DIGEST)
			end_digest(o, p, reply->differ, now_us);
		if (m->kind == OUTBOX_REPLACE)
			end_replace(p, m->part, now_us);
		if (m->kind != OUTBOX_DIGEST) {
			o->counts.changes += m->count;
			if (reply->digest_wanted)
				digest_again(p, p->digested_us + OUTBOX_DIGEST_SOONEST_US);
		}
	}
	if (!p->publish_us && p->first != NONE && link_marked(o, p->first))
		p->publish_us = now_us; /* what the message had no room for */
	peer_look(o, p);
	pthread_mutex_unlock(&o->lock);
}

void outbox_check(struct outbox *o, uint64_t now_us)
{
	pthread_mutex_lock(&o->lock);
	for (uint32_t p = 0; p < o->peers_touched; p++)
		digest_again(&o->peers[p], now_us);
	pthread_mutex_unlock(&o->lock);
}

void outbox_retry(struct outbox *o, const struct directory_run *owner)
{
	pthread_mutex_lock(&o->lock);
	for (uint32_t p = 0; p < o->peers_touched; p++)
		if (o->peers[p].used && directory_run_equal(&o->peers[p].run, owner))
			o->peers[p].retry_us = o->peers[p].retry_wait_us = 0;
	pthread_mutex_unlock(&o->lock);
}

void outbox_counts(struct outbox *o, struct outbox_counts *out)
{
	pthread_mutex_lock(&o->lock);
	*out = o->counts;
	pthread_mutex_unlock(&o->lock);
}

enum status outbox_create(const struct outbox_options *options, struct outbox **out)
{
	const uint64_t n = options->names_max;

	if (!n || n > NAMES_MAX || !options->messages_a_second)
		return STATUS_INVALID;
	struct outbox *o = calloc(1, sizeof *o);

	if (!o)
		return STATUS_EXHAUSTED;
	o->options = *options;
	o->names_free = o->segments_free = NONE;
	short_lock_init(&o->lock);
	o->names = calloc(n, sizeof o->names[0]);
	o->segments = calloc(n, sizeof o->segments[0]);
	o->name_buckets = calloc(n, sizeof o->name_buckets[0]);
	o->segment_buckets = calloc(n, sizeof o->segment_buckets[0]);
	o->peers = calloc(PEERS, sizeof o->peers[0]);
	o->peer_of = calloc(DIRECTORY_MEMBERS_MAX, sizeof o->peer_of[0]);
	if (!o->names || !o->segments || !o->name_buckets || !o->segment_buckets || !o->peers || !o->peer_of) {
		outbox_destroy(o);
		return STATUS_EXHAUSTED;
	}
	o->counts.bytes = n * (sizeof o->names[0] + sizeof o->segments[0] + 2 * sizeof(uint32_t)) + sizeof *o +
			  PEERS * sizeof o->peers[0] + DIRECTORY_MEMBERS_MAX * sizeof o->peer_of[0];
	*out = o;
	return STATUS_OK;
}

void outbox_destroy(struct outbox *o)
{
	if (!o)
		return;
	for (uint32_t p = 0; p < o->peers_touched; p++)
		free(o->peers[p].differ);
	owners_drop(o->owners);
	free(o->names);
	free(o->segments);
	free(o->name_buckets);
	free(o->segment_buckets);
	free(o->peers);
	free(o->peer_of);
	pthread_mutex_destroy(&o->lock);
	free(o);
}
