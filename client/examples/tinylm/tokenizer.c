/* Encoding and decoding; see tokenizer.h. A piece is a doubly linked list of symbols over its bytes; a heap of the
 * pairs that may be merged, lowest rank first and leftmost among equals, makes a long run of dashes cost n log n.
 * Entries of the heap go stale when a neighbour is merged away and are then skipped. */
#include "tokenizer.h"

#include "unicode.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t none = UINT32_MAX;

struct symbol {
	uint32_t id; /* `none` once merged into the symbol before */
	uint32_t previous, next;
};

struct candidate {
	uint32_t rank, at; /* at: the left symbol */
	uint32_t left, right, result;
};

/* Working memory of one call, large enough for the whole text as a single piece. */
struct encoder {
	const struct tokenizer *tokenizer;
	struct symbol *symbols;
	struct candidate *heap; /* at most 3 entries a symbol: one to begin with, two for each merge */
	size_t heap_count;
	uint32_t *ids;
	size_t count;
};

/* ---- the pattern ------------------------------------------------------------------------------------------------- */

static size_t contraction(const uint8_t *text, size_t bytes)
{
	static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };

	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
		size_t length = strlen(endings[i]);

		if (bytes > length && memcmp(text + 1, endings[i], length) == 0)
			return length + 1;
	}
	return 0;
}

/* The length of the run of one class at the start of text. *last gets the length of the run's last character. */
static size_t run_of(const uint8_t *text, size_t bytes, enum unicode_class class, size_t *last)
{
	size_t at = 0;

	while (at < bytes) {
		uint32_t c;
		size_t length = unicode_next(text + at, bytes - at, &c);

		if (unicode_class_of(c) != class)
			break;
		*last = length;
		at += length;
	}
	return at;
}

/* Bytes of the first piece of text (bytes > 0), by
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t piece_length(const uint8_t *text, size_t bytes)
{
	size_t space = text[0] == ' ' && bytes > 1 ? 1 : 0, length, last = 0;
	enum unicode_class class;
	uint32_t c;

	if (text[0] == '\'' && (length = contraction(text, bytes)) > 0)
		return length;
	unicode_next(text + space, bytes - space, &c);
	class = unicode_class_of(c);
	if (class != UNICODE_SPACE)
		return space + run_of(text + space, bytes - space, class, &last);
	length = run_of(text, bytes, UNICODE_SPACE, &last);
	if (length == bytes || length == last)
		return length;
	return length - last; /* the last space belongs to the word after it */
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

static const struct tokenizer_merge *find_merge(const struct tokenizer *t, uint32_t left, uint32_t right)
{
	uint32_t slot = tokenizer_merge_slot(left, right, t->merge_slots);

	while (t->merges[slot].rank != UINT32_MAX) {
		if (t->merges[slot].left == left && t->merges[slot].right == right)
			return &t->merges[slot];
		slot = (slot + 1) & (t->merge_slots - 1);
	}
	return NULL;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct encoder *e, struct candidate candidate)
{
	size_t i = e->heap_count++;

	while (i > 0 && before(&candidate, &e->heap[(i - 1) / 2])) {
		e->heap[i] = e->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	e->heap[i] = candidate;
}

static struct candidate heap_pop(struct encoder *e)
{
	struct candidate top = e->heap[0], moved = e->heap[--e->heap_count];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < e->heap_count) {
		if (child + 1 < e->heap_count && before(&e->heap[child + 1], &e->heap[child]))
			child++;
		if (!before(&e->heap[child], &moved))
			break;
		e->heap[i] = e->heap[child];
		i = child;
	}
	e->heap[i] = moved;
	return top;
}

static void consider(struct encoder *e, uint32_t at)
{
	const struct symbol *s = &e->symbols[at];
	const struct tokenizer_merge *m;

	if (at == none || s->next == none)
		return;
	m = find_merge(e->tokenizer, s->id, e->symbols[s->next].id);
	if (m)
		heap_push(e, (struct candidate){ m->rank, at, m->left, m->right, m->result });
}

