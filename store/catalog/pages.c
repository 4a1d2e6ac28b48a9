/* Checks LMDB's page structure. Sizes and names follow the description of the format in LMDB's mdb.c.
 *
 *     page   number 8, pad 2, flags 2, lower 2, upper 2 (a big value: pages 4), node offsets 2 each
 *     node   low 2, high 2, flags 2, key bytes 2, key, data; in a branch the first three are the child's number
 *     tree   pad 4, flags 2, depth 2, branch pages 8, leaf pages 8, overflow pages 8, entries 8, root 8
 *     meta   page head, magic 4, version 4, address 8, map size 8, tree of free pages, tree of names, last page 8,
 *            transaction 8
 */
#include "store/catalog/pages.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	PAGE_HEAD = 16, NODE_HEAD = 8, TREE_BYTES = 48, META_BYTES = 16 + 24 + 2 * TREE_BYTES + 16,
	PAGE_BYTES_LEAST = 512, PAGE_BYTES_MOST = 32768,
	KEY_BYTES_MOST = 511, DEPTH_MOST = 32,
	PAGE_BRANCH = 1, PAGE_LEAF = 2, PAGE_OVERFLOW = 4, PAGE_META = 8,
	NODE_BIG = 1, NODE_TREE = 2,
	TREE_INTEGER_KEYS = 8, TREE_FLAGS = 0x7f,
};
#define META_MAGIC 0xbeefc0deu
#define NO_PAGE UINT64_MAX

const char catalog_pages_no_memory[] = "catalog: no memory to check its pages";

enum tree_kind { TREE_FREE, TREE_NAMES, TREE_TABLE };

struct tree {
	enum tree_kind kind;
	uint16_t flags, depth;
	uint64_t entries, root;
	uint64_t seen;              /* entries found */
};

struct meta {
	uint64_t page_bytes, last_page, transaction;
	struct tree free, names;
};

struct proof {
	const uint8_t *file;
	uint64_t bytes, page_bytes, pages;
	uint64_t transaction;
	uint8_t *used;              /* a bit a page */
	uint16_t *node_bytes;       /* of the node at each even offset of one page */
};

struct key {
	const uint8_t *at;          /* NULL: no bound */
	size_t bytes;
};

static uint64_t number(const uint8_t *at, size_t n)
{
	uint64_t v = 0;

	memcpy(&v, at, n);
	return v;
}

static struct tree tree_at(const uint8_t *at, enum tree_kind kind)
{
	return (struct tree){ kind, (uint16_t)number(at + 4, 2), (uint16_t)number(at + 6, 2), number(at + 32, 8),
			      number(at + 40, 8), 0 };
}

static const uint8_t *page_at(const struct proof *p, uint64_t page)
{
	return page < p->pages && page < p->bytes / p->page_bytes ? p->file + page * p->page_bytes : NULL;
}

/* Marks a page as reached. False: it is no page, or was reached before. */
static bool claim(struct proof *p, uint64_t page)
{
	uint8_t bit = (uint8_t)(1u << page % 8);

	if (page < 2 || page >= p->pages || (p->used[page / 8] & bit))
		return false;
	p->used[page / 8] |= bit;
	return true;
}

