/* Slot headers: sealing and checking.
 *
 * Sealing fills in the header first and computes its CRC last, over the page with that field 0. A header that comes
 * from a disk, or from memory that an engine may write, must pass slot_header_problem() before any size in it is used.
 */
#include "store/slot.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include <isa-l/crc.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The processor's own prefetcher stops at the end of a 4 KiB page and keeps few lines in flight. So lines are
 * prefetched by hand, far enough ahead, into the second-level cache (terrace-bench sums). */
enum { STEP = 1024, AHEAD = 8 * STEP, LINE = 64, COPY_PIECE = 4 * 1024 };

/* Prefetches the range [from, to) of `data`, which has `bytes` bytes and continues at `next`; NULL: it ends there.
 * (Inlined by force: GCC would drop calls of a function that does nothing but prefetch.) */
static inline __attribute__((always_inline)) void fetch(const uint8_t *data, size_t from, size_t to, size_t bytes, const uint8_t *next)
{
	for (; from < to && from < bytes; from += LINE)
		__builtin_prefetch(data + from, 0, 2);
	for (; next && from < to; from += LINE)
		__builtin_prefetch(next + (from - bytes), 0, 2);
}

uint32_t slot_crc32c_next(uint32_t crc, const void *data, size_t bytes, const void *next)
{
	const size_t ahead = bytes < AHEAD ? bytes : AHEAD;
	const uint8_t *at = data;

	crc = ~crc;
	for (size_t i = 0; i < bytes; i += STEP) {
		const size_t n = bytes - i < STEP ? bytes - i : STEP;

		fetch(at, i + ahead, i + ahead + n, bytes, next);
		crc = crc32_iscsi((uint8_t *)(uintptr_t)(at + i), (int)n, crc); /* crc32_iscsi only reads */
	}
	return ~crc;
}

uint32_t slot_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return slot_crc32c_next(crc, data, bytes, NULL);
}

/* The product of two polynomials over GF(2), modulo Castagnoli's. As in a CRC, the highest power is the lowest bit. */
static uint32_t times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (uint32_t power = 1u << 31; power; power >>= 1) {
		product ^= a & power ? b : 0;
		b = b & 1 ? (b >> 1) ^ 0x82f63b78u : b >> 1;
	}
	return product;
}

/* squares[n] is x to the power 8 * 2^n. */
static const uint32_t squares[] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7,
	0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
	0xfe7740e6, 0xf946610b, 0x3c204f8f, 0x538586e3, 0x59726915, 0x734d5309, 0xbc1ac763, 0x7d0722cc,
	0xd289cabe, 0xe94ca9bc, 0x05b74f3f, 0xa51e1f42, 0x40000000, 0x20000000, 0x08000000, 0x00800000,
};
enum { SQUARES = sizeof(squares) / sizeof(squares[0]) };

/* x to the power 8 * bytes: a CRC is multiplied by it when so many bytes follow. */
static uint32_t shift_of(uint64_t bytes)
{
	uint32_t result = 1u << 31, square = 0; /* 1; not known yet */

	for (uint32_t n = 0; bytes; n++, bytes >>= 1) {
		square = n < SQUARES ? squares[n] : times(square, square);
		if (bytes & 1)
			result = times(result, square);
	}
	return result;
}

#if defined(__x86_64__)
__attribute__((target("cldemote"))) void slot_leave_caches(const void *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += LINE)
		_cldemote((uint8_t *)(uintptr_t)at + i); /* to a processor that does not have it, no operation */
}
#else
void slot_leave_caches(const void *at, size_t bytes)
{
	(void)at;
	(void)bytes;
}
#endif

static uint32_t header_crc(const struct slot_header *h)
{
	static const uint8_t zero[sizeof(h->header_crc)];
	const uint8_t *at = (const uint8_t *)h;
	size_t before = offsetof(struct slot_header, header_crc), after = before + sizeof(zero);
	uint32_t crc = slot_crc32c(0, at, before);

	crc = slot_crc32c(crc, zero, sizeof(zero));
	return slot_crc32c(crc, at + after, sizeof(*h) - after);
}

/* The layers of a block: where they stand, and how large they are. */
struct layers {
	const uint8_t *block;
	uint64_t block_bytes, layer_bytes;
};

