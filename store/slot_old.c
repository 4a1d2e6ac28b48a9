/* Slot headers of versions 1 and 2: how a disk that an older daemon wrote is read.
 *
 * Version 2 has room for keys of 32 bytes. Version 1 also lacks the layout and has zeroes in its place. All fields of
 * both are fields of the present header. So a sound old header is turned into a present one, and only this file knows
 * the old form. The slot on the disk stays as it is until it is written for another block.
 */
#include "store/slot.h"

#include <stdbool.h>
#include <string.h>

enum { OLD_KEY_MAX = 32, OLD_LAYERS_MAX = 512, OLD_LAYOUT_MAX = 256, OLD_TENANT_MAX = 63 };

struct old_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_crc;
	uint64_t generation, layout_id, block_bytes, layer_bytes, stored_unix_ms, position;
	uint32_t layers, tokens, turn;
	uint8_t role, key_bytes, parent_bytes, tombstone;
	uint8_t key[OLD_KEY_MAX], parent[OLD_KEY_MAX];
	char tenant[OLD_TENANT_MAX + 1];
	uint32_t layer_crc[OLD_LAYERS_MAX];
	uint32_t layout_bytes;
	uint8_t layout[OLD_LAYOUT_MAX];
	uint8_t reserved[SLOT_HEADER_BYTES - 212 - 4 * OLD_LAYERS_MAX - OLD_LAYOUT_MAX];
};

_Static_assert(sizeof(struct old_header) == SLOT_HEADER_BYTES, "the header is one page");
_Static_assert(offsetof(struct old_header, key) == 80, "disk format");
_Static_assert(offsetof(struct old_header, tenant) == 144, "disk format");
_Static_assert(offsetof(struct old_header, layer_crc) == 208, "disk format");
_Static_assert(offsetof(struct old_header, layout_bytes) == 2256, "disk format");
_Static_assert(offsetof(struct old_header, reserved) == 2516, "disk format");
_Static_assert((int)OLD_LAYERS_MAX <= (int)SLOT_LAYERS_MAX && (int)OLD_LAYOUT_MAX <= (int)SLOT_LAYOUT_MAX,
	       "an old header has room in a new one");

/* The CRC of a page with its field header_crc taken as 0. Both forms have that field at the same place. */
static uint32_t page_crc(void *page)
{
	struct old_header *h = page;
	const uint32_t was = h->header_crc;
	uint32_t crc;

	h->header_crc = 0;
	crc = slot_crc32c(0, page, SLOT_HEADER_BYTES);
	h->header_crc = was;
	return crc;
}

static bool all_zero(const uint8_t *at, size_t n)
{
	return at[0] == 0 && memcmp(at, at + 1, n - 1) == 0;
}

/* What the old form demands and the new one does not; the rest is checked on the new form. */
static bool is_sound(const struct old_header *h)
{
	return h->key_bytes <= OLD_KEY_MAX && h->parent_bytes <= OLD_KEY_MAX &&
	       h->layout_bytes <= (h->version == 1 ? 0 : OLD_LAYOUT_MAX) && h->layers <= OLD_LAYERS_MAX &&
	       h->block_bytes == h->layer_bytes * h->layers && h->tokens <= h->layer_bytes &&
	       all_zero(h->reserved, sizeof(h->reserved));
}

static void renewed(struct slot_header *to, const struct old_header *h)
{
	*to = (struct slot_header){
		.magic = h->magic,
		.version = SLOT_VERSION,
		.generation = h->generation,
		.layout_id = h->layout_id,
		.block_bytes = h->block_bytes,
		.layer_bytes = h->layer_bytes,
		.stored_unix_ms = h->stored_unix_ms,
		.position = h->position,
		.layers = h->layers,
		.tokens = h->tokens,
		.turn = h->turn,
		.role = h->role,
		.key_bytes = h->key_bytes,
		.parent_bytes = h->parent_bytes,
		.tombstone = h->tombstone,
		.layout_bytes = h->layout_bytes,
	};
	memcpy(to->key, h->key, sizeof(h->key));
	memcpy(to->parent, h->parent, sizeof(h->parent));
	memcpy(to->tenant, h->tenant, sizeof(h->tenant));
	memcpy(to->layer_crc, h->layer_crc, sizeof(h->layer_crc));
	memcpy(to->layout, h->layout, sizeof(h->layout));
	to->header_crc = page_crc(to);
}

void slot_header_renew(struct slot_header *h)
{
	struct old_header old;
	struct slot_header new;

	if (h->version != 1 && h->version != 2)
		return;
	memcpy(&old, h, sizeof(old));
	if (old.magic != SLOT_MAGIC || page_crc(&old) != old.header_crc || !is_sound(&old))
		return;
	renewed(&new, &old);
	if (!slot_header_problem(&new))
		*h = new;
}