static int order(enum tree_kind kind, struct key a, struct key b)
{
	int o;

	if (kind == TREE_FREE) {
		uint64_t x = number(a.at, 8), y = number(b.at, 8);

		return (x > y) - (x < y);
	}
	o = memcmp(a.at, b.at, a.bytes < b.bytes ? a.bytes : b.bytes);

	return o != 0 ? o : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static const char *check_tree(struct proof *p, struct tree *t);

/* A list of free pages: their count, then their numbers, falling. */
static const char *check_free_list(struct proof *p, struct key key, const uint8_t *data, uint64_t bytes)
{
	uint64_t count, last = UINT64_MAX, txn = number(key.at, 8);

	if (txn < 1 || txn > p->transaction)
		return "catalog pages: free pages of a transaction that never was";
	if (bytes < 8 || (count = number(data, 8)) > bytes / 8 - 1)
		return "catalog pages: a list of free pages is cut short";
	for (uint64_t i = 1; i <= count; i++) {
		uint64_t page = number(data + 8 * i, 8);

		if (page >= last || !claim(p, page))
			return "catalog pages: a page is free twice, or free and in use";
		last = page;
	}
	return NULL;
}

static const char *check_value(struct proof *p, struct tree *t, struct key key, unsigned flags, const uint8_t *data,
			       uint64_t bytes)
{
	struct tree table;

	if (t->kind == TREE_FREE)
		return flags & NODE_TREE ? "catalog pages: a table among the free pages" :
					   check_free_list(p, key, data, bytes);
	if (t->kind == TREE_TABLE)
		return flags & NODE_TREE ? "catalog pages: a table in a table" : NULL;
	if (flags != NODE_TREE || bytes != TREE_BYTES)
		return "catalog pages: a record among the tables";
	table = tree_at(data, TREE_TABLE);
	return check_tree(p, &table);
}

/* A value on pages of its own. */
static const char *check_big(struct proof *p, uint64_t first, uint64_t bytes, const uint8_t **data)
{
	const uint8_t *page = page_at(p, first);
	uint64_t pages;

	if (!page || number(page, 8) != first || number(page + 10, 2) != PAGE_OVERFLOW)
		return "catalog pages: a big value's page is not one";
	pages = number(page + 12, 4);
	if (pages > p->pages - first || PAGE_HEAD + bytes > pages * p->page_bytes ||
	    PAGE_HEAD + bytes > p->bytes - first * p->page_bytes)
		return "catalog pages: a big value is cut short";
	for (uint64_t i = 0; i < pages; i++)
		if (!claim(p, first + i))
			return "catalog pages: a page is used twice";
	*data = page + PAGE_HEAD;
	return NULL;
}

static const char *check_leaf_node(struct proof *p, struct tree *t, const uint8_t *node)
{
	struct key key = { node + NODE_HEAD, number(node + 6, 2) };
	uint64_t bytes = number(node, 4);
	unsigned flags = (unsigned)number(node + 4, 2);
	const uint8_t *data = key.at + key.bytes;
	const char *problem;

	t->seen++;
	if (flags & NODE_BIG) {
		problem = check_big(p, number(data, 8), bytes, &data);
		if (problem)
			return problem;
	}
	return check_value(p, t, key, flags & ~(unsigned)NODE_BIG, data, bytes);
}

/* The whole size of a node, or 0: it does not fit where it stands. */
static uint64_t node_size(const struct proof *p, const uint8_t *node, uint64_t room, bool leaf)
{
	uint64_t node_most = (((p->page_bytes - PAGE_HEAD) / 2) & ~1ull) - 2, size, flags;

	if (room < NODE_HEAD)
		return 0;
	flags = number(node + 4, 2);
	size = NODE_HEAD + number(node + 6, 2);
	if (size > NODE_HEAD + KEY_BYTES_MOST)
		return 0;
	if (leaf) {
		if (flags & ~(unsigned)(NODE_BIG | NODE_TREE))
			return 0;
		size += flags & NODE_BIG ? 8 : number(node, 4);
		if (size > node_most)
			return 0;
	}
	size = (size + 1) & ~1ull;
	return size <= room ? size : 0;
}

static const uint8_t *node_at(const uint8_t *page, uint64_t i)
{
	return page + number(page + PAGE_HEAD + 2 * i, 2);
}

/* Checks that the nodes lie side by side from `upper` to the end of the page. */
static const char *check_nodes(struct proof *p, const uint8_t *page, bool leaf)
{
	static const char bad[] = "catalog pages: the nodes of a page are damaged";
	uint64_t lower = number(page + 12, 2), upper = number(page + 14, 2), nodes, at;

	if (lower < PAGE_HEAD || lower > upper || upper > p->page_bytes || lower % 2 != 0 || upper % 2 != 0)
		return bad;
	nodes = (lower - PAGE_HEAD) / 2;
	if (nodes < (leaf ? 1 : 2))
		return "catalog pages: a page with too few nodes";
	memset(p->node_bytes, 0, p->page_bytes / 2 * sizeof(p->node_bytes[0]));
	for (uint64_t i = 0; i < nodes; i++) {
		uint64_t size;

		at = number(page + PAGE_HEAD + 2 * i, 2);
		if (at < upper || at >= p->page_bytes || at % 2 != 0 || p->node_bytes[at / 2] != 0)
			return bad;
		size = node_size(p, page + at, p->page_bytes - at, leaf);
		if (size == 0)
			return bad;
		p->node_bytes[at / 2] = (uint16_t)size;
	}
	for (at = upper; at < p->page_bytes; at += p->node_bytes[at / 2], nodes--)
		if (p->node_bytes[at / 2] == 0)
			return bad;
	return nodes == 0 ? NULL : bad;
}

/* Checks that keys rise, from low (included) to high (excluded). A branch's first key is not stored: it counts as
 * low. */
static const char *check_keys(const struct tree *t, const uint8_t *page, bool leaf, struct key low, struct key high)
{
	uint64_t nodes = (number(page + 12, 2) - PAGE_HEAD) / 2;
	struct key last = low;

	for (uint64_t i = leaf ? 0 : 1; i < nodes; i++) {
		const uint8_t *node = node_at(page, i);
		struct key key = { node + NODE_HEAD, number(node + 6, 2) };
		int o;

		if (key.bytes < 1 || (t->kind == TREE_FREE && key.bytes != 8))
			return "catalog pages: a key has a wrong size";
		o = last.at ? order(t->kind, last, key) : -1;
		if (o > 0 || (o == 0 && (i > 0 || !leaf)))
			return "catalog pages: keys do not rise";
		last = key;
	}
	if (high.at && last.at && order(t->kind, last, high) >= 0)
		return "catalog pages: a key is beyond its branch";
	return NULL;
}

static const char *check_page(struct proof *p, struct tree *t, uint64_t number_of, unsigned level, struct key low,
			      struct key high)
{
	const uint8_t *page = page_at(p, number_of);
	bool leaf = level == t->depth;
	const char *problem;
	uint64_t nodes;

	if (!page || !claim(p, number_of))
		return "catalog pages: a page is outside the file, or used twice";
	if (number(page, 8) != number_of || number(page + 10, 2) != (leaf ? PAGE_LEAF : PAGE_BRANCH))
		return "catalog pages: a page is not what it should be";
	problem = check_nodes(p, page, leaf);
	if (!problem)
		problem = check_keys(t, page, leaf, low, high);
	nodes = problem ? 0 : (number(page + 12, 2) - PAGE_HEAD) / 2;
	for (uint64_t i = 0; i < nodes && !problem; i++) {
		const uint8_t *node = node_at(page, i);
		struct key from = low, to = high;

		if (leaf) {
			problem = check_leaf_node(p, t, node);
			continue;
		}
		if (i > 0)
			from = (struct key){ node + NODE_HEAD, number(node + 6, 2) };
		if (i + 1 < nodes) {
			const uint8_t *next = node_at(page, i + 1);

			to = (struct key){ next + NODE_HEAD, number(next + 6, 2) };
		}
		problem = check_page(p, t, number(node, 6), level + 1, from, to);
	}
	return problem;
}

static const char *check_tree(struct proof *p, struct tree *t)
{
	const struct key none = { NULL, 0 };
	const char *problem;

	/* The free pages' tree also carries flags of the environment, in other bits. */
	if ((t->kind == TREE_FREE ? t->flags & TREE_FLAGS : t->flags) != (t->kind == TREE_FREE ? TREE_INTEGER_KEYS : 0))
		return "catalog pages: a table is of another kind";
	if (t->root == NO_PAGE)
		return t->entries == 0 && t->depth == 0 ? NULL : "catalog pages: a table has lost its root";
	if (t->depth < 1 || t->depth > DEPTH_MOST)
		return "catalog pages: a table has a wrong depth";
	problem = check_page(p, t, t->root, 1, none, none);
	if (!problem && t->seen != t->entries)
		problem = "catalog pages: a table has not as many records as it says";
	return problem;
}

/* ---- the two meta pages ---- */

static struct meta meta_at(const uint8_t *page)
{
	const uint8_t *m = page + PAGE_HEAD;

	return (struct meta){
		.page_bytes = number(m + 24, 4),
		.free = tree_at(m + 24, TREE_FREE),
		.names = tree_at(m + 24 + TREE_BYTES, TREE_NAMES),
		.last_page = number(m + 24 + 2 * TREE_BYTES, 8),
		.transaction = number(m + 24 + 2 * TREE_BYTES + 8, 8),
	};
}

static bool meta_sound(const uint8_t *page, uint64_t n)
{
	return number(page, 8) == n && number(page + 10, 2) == PAGE_META && number(page + PAGE_HEAD, 4) == META_MAGIC;
}

static const char *metas_problem(const uint8_t *file, uint64_t bytes, struct meta *newest)
{
	struct meta m[2];

	if (bytes < META_BYTES || !meta_sound(file, 0))
		return "catalog pages: not a file of LMDB, or its first page is damaged";
	m[0] = meta_at(file);
	if (m[0].page_bytes < PAGE_BYTES_LEAST || m[0].page_bytes > PAGE_BYTES_MOST ||
	    (m[0].page_bytes & (m[0].page_bytes - 1)) != 0 || bytes < 2 * m[0].page_bytes ||
	    !meta_sound(file + m[0].page_bytes, 1))
		return "catalog pages: a meta page is damaged";
	m[1] = meta_at(file + m[0].page_bytes);
	*newest = m[m[0].transaction < m[1].transaction];
	/* LMDB writes them in turn; the transaction's number says which. */
	if (m[1].page_bytes != m[0].page_bytes || newest->transaction >> 62 != 0 ||
	    (newest->transaction != 0 && newest->transaction % 2 != (m[0].transaction < m[1].transaction)))
		return "catalog pages: the meta pages do not agree";
	/* The end of a file may hold pages that were given out, given back, and never written. */
	if (newest->last_page < 1 || newest->last_page / 4 > bytes / newest->page_bytes + (1u << 16))
		return "catalog pages: the file is far shorter than it says";
	return NULL;
}

static bool another_format(const uint8_t *file, uint64_t bytes)
{
	return bytes >= META_BYTES && meta_sound(file, 0) && number(file + PAGE_HEAD + 4, 4) != 1;
}

const char *catalog_pages_problem(const void *file, size_t bytes)
{
	struct proof p = { .file = file, .bytes = bytes };
	const char *problem;
	struct meta m;

	if (another_format(file, bytes))
		return NULL;
	problem = metas_problem(file, bytes, &m);
	if (problem)
		return problem;
	p.page_bytes = m.page_bytes;
	p.pages = m.last_page + 1;
	p.transaction = m.transaction;
	p.used = calloc(p.pages / 8 + 1, 1);
	p.node_bytes = calloc(p.page_bytes / 2, sizeof(p.node_bytes[0]));
	problem = catalog_pages_no_memory;
	if (p.used && p.node_bytes) {
		problem = check_tree(&p, &m.names);
		if (!problem)
			problem = check_tree(&p, &m.free);
	}
	free(p.node_bytes);
	free(p.used);
	return problem;
}