static struct layers layers_of(const struct slot_header *h, const void *block)
{
	return (struct layers){ block, h->block_bytes, h->layer_bytes };
}

/* The CRC of this layer. The one behind it is prefetched meanwhile if it is before `end`. */
static uint32_t sum_of(const struct layers *l, uint32_t end, uint32_t layer)
{
	const uint8_t *at = l->block + l->layer_bytes * layer;
	const uint64_t bytes = slot_layer_bytes(l->block_bytes, l->layer_bytes, layer);

	return slot_crc32c_next(0, at, bytes, layer + 1 < end ? at + bytes : NULL);
}

void slot_seal_layers(void *slot, const struct slot_ident *ident, uint32_t first, uint32_t n)
{
	const struct layers l = { (const uint8_t *)slot + SLOT_HEADER_BYTES, ident->block_bytes, ident->layer_bytes };
	struct slot_header *h = slot;

	for (uint32_t i = first; i < first + n; i++)
		h->layer_crc[i] = sum_of(&l, first + n, i);
}

/* True if the layers cover the block and the last layer has at least one byte. */
static bool are_covered(uint64_t block_bytes, uint64_t layer_bytes, uint32_t layers)
{
	return block_bytes <= layer_bytes * layers && block_bytes > layer_bytes * (layers - 1);
}

static void header_fill(struct slot_header *h, const struct slot_ident *ident, const struct slot_info *info, uint64_t generation, uint64_t unix_ms)
{
	h->magic = SLOT_MAGIC;
	h->version = SLOT_VERSION;
	h->generation = generation;
	h->layout_id = ident->layout_id;
	h->block_bytes = ident->block_bytes;
	h->layer_bytes = ident->layer_bytes;
	h->stored_unix_ms = unix_ms;
	h->position = info->position;
	h->layers = ident->layers;
	h->tokens = info->tokens;
	h->turn = info->turn;
	h->role = info->role;
	h->key_bytes = ident->key_bytes;
	h->parent_bytes = info->parent_bytes;
	memcpy(h->key, ident->key, ident->key_bytes);
	memcpy(h->parent, info->parent, info->parent_bytes);
	memcpy(h->tenant, ident->tenant, strlen(ident->tenant));
	h->layout_bytes = ident->layout_bytes;
	if (ident->layout_bytes > 0)
		memcpy(h->layout, ident->layout, ident->layout_bytes);
	h->header_crc = header_crc(h);
}

uint32_t slot_seal_header(void *slot, const struct slot_ident *ident, const struct slot_info *info, uint64_t generation, uint64_t unix_ms)
{
	struct slot_header h = { .magic = 0 };
	const size_t name = strlen(ident->tenant);

	assert(ident->key_bytes >= 1 && ident->key_bytes <= SLOT_KEY_MAX);
	assert(info->parent_bytes <= SLOT_KEY_MAX && name >= 1 && name <= SLOT_TENANT_MAX);
	assert(ident->layers >= 1 && ident->layers <= SLOT_LAYERS_MAX);
	assert(are_covered(ident->block_bytes, ident->layer_bytes, ident->layers));
	assert(ident->layout_bytes <= SLOT_LAYOUT_MAX && (ident->layout || ident->layout_bytes == 0));
	(void)name;

	memcpy(h.layer_crc, ((const struct slot_header *)slot)->layer_crc, ident->layers * sizeof(h.layer_crc[0]));
	header_fill(&h, ident, info, generation, unix_ms);
	memcpy(slot, &h, sizeof(h));
	return h.header_crc;
}

uint32_t slot_seal(void *slot, const struct slot_ident *ident, const struct slot_info *info, uint64_t generation, uint64_t unix_ms)
{
	slot_seal_layers(slot, ident, 0, ident->layers);
	return slot_seal_header(slot, ident, info, generation, unix_ms);
}

void slot_tombstone(struct slot_header *page, const struct slot_header *of, uint64_t unix_ms)
{
	memmove(page, of, sizeof(*page));
	page->version = SLOT_VERSION;
	page->tombstone = 1;
	page->stored_unix_ms = unix_ms;
	memset(page->layer_crc, 0, sizeof(page->layer_crc));
	page->header_crc = header_crc(page);
}

static bool all_zero(const void *bytes, size_t n)
{
	const uint8_t *at = bytes;

	return n == 0 || (at[0] == 0 && memcmp(at, at + 1, n - 1) == 0);
}

