/* See lines.h. A mark is a hint: when all marks are in use, the next in turn is taken from its node, and searches there
 * go node by node.
 */
#include "eviction/lines.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/table.h"

enum { MARK_EVERY = 64, MARKS_MIN = 64, MARKS_MAX = (1 << (QUEUE_ORDER_SHIFT - LINES_MARK_SHIFT)) - 1 };

bool lines_init(struct lines *l, uint64_t capacity)
{
	memset(l, 0, sizeof(*l));
	l->marks_max = capacity / MARK_EVERY > MARKS_MAX ? MARKS_MAX : (uint32_t)(capacity / MARK_EVERY);
	l->marks_max = l->marks_max < MARKS_MIN ? MARKS_MIN : l->marks_max;
	l->line = calloc(CLASSES, sizeof(l->line[0]));
	l->marks = table_take((uint64_t)l->marks_max + 1, sizeof(l->marks[0]));
	if (!l->line || !l->marks) {
		lines_fini(l);
		return false;
	}
	for (uint32_t c = 0; c < CLASSES; c++)
		queue_init(&l->line[c].nodes);
	for (uint32_t m = 1; m < l->marks_max; m++)
		l->marks[m].younger = m + 1;
	l->free_mark = 1;
	l->hand = 1;
	return true;
}

void lines_fini(struct lines *l)
{
	free(l->line);
	table_give(l->marks, (uint64_t)l->marks_max + 1, sizeof(l->marks[0]));
	memset(l, 0, sizeof(*l));
}

static uint64_t age_of(const struct lines *l, uint64_t used_us)
{
	const int64_t age_us = (int64_t)(l->now_us - used_us);

	return age_us > 0 ? (uint64_t)age_us : 0;
}

uint32_t lines_bucket(const struct lines *l, const struct policy_node *n)
{
	return survival_bucket(age_of(l, n->last_use_us));
}

/* ---- marks ---- */

static uint32_t mark_of(const struct policy_node *n)
{
	return n->queue >> LINES_MARK_SHIFT;
}

static void mark_unlink(struct lines *l, uint32_t m)
{
	struct lines_mark *mark = &l->marks[m];
	struct line *line = &l->line[lines_class(mark->node)];

	*(mark->older ? &l->marks[mark->older].younger : &line->oldest_mark) = mark->younger;
	*(mark->younger ? &l->marks[mark->younger].older : &line->youngest_mark) = mark->older;
	mark->node->queue &= (1u << LINES_MARK_SHIFT) - 1;
	mark->node = NULL;
}

static uint32_t mark_take(struct lines *l)
{
	uint32_t m = l->free_mark;

	if (m) {
		l->free_mark = l->marks[m].younger;
		return m;
	}
	m = l->hand;
	l->hand = l->hand < l->marks_max ? l->hand + 1 : 1;
	mark_unlink(l, m);
	return m;
}

/* Puts a mark on the last node of its class. */
static void mark_put(struct lines *l, struct line *line, struct policy_node *n)
{
	const uint32_t m = mark_take(l);

	l->marks[m] = (struct lines_mark){ .node = n, .used_us = n->last_use_us, .older = line->youngest_mark };
	*(line->youngest_mark ? &l->marks[line->youngest_mark].younger : &line->oldest_mark) = m;
	line->youngest_mark = m;
	n->queue |= m << LINES_MARK_SHIFT;
}

/* Moves the node's mark to the next node, or frees it if that node has one. */
static void mark_hand_on(struct lines *l, const struct line *line, struct policy_node *n)
{
	const uint32_t m = mark_of(n);

	if (n->next != &line->nodes.head && !mark_of(n->next)) {
		l->marks[m].node = n->next;
		l->marks[m].used_us = n->next->last_use_us;
		n->next->queue |= m << LINES_MARK_SHIFT;
		return;
	}
	mark_unlink(l, m);
	l->marks[m].younger = l->free_mark;
	l->free_mark = m;
}

/* ---- nodes ---- */

void lines_push(struct lines *l, struct policy_node *n, uint32_t class)
{
	struct line *line = &l->line[class];

	queue_push(&line->nodes, n);
	n->queue = class;
	line->filled |= 1;
	if (++line->unmarked >= MARK_EVERY) {
		line->unmarked = 0;
		mark_put(l, line, n);
	}
}

