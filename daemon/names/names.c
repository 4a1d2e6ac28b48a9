/* See names/names.h. The keys of a tenant are under a counter that is odd while they are written. A reader takes the
 * counter, then the keys, then the counter again, and begins anew if it was odd or has changed. Each word is stored
 * with release and read with acquire: a reader that has a new word sees that the counter is odd, or has changed. The
 * rows lie in pages of their own, which no core dump has. */
#include "daemon/names/names.h"

#include "daemon/names/siphash.h"

#include <assert.h>
#include <endian.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct keys {
	uint64_t key[NAMES_SECRETS][2];
	uint32_t fingerprint[NAMES_SECRETS];
	uint32_t count;
};

struct row {
	_Atomic uint64_t turn; /* odd: the words are being written */
	_Atomic uint64_t key[NAMES_SECRETS][2];
	_Atomic uint32_t fingerprint[NAMES_SECRETS];
	_Atomic uint32_t count;
	uint32_t number;
	uint8_t same[NAMES_SECRETS][SECRET_SAME_BYTES]; /* the writer's */
};

struct names {
	uint32_t count;
	_Atomic uint64_t version;
	struct row *rows;
};

static size_t bytes_of(uint32_t count)
{
	return (count ? count : 1) * sizeof(struct row);
}

enum status names_create(const uint32_t *numbers, uint32_t count, struct names **out)
{
	struct names *n = calloc(1, sizeof *n);

	assert(count <= NAMES_TENANTS_MAX);
	if (!n)
		return STATUS_EXHAUSTED;
	n->rows = mmap(NULL, bytes_of(count), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (n->rows == MAP_FAILED) {
		free(n);
		return STATUS_EXHAUSTED;
	}
	madvise(n->rows, bytes_of(count), MADV_DONTDUMP);
	n->count = count;
	for (uint32_t i = 0; i < count; i++)
		n->rows[i].number = numbers[i];
	*out = n;
	return STATUS_OK;
}

void names_destroy(struct names *n)
{
	if (!n)
		return;
	explicit_bzero(n->rows, bytes_of(n->count));
	munmap(n->rows, bytes_of(n->count));
	free(n);
}

uint32_t names_count(const struct names *n)
{
	return n->count;
}

uint32_t names_number(const struct names *n, uint32_t tenant)
{
	return n->rows[tenant].number;
}

uint32_t names_tenant(const struct names *n, uint32_t number)
{
	for (uint32_t i = 0; i < n->count; i++)
		if (n->rows[i].number == number)
			return i;
	return NAMES_NO_TENANT;
}

/* The keys of one moment. */
static void take(const struct row *r, struct keys *out)
{
	uint64_t turn;

	do {
		turn = atomic_load_explicit(&r->turn, memory_order_acquire);
		out->count = atomic_load_explicit(&r->count, memory_order_acquire);
		for (int i = 0; i < NAMES_SECRETS; i++) {
			out->key[i][0] = atomic_load_explicit(&r->key[i][0], memory_order_acquire);
			out->key[i][1] = atomic_load_explicit(&r->key[i][1], memory_order_acquire);
			out->fingerprint[i] = atomic_load_explicit(&r->fingerprint[i], memory_order_acquire);
		}
	} while (turn & 1 || turn != atomic_load_explicit(&r->turn, memory_order_relaxed));
}

SECRET_CLEARS_REGISTERS
uint32_t names_of(const struct names *n, uint32_t tenant, uint64_t layout_id, const uint8_t *key, uint32_t key_bytes,
		  struct public_name out[NAMES_SECRETS])
{
	uint8_t input[sizeof layout_id + NAMES_KEY_MAX + 1];
	const uint64_t layout = htole64(layout_id);
	struct keys keys;

	assert(tenant < n->count && key_bytes <= NAMES_KEY_MAX);
	take(&n->rows[tenant], &keys);
	memcpy(input, &layout, sizeof layout);
	memcpy(input + sizeof layout, key, key_bytes);
	input[sizeof layout + key_bytes] = (uint8_t)key_bytes;
	for (uint32_t i = 0; i < keys.count; i++)
		siphash_128(keys.key[i], input, sizeof layout + key_bytes + 1, out[i].bytes);
	explicit_bzero(keys.key, sizeof keys.key); /* a stack is in core dumps */
	return keys.count;
}

SECRET_CLEARS_REGISTERS
uint32_t names_fingerprints(const struct names *n, uint32_t tenant, uint32_t out[NAMES_SECRETS])
{
	struct keys keys;

	take(&n->rows[tenant], &keys);
	explicit_bzero(keys.key, sizeof keys.key);
	memcpy(out, keys.fingerprint, keys.count * sizeof out[0]);
	return keys.count;
}

/* ---- the writer ---- */

static void put(struct row *r, int i, const struct secret *s)
{
	static const struct secret none;
	const struct secret *from = s ? s : &none;

	atomic_store_explicit(&r->key[i][0], from->key[0], memory_order_release);
	atomic_store_explicit(&r->key[i][1], from->key[1], memory_order_release);
	atomic_store_explicit(&r->fingerprint[i], from->fingerprint, memory_order_release);
	memcpy(r->same[i], from->same, sizeof r->same[i]);
}

static bool are_same(const struct secret *a, const struct secret *b)
{
	return !memcmp(a->same, b->same, sizeof a->same);
}

SECRET_CLEARS_REGISTERS
void names_set(struct names *n, uint32_t tenant, const struct secret *current, const struct secret *old)
{
	struct row *r = &n->rows[tenant];
	const uint64_t turn = atomic_load_explicit(&r->turn, memory_order_relaxed);

	if (!current || (old && are_same(current, old)))
		old = NULL;
	atomic_store_explicit(&r->turn, turn + 1, memory_order_relaxed);
	put(r, 0, current);
	put(r, 1, old);
	atomic_store_explicit(&r->count, (current != NULL) + (old != NULL), memory_order_release);
	atomic_store_explicit(&r->turn, turn + 2, memory_order_release);
	atomic_fetch_add_explicit(&n->version, 1, memory_order_release);
}

uint64_t names_version(const struct names *n)
{
	return atomic_load_explicit(&n->version, memory_order_acquire);
}

uint32_t names_holder(const struct names *n, uint32_t tenant, const struct secret *s)
{
	for (uint32_t i = 0; i < n->count; i++) {
		const struct row *r = &n->rows[i];
		const uint32_t count = atomic_load_explicit(&r->count, memory_order_relaxed);

		for (uint32_t k = 0; i != tenant && k < count; k++)
			if (!memcmp(r->same[k], s->same, sizeof s->same))
				return i;
	}
	return NAMES_NO_TENANT;
}