static const char *tenant_problem(const char *tenant)
{
	size_t n = strnlen(tenant, SLOT_TENANT_MAX + 1);

	if (n == 0)
		return "slot header: the tenant is empty";
	if (n > SLOT_TENANT_MAX)
		return "slot header: the tenant is not terminated";
	for (size_t i = 0; i < n; i++)
		if (tenant[i] <= ' ' || tenant[i] > '~')
			return "slot header: the tenant is not printable ASCII";
	if (!all_zero(tenant + n, SLOT_TENANT_MAX + 1 - n))
		return "slot header: bytes behind the tenant are not zero";
	return NULL;
}

static const char *key_problem(const struct slot_header *h)
{
	if (h->key_bytes < 1 || h->key_bytes > SLOT_KEY_MAX)
		return "slot header: key length is not 1 to 64";
	if (h->parent_bytes > SLOT_KEY_MAX)
		return "slot header: parent length is not 0 to 64";
	if (!all_zero(h->key + h->key_bytes, sizeof(h->key) - h->key_bytes) ||
	    !all_zero(h->parent + h->parent_bytes, sizeof(h->parent) - h->parent_bytes))
		return "slot header: bytes behind a key are not zero";
	return NULL;
}

static const char *size_problem(const struct slot_header *h)
{
	if (h->layers < 1 || h->layers > SLOT_LAYERS_MAX)
		return "slot header: layer count is not 1 to 512";
	if (h->layer_bytes < 1 || h->layer_bytes > SLOT_BYTES_MAX)
		return "slot header: layer size is out of bounds";
	if (!are_covered(h->block_bytes, h->layer_bytes, h->layers))
		return "slot header: block size is not that of its layers";
	if (h->block_bytes > SLOT_BYTES_MAX - SLOT_HEADER_BYTES)
		return "slot header: block size is out of bounds";
	if (h->tokens < 1 || h->tokens > SLOT_TOKENS_MAX)
		return "slot header: token count is out of bounds";
	return NULL;
}

static const char *layout_problem(const struct slot_header *h)
{
	if (h->layout_bytes > SLOT_LAYOUT_MAX)
		return "slot header: layout length is out of bounds";
	if (!all_zero(h->layout + h->layout_bytes, SLOT_LAYOUT_MAX - h->layout_bytes))
		return "slot header: bytes behind the layout are not zero";
	return NULL;
}

const char *slot_header_problem(const struct slot_header *h)
{
	const char *problem;

	if (h->magic != SLOT_MAGIC)
		return "slot header: wrong magic";
	if (h->version < 1 || h->version > SLOT_VERSION)
		return "slot header: unknown version";
	if (h->version < SLOT_VERSION)
		return "slot header: an older version that is not sound"; /* a sound one was renewed */
	if (h->header_crc != header_crc(h))
		return "slot header: checksum mismatch";
	problem = size_problem(h);
	if (!problem)
		problem = key_problem(h);
	if (!problem)
		problem = tenant_problem(h->tenant);
	if (!problem)
		problem = layout_problem(h);
	if (problem)
		return problem;
	if (h->tombstone > 1)
		return "slot header: tombstone is not 0 or 1";
	if (!all_zero(h->layer_crc + h->layers, (SLOT_LAYERS_MAX - h->layers) * sizeof(h->layer_crc[0])) ||
	    !all_zero(h->reserved, sizeof(h->reserved)))
		return "slot header: reserved bytes are not zero";
	return NULL;
}

bool slot_header_names(const struct slot_header *h, const struct slot_ident *ident, uint64_t generation)
{
	return !h->tombstone && (generation == 0 || h->generation == generation) && h->layout_id == ident->layout_id && h->layers == ident->layers &&
	       h->layer_bytes == ident->layer_bytes && h->block_bytes == ident->block_bytes && h->key_bytes == ident->key_bytes &&
	       memcmp(h->key, ident->key, ident->key_bytes) == 0 && strncmp(h->tenant, ident->tenant, sizeof(h->tenant)) == 0;
}

enum status slot_header_match(const struct slot_header *h, const struct slot_ident *ident,
			      uint64_t generation)
{
	if (slot_header_problem(h))
		return STATUS_CORRUPT;
	return slot_header_names(h, ident, generation) ? STATUS_OK : STATUS_STALE;
}