/* Moves the node's fronts to the next node: all before that one have outgrown the bucket too. Without a next node the
 * one before it serves. */
static void front_hand_on(struct line *line, const struct policy_node *n)
{
	struct policy_node *to = n->next != &line->nodes.head ? n->next : n->prev;

	if (to == &line->nodes.head)
		to = NULL;
	for (uint32_t b = 0; b < SURVIVAL_BUCKETS; b++)
		if (line->front[b] == n)
			line->front[b] = to;
	if (to)
		to->queue |= LINES_FRONT;
}

void lines_pull(struct lines *l, struct policy_node *n)
{
	struct line *line = &l->line[lines_class(n)];

	assert(n->prev && n->next);
	if (n->queue & LINES_FRONT)
		front_hand_on(line, n);
	if (mark_of(n))
		mark_hand_on(l, line, n);
	queue_unlink(n);
}

/* ---- ages ---- */

void lines_advance(struct lines *l, uint64_t now_us)
{
	l->now_us = now_us;
	for (uint32_t c = 0; c < CLASSES; c++) {
		struct line *line = &l->line[c];
		const struct policy_node *head = &line->nodes.head;

		line->filled = 0;
		if (head->next != head) {
			uint32_t youngest = lines_bucket(l, head->prev), oldest = lines_bucket(l, head->next);

			line->filled = (uint32_t)(((uint64_t)2 << oldest) - ((uint64_t)1 << youngest));
		}
	}
}

/* The node behind one that has outgrown the age; from a marked node it skips along the marks. */
static struct policy_node *behind(const struct lines *l, const struct policy_node *n, uint64_t end_us)
{
	uint32_t m = mark_of(n), younger;

	if (!m)
		return n->next;
	while ((younger = l->marks[m].younger) && age_of(l, l->marks[younger].used_us) >= end_us)
		m = younger;
	return l->marks[m].node->next;
}

/* The first node that has not outgrown the bucket, or the line's head. */
static struct policy_node *front_find(struct lines *l, struct line *line, uint32_t bucket)
{
	struct policy_node *head = &line->nodes.head, *n = line->front[bucket];
	const uint64_t end_us = survival_end_us(bucket);

	n = n ? n : head->next;
	while (n != head && age_of(l, n->last_use_us) >= end_us)
		n = behind(l, n, end_us);
	if (n == head ? head->prev != head : n != line->front[bucket]) {
		line->front[bucket] = n == head ? head->prev : n;
		line->front[bucket]->queue |= LINES_FRONT;
	}
	return n;
}

struct policy_node *lines_front(struct lines *l, uint32_t class, uint32_t bucket)
{
	struct line *line = &l->line[class];
	struct policy_node *n = front_find(l, line, bucket);

	if (n != &line->nodes.head && lines_bucket(l, n) == bucket)
		return n;
	line->filled &= ~(1u << bucket);
	return NULL;
}

/* Buckets that began with the node behind n begin with n now. */
static void front_take(struct line *line, struct policy_node *n, uint32_t bucket)
{
	for (uint32_t b = bucket; b < SURVIVAL_BUCKETS; b++)
		if (line->front[b] == n->next) {
			line->front[b] = n;
			n->queue |= LINES_FRONT;
		}
}

uint32_t lines_insert(struct lines *l, struct policy_node *n, uint32_t class, uint64_t used_us)
{
	const uint32_t bucket = survival_bucket(age_of(l, used_us));
	struct line *line = &l->line[class];
	struct policy_node *head = &line->nodes.head, *younger = bucket ? front_find(l, line, bucket - 1) : head;

	n->last_use_us = used_us;
	if (younger->prev != head && (int64_t)(used_us - younger->prev->last_use_us) < 0)
		n->last_use_us = younger->prev->last_use_us;
	if (younger == head) {
		lines_push(l, n, class);
	} else {
		queue_push_before(younger, n);
		n->queue = class;
		front_take(line, n, bucket);
	}
	line->filled |= 1u << bucket;
	return bucket;
}

struct policy_node *lines_next(const struct lines *l, const struct policy_node *n)
{
	const struct policy_node *head = &l->line[lines_class(n)].nodes.head;

	return n->next != head && lines_bucket(l, n->next) == lines_bucket(l, n) ? n->next : NULL;
}
