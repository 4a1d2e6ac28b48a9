/* Records of the catalog: a reader and a writer of fixed fields with bounds, and for each table its encoding and its
 * checks.
 */
#include "store/catalog/record.h"

#include <stdbool.h>
#include <string.h>

/* Reads forward through bytes of any contents: past their end it reads zeroes and sets `bad`. */
struct reader {
	const uint8_t *at;
	size_t left;
	bool bad;
};

static struct reader reader_of(const void *bytes, size_t n)
{
	return (struct reader){ bytes, n, false };
}

static void take(struct reader *r, void *to, size_t n)
{
	if (n > r->left) {
		r->bad = true;
		r->left = 0;
		memset(to, 0, n);
		return;
	}
	memcpy(to, r->at, n);
	r->at += n;
	r->left -= n;
}

static uint64_t take_little(struct reader *r, size_t n)
{
	uint8_t bytes[8] = { 0 };
	uint64_t v = 0;

	take(r, bytes, n);
	for (size_t i = n; i > 0; i--)
		v = v << 8 | bytes[i - 1];
	return v;
}

static uint64_t take_big(struct reader *r, size_t n)
{
	uint8_t bytes[8] = { 0 };
	uint64_t v = 0;

	take(r, bytes, n);
	for (size_t i = 0; i < n; i++)
		v = v << 8 | bytes[i];
	return v;
}

static void take_zero(struct reader *r, size_t n)
{
	while (n-- > 0)
		r->bad |= take_little(r, 1) != 0;
}

/* All that is left, at least `least` and at most `most`; returns how much. */
static size_t take_rest(struct reader *r, void *to, size_t least, size_t most)
{
	size_t n = r->left;

	if (n < least || n > most) {
		r->bad = true;
		return 0;
	}
	take(r, to, n);
	return n;
}

static enum status ended(const struct reader *key, const struct reader *value)
{
	return key->bad || value->bad || key->left != 0 || value->left != 0 ? STATUS_CORRUPT : STATUS_OK;
}

/* A value of version 0 is not valid; one of a newer version may have any form behind its first byte. */
static enum status version(struct reader *r, unsigned newest)
{
	uint64_t v = take_little(r, 1);

	if (r->bad || v == 0)
		return STATUS_CORRUPT;
	return v > newest ? STATUS_UNSUPPORTED : STATUS_OK;
}

static void put(uint8_t *to, size_t *at, const void *bytes, size_t n)
{
	memcpy(to + *at, bytes, n);
	*at += n;
}

static void put_little(uint8_t *to, size_t *at, uint64_t v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[(*at)++] = (uint8_t)(v >> 8 * i);
}

static void put_big(uint8_t *to, size_t *at, uint64_t v, size_t n)
{
	for (size_t i = n; i > 0; i--)
		to[(*at)++] = (uint8_t)(v >> 8 * (i - 1));
}

static void record_begin(struct record *r)
{
	r->key_bytes = r->value_bytes = 0;
}

static bool slot_bytes_sound(uint64_t n)
{
	return n > SLOT_HEADER_BYTES && n <= SLOT_BYTES_MAX && n % SLOT_HEADER_BYTES == 0;
}

/* ---- blocks ---- */

enum {
	FLUSHED_BIT = BLOCK_RECORD_ROLE_MAX + 1, /* of the role's byte */
	OLD_KEY_MAX = 32,                        /* of version 1 */
};

static bool block_sound(const struct block_record *b)
{
	return b->role <= BLOCK_RECORD_ROLE_MAX && b->key_bytes >= 1 && b->key_bytes <= SLOT_KEY_MAX &&
	       b->parent_bytes <= SLOT_KEY_MAX && b->slab >= 1 && b->generation >= 1 && b->tokens >= 1 &&
	       slot_bytes_sound(b->slot_bytes);
}

enum status block_record_key(const struct block_record *b, uint8_t key[RECORD_KEY_MAX], size_t *key_bytes)
{
	size_t n = 0;