enum status slot_layers_check(const void *slot, uint32_t first, uint32_t n)
{
	const struct slot_header *h = slot;
	const struct layers l = layers_of(h, (const uint8_t *)slot + SLOT_HEADER_BYTES);

	if (h->layers > SLOT_LAYERS_MAX || first > h->layers || n > h->layers - first)
		return STATUS_CORRUPT;
	for (uint32_t i = first; i < first + n; i++)
		if (sum_of(&l, first + n, i) != h->layer_crc[i])
			return STATUS_CORRUPT;
	return STATUS_OK;
}

/* ---- slots that other processes may write ---- */

bool slot_header_is(const struct slot_header *h, uint32_t crc)
{
	return h->header_crc == crc && header_crc(h) == crc;
}

static enum status block_check(const struct slot_header *h, const uint8_t *block, bool leave)
{
	const struct layers l = layers_of(h, block);

	for (uint32_t i = 0; i < h->layers; i++) {
		const uint32_t sum = sum_of(&l, h->layers, i);

		if (leave)
			slot_leave_caches(block + h->layer_bytes * i,
					  slot_layer_bytes(h->block_bytes, h->layer_bytes, i));
		if (sum != h->layer_crc[i])
			return STATUS_CORRUPT;
	}
	return STATUS_OK;
}

enum status slot_block_check(const struct slot_header *h, const void *block)
{
	return block_check(h, block, false);
}

enum status slot_block_check_leave(const struct slot_header *h, const void *block)
{
	return block_check(h, block, true);
}

/* Each piece is summed right after its copy, while it lies in the first-level cache, and the next piece of the source
 * is prefetched meanwhile. A prefetch past the block's last layer reads nothing. */
static uint32_t copy_and_sum(const uint8_t *from, uint8_t *to, uint64_t bytes)
{
	uint32_t crc = 0;

	for (uint64_t at = 0; at < bytes; at += COPY_PIECE) {
		const uint64_t n = bytes - at < COPY_PIECE ? bytes - at : COPY_PIECE;

		memcpy(to + at, from + at, n);
		crc = slot_crc32c_next(crc, to + at, n, from + at + n);
	}
	return crc;
}

enum status slot_block_copy(const struct slot_header *h, const void *block, void *to)
{
	for (uint32_t i = 0; i < h->layers; i++) {
		const uint64_t at = h->layer_bytes * i, bytes = slot_layer_bytes(h->block_bytes, h->layer_bytes, i);

		if (copy_and_sum((const uint8_t *)block + at, (uint8_t *)to + at, bytes) != h->layer_crc[i])
			return STATUS_CORRUPT;
	}
	return STATUS_OK;
}

enum { NIBBLES = 8, VALUES = 16 };

/* Makes a table of the products of every 4-bit part of a word with one factor. A block has up to hundreds of layers; a
 * single times() takes as long as making the whole table. */
static void products_make(uint32_t (*table)[VALUES], uint32_t factor)
{
	for (int bit = 31; bit >= 0; bit--) {
		table[bit / 4][1 << bit % 4] = factor;
		factor = factor & 1 ? (factor >> 1) ^ 0x82f63b78u : factor >> 1;
	}
	for (int n = 0; n < NIBBLES; n++) {
		table[n][0] = 0;
		for (int v = 3; v < VALUES; v++)
			table[n][v] = table[n][v & (v - 1)] ^ table[n][v & -v];
	}
}

static uint32_t product(uint32_t (*table)[VALUES], uint32_t x)
{
	uint32_t sum = 0;

	for (int n = 0; n < NIBBLES; n++)
		sum ^= table[n][x >> (4 * n) & (VALUES - 1)];
	return sum;
}

uint32_t slot_block_crc(const struct slot_header *h)
{
	const uint64_t end = slot_layer_bytes(h->block_bytes, h->layer_bytes, h->layers - 1);
	const bool is_short = end < h->layer_bytes;
	const uint32_t whole = h->layers - is_short;
	uint32_t table[NIBBLES][VALUES], crc = h->layer_crc[0];

	products_make(table, shift_of(h->layer_bytes));
	for (uint32_t i = 1; i < whole; i++)
		crc = product(table, crc) ^ h->layer_crc[i];
	if (is_short && whole)
		crc = times(crc, shift_of(end)) ^ h->layer_crc[whole];
	return crc;
}