static void merge(struct encoder *e, const struct candidate *c)
{
	struct symbol *left = &e->symbols[c->at], *right;

	if (left->id != c->left || left->next == none || e->symbols[left->next].id != c->right)
		return; /* stale */
	right = &e->symbols[left->next];
	left->id = c->result;
	left->next = right->next;
	right->id = none;
	if (left->next != none)
		e->symbols[left->next].previous = c->at;
	if (left->previous != none)
		consider(e, left->previous);
	consider(e, c->at);
}

static void encode_piece(struct encoder *e, const uint8_t *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		e->symbols[i].id = e->tokenizer->byte_token[text[i]];
		e->symbols[i].previous = i > 0 ? (uint32_t)i - 1 : none;
		e->symbols[i].next = i + 1 < bytes ? (uint32_t)i + 1 : none;
	}
	e->heap_count = 0;
	for (size_t i = 0; i + 1 < bytes; i++)
		consider(e, (uint32_t)i);
	while (e->heap_count > 0) {
		struct candidate c = heap_pop(e);

		merge(e, &c);
	}
	for (uint32_t i = 0; i != none; i = e->symbols[i].next)
		e->ids[e->count++] = e->symbols[i].id;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The longest special token at the start of text; `none` if there is not one. */
static uint32_t special_at(const struct tokenizer *t, const uint8_t *text, size_t bytes)
{
	uint32_t found = none;

	for (uint32_t i = 0; i < t->special_count; i++) {
		const struct tokenizer_token *s = &t->tokens[t->specials[i]];

		if (s->bytes <= bytes && memcmp(t->text + s->at, text, s->bytes) == 0 &&
		    (found == none || s->bytes > t->tokens[found].bytes))
			found = t->specials[i];
	}
	return found;
}

static void encode_text(struct encoder *e, const uint8_t *text, size_t bytes)
{
	size_t at = 0;

	while (at < bytes) {
		uint32_t special = special_at(e->tokenizer, text + at, bytes - at);
		size_t end = at + 1;

		if (special != none) {
			e->ids[e->count++] = special;
			at += e->tokenizer->tokens[special].bytes;
			continue;
		}
		while (end < bytes && special_at(e->tokenizer, text + end, bytes - end) == none)
			end++;
		while (at < end) {
			size_t length = piece_length(text + at, end - at);

			encode_piece(e, text + at, length);
			at += length;
		}
	}
}

bool tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, uint32_t **ids, size_t *count,
		      struct fault *fault)
{
	struct encoder e = { .tokenizer = t };

	if (bytes > 1u << 28)
		return fault_set(fault, "a text of %zu bytes is too long to encode", bytes);
	e.symbols = malloc((bytes + 1) * sizeof(*e.symbols));
	e.heap = malloc((3 * bytes + 1) * sizeof(*e.heap));
	e.ids = malloc((bytes + 1) * sizeof(*e.ids)); /* a token has at least one byte */
	if (!e.symbols || !e.heap || !e.ids) {
		free(e.symbols);
		free(e.heap);
		free(e.ids);
		return fault_set(fault, "out of memory");
	}
	encode_text(&e, (const uint8_t *)text, bytes);
	free(e.symbols);
	free(e.heap);
	*ids = e.ids;
	*count = e.count;
	return true;
}

bool tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count, char **text, size_t *bytes,
		      struct fault *fault)
{
	size_t total = 0, at = 0;
	char *out;

	for (size_t i = 0; i < count; i++) {
		if (ids[i] >= t->count)
			return fault_set(fault, "token %u is not in the vocabulary of %u", ids[i], t->count);
		total += t->tokens[ids[i]].bytes;
	}
	out = malloc(total + 1);
	if (!out)
		return fault_set(fault, "out of memory");
	for (size_t i = 0; i < count; i++) {
		memcpy(out + at, t->text + t->tokens[ids[i]].at, t->tokens[ids[i]].bytes);
		at += t->tokens[ids[i]].bytes;
	}
	out[total] = 0;
	*text = out;
	*bytes = total;
	return true;
}