	if (b->key_bytes < 1 || b->key_bytes > SLOT_KEY_MAX)
		return STATUS_INVALID;
	put_big(key, &n, b->layout_id, 8);
	put_big(key, &n, b->tenant, 4);
	put(key, &n, b->key, b->key_bytes);
	*key_bytes = n;
	return STATUS_OK;
}

enum status block_record_encode(const struct block_record *b, struct record *out)
{
	size_t *n = &out->value_bytes;

	if (!block_sound(b))
		return STATUS_INVALID;
	record_begin(out);
	block_record_key(b, out->key, &out->key_bytes);
	put_little(out->value, n, BLOCK_RECORD_VERSION, 1);
	put_little(out->value, n, b->role | (b->flushed ? FLUSHED_BIT : 0), 1);
	put_little(out->value, n, b->parent_bytes, 1);
	put_little(out->value, n, 0, 1);
	put_little(out->value, n, b->slab, 4);
	put_little(out->value, n, b->slot, 4);
	put_little(out->value, n, b->tokens, 4);
	put_little(out->value, n, b->turn, 4);
	put_little(out->value, n, 0, 4);
	put_little(out->value, n, b->disk_id, 8);
	put_little(out->value, n, b->generation, 8);
	put_little(out->value, n, b->stored_unix_ms, 8);
	put_little(out->value, n, b->position, 8);
	put_little(out->value, n, b->slot_bytes, 8);
	put(out->value, n, b->parent, b->parent_bytes);
	return STATUS_OK;
}

enum status block_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
				struct block_record *out)
{
	struct reader k = reader_of(key, key_bytes), v = reader_of(value, value_bytes);
	enum status s = version(&v, BLOCK_RECORD_VERSION);
	struct block_record b = { 0 };
	uint8_t role;
	bool old;

	if (s != STATUS_OK)
		return s;
	old = *(const uint8_t *)value == 1;
	b.layout_id = take_big(&k, 8);
	b.tenant = (uint32_t)take_big(&k, 4);
	b.key_bytes = (uint8_t)take_rest(&k, b.key, 1, sizeof(b.key));
	role = (uint8_t)take_little(&v, 1);
	b.role = role & BLOCK_RECORD_ROLE_MAX;
	b.flushed = role & FLUSHED_BIT;
	b.parent_bytes = (uint8_t)take_little(&v, 1);
	take_zero(&v, 1);
	b.slab = (uint32_t)take_little(&v, 4);
	b.slot = (uint32_t)take_little(&v, 4);
	b.tokens = (uint32_t)take_little(&v, 4);
	b.turn = (uint32_t)take_little(&v, 4);
	take_zero(&v, 4);
	b.disk_id = take_little(&v, 8);
	b.generation = take_little(&v, 8);
	b.stored_unix_ms = take_little(&v, 8);
	b.position = take_little(&v, 8);
	b.slot_bytes = take_little(&v, 8);
	if (take_rest(&v, b.parent, 0, sizeof(b.parent)) != b.parent_bytes)
		return STATUS_CORRUPT;
	s = ended(&k, &v);
	if (s == STATUS_OK &&
	    (!block_sound(&b) || (old && (b.key_bytes > OLD_KEY_MAX || b.parent_bytes > OLD_KEY_MAX))))
		s = STATUS_CORRUPT;
	if (s == STATUS_OK)
		*out = b;
	return s;
}

/* ---- layouts ---- */

enum status layout_record_encode(const struct layout_record *l, struct record *out)
{
	if (l->layout_bytes > SLOT_LAYOUT_MAX || !slot_bytes_sound(l->slot_bytes))
		return STATUS_INVALID;
	record_begin(out);
	put_big(out->key, &out->key_bytes, l->layout_id, 8);
	put_little(out->value, &out->value_bytes, LAYOUT_RECORD_VERSION, 1);
	put_little(out->value, &out->value_bytes, 0, 7);
	put_little(out->value, &out->value_bytes, l->slot_bytes, 8);
	put(out->value, &out->value_bytes, l->layout, l->layout_bytes);
	return STATUS_OK;
}

enum status layout_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
				 struct layout_record *out)
{
	struct reader k = reader_of(key, key_bytes), v = reader_of(value, value_bytes);
	enum status s = version(&v, LAYOUT_RECORD_VERSION);
	struct layout_record l = { 0 };

	if (s != STATUS_OK)
		return s;
	l.layout_id = take_big(&k, 8);
	take_zero(&v, 7);
	l.slot_bytes = take_little(&v, 8);
	l.layout_bytes = (uint32_t)take_rest(&v, l.layout, 0, sizeof(l.layout));
	s = ended(&k, &v);
	if (s == STATUS_OK && !slot_bytes_sound(l.slot_bytes))
		s = STATUS_CORRUPT;
	if (s == STATUS_OK)
		*out = l;
	return s;
}

/* ---- slabs ---- */

enum status disk_record_encode(const struct disk_record *d, struct record *out)
{
	size_t n = strnlen(d->folder, RECORD_FOLDER_MAX + 1);

	if (n < 1 || n > RECORD_FOLDER_MAX)
		return STATUS_INVALID;
	record_begin(out);
	put_big(out->key, &out->key_bytes, d->disk_id, 8);
	put_little(out->value, &out->value_bytes, DISK_RECORD_VERSION, 1);
	put_little(out->value, &out->value_bytes, 0, 7);
	put(out->value, &out->value_bytes, d->folder, n);
	return STATUS_OK;
}

enum status disk_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
			       struct disk_record *out)
{
	struct reader k = reader_of(key, key_bytes), v = reader_of(value, value_bytes);
	enum status s = version(&v, DISK_RECORD_VERSION);
	struct disk_record d = { 0 };
	size_t n;

	if (s != STATUS_OK)
		return s;
	d.disk_id = take_big(&k, 8);
	take_zero(&v, 7);
	n = take_rest(&v, d.folder, 1, RECORD_FOLDER_MAX);
	s = ended(&k, &v);
	if (s == STATUS_OK && strlen(d.folder) != n)
		s = STATUS_CORRUPT;
	if (s == STATUS_OK)
		*out = d;
	return s;
}

/* ---- meta ---- */

static const char boot_key[] = { 'b', 'o', 'o', 't' };

enum status boot_record_encode(const struct boot_record *b, struct record *out)
{
	if (b->boots < 1)
		return STATUS_INVALID;
	record_begin(out);
	put(out->key, &out->key_bytes, boot_key, sizeof(boot_key));
	put_little(out->value, &out->value_bytes, BOOT_RECORD_VERSION, 1);
	put_little(out->value, &out->value_bytes, 0, 7);
	put_little(out->value, &out->value_bytes, b->boots, 8);
	put_little(out->value, &out->value_bytes, b->generation_reserved, 8);
	put_little(out->value, &out->value_bytes, b->epoch, 8);
	return STATUS_OK;
}

enum status boot_record_decode(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
			       struct boot_record *out)
{
	struct reader k = reader_of(key, key_bytes), v = reader_of(value, value_bytes);
	enum status s = version(&v, BOOT_RECORD_VERSION);
	struct boot_record b;
	char name[sizeof(boot_key)];

	if (s != STATUS_OK)
		return s;
	take(&k, name, sizeof(name));
	take_zero(&v, 7);
	b.boots = take_little(&v, 8);
	b.generation_reserved = take_little(&v, 8);
	b.epoch = take_little(&v, 8);
	s = ended(&k, &v);
	if (s == STATUS_OK && (memcmp(name, boot_key, sizeof(name)) != 0 || b.boots < 1))
		s = STATUS_CORRUPT;
	if (s == STATUS_OK)
		*out = b;
	return s;
}
