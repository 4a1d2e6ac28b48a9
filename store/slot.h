/* A slot: [4 KiB header | block | pad to 4 KiB]. It has the same bytes in host memory and on disk.
 *
 * A slot describes itself: the header and each layer carry a CRC-32C. So a slot can be checked, and a catalog rebuilt,
 * from the slot alone.
 *
 * A *layer* is here a checked piece of the block: what the owner calls a layer, or a part of a block that has no
 * layers. All layers have layer_bytes, but the last one ends with the block and may be shorter.
 *
 * Threads: pure functions on the caller's memory. A slot that an engine may still write can change while it is read:
 * copy the header (SLOT_HEADER_BYTES) first and check the copy.
 */
#ifndef TERRACE_STORE_SLOT_H
#define TERRACE_STORE_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

enum {
	SLOT_HEADER_BYTES = 4096, /* also the alignment of slots */
	SLOT_VERSION = 3,         /* 1 and 2 are read by slot_header_renew */
	SLOT_LAYOUT_MAX = 256,
	SLOT_KEY_MAX = 64,        /* the daemon's limit for all keys; a larger one needs a new header format */
	SLOT_TENANT_MAX = 63,     /* bytes of a tenant's name, NUL not counted */
	SLOT_LAYERS_MAX = 512,
	SLOT_TOKENS_MAX = 1 << 20,
	SLOT_BYTES_MAX = 1 << 30, /* header included: a slot lies in one extent */
};
#define SLOT_MAGIC 0x31544c5345435254ull /* "TRCESLT1" */

/* What may be known of a block besides its bytes. */
struct slot_info {
	uint8_t parent[SLOT_KEY_MAX];
	uint8_t parent_bytes;  /* 0: the first of its chain */
	uint8_t role;          /* as the engine gave it; this module does not interpret it */
	uint32_t turn;
	uint32_t tokens;       /* in the block, 1 .. the layout's tokens a block */
	uint64_t position;     /* of the first token in its sequence */
};

/* On disk and in memory, little-endian; reserved bytes are zero. Exactly SLOT_HEADER_BYTES. */
struct slot_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_crc;   /* CRC-32C of the 4096 bytes with this field 0 */
	uint64_t generation;   /* new at each reuse of the slot */
	uint64_t layout_id;
	uint64_t block_bytes, layer_bytes; /* (layers - 1) * layer_bytes < block_bytes <= layers * layer_bytes */
	uint64_t stored_unix_ms;
	uint64_t position;
	uint32_t layers, tokens, turn;
	uint8_t role, key_bytes, parent_bytes, tombstone; /* tombstone: 1 is a deleted block */
	uint8_t key[SLOT_KEY_MAX], parent[SLOT_KEY_MAX];  /* zeroes behind the end */
	char tenant[SLOT_TENANT_MAX + 1];                 /* zeroes behind the end */
	uint32_t layer_crc[SLOT_LAYERS_MAX];              /* zeroes behind the last layer */
	uint32_t layout_bytes;
	uint8_t layout[SLOT_LAYOUT_MAX];                  /* the owner's description of layout_id; zeroes behind the
							   * end */
	uint8_t reserved[SLOT_HEADER_BYTES - 276 - 4 * SLOT_LAYERS_MAX - SLOT_LAYOUT_MAX];
};

_Static_assert(sizeof(struct slot_header) == SLOT_HEADER_BYTES, "the header is one page");
_Static_assert(offsetof(struct slot_header, header_crc) == 12, "disk format");
_Static_assert(offsetof(struct slot_header, generation) == 16, "disk format");
_Static_assert(offsetof(struct slot_header, layers) == 64, "disk format");
_Static_assert(offsetof(struct slot_header, key) == 80, "disk format");
_Static_assert(offsetof(struct slot_header, tenant) == 208, "disk format");
_Static_assert(offsetof(struct slot_header, layer_crc) == 272, "disk format");
_Static_assert(offsetof(struct slot_header, layout_bytes) == 2320, "disk format");
_Static_assert(offsetof(struct slot_header, reserved) == 2580, "disk format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "slots are written as they lie in memory");

/* The name and the shape of a block: what a hit must compare. The caller guarantees that key_bytes is at most
 * SLOT_KEY_MAX, that layers is at most SLOT_LAYERS_MAX, and that the layers cover block_bytes as struct slot_header
 * says. */
struct slot_ident {
	const char *tenant;
	uint64_t layout_id;
	const uint8_t *key;
	uint8_t key_bytes;
	uint64_t block_bytes, layer_bytes;
	uint32_t layers;
	const void *layout;            /* the owner's description, from which it recognises the layout of a slot; may be
				        * NULL */
	uint32_t layout_bytes;         /* at most SLOT_LAYOUT_MAX; not compared by a hit */
};

/* Bytes of this layer of a block. */
static inline uint64_t slot_layer_bytes(uint64_t block_bytes, uint64_t layer_bytes, uint32_t layer)
{
	const uint64_t left = block_bytes - layer_bytes * layer;

	return left < layer_bytes ? left : layer_bytes;
}

/* Writes the header of a slot whose block bytes are behind it already: computes the layers' CRCs and the header's.
 * `slot` is 8-byte aligned and holds SLOT_HEADER_BYTES + block_bytes. Reads every byte of the block once (10 GB/s and
 * more). Returns the header's CRC. An owner that keeps this CRC elsewhere can recognise the header later
 * (slot_header_is), and with the layers' CRCs in the header the block too. */
uint32_t slot_seal(void *slot, const struct slot_ident *ident, const struct slot_info *info,
		   uint64_t generation, uint64_t unix_ms);

/* slot_seal in two steps, for several threads. First step: writes the CRCs of the layers `first` .. `first + n - 1`
 * into the header. Each thread has layers of its own. Of ident only the sizes are read. */
void slot_seal_layers(void *slot, const struct slot_ident *ident, uint32_t first, uint32_t n);
/* Second step, called once, after all layers: writes everything of the header but the layers' CRCs, which are in it
 * already. The header is made in private memory and then copied to the slot. So the returned CRC does not depend on
 * what another process writes to the slot's header meanwhile, the layers' CRCs excepted. */
uint32_t slot_seal_header(void *slot, const struct slot_ident *ident, const struct slot_info *info, uint64_t generation, uint64_t unix_ms);

/* Turns a sound header of version 1 or 2, which older daemons wrote, into a header of SLOT_VERSION with the same
 * contents. Its CRC becomes that of the new form. Every other header stays as it is, an unsound old one too. Call this
 * first on a header that was read from a disk: all other functions know SLOT_VERSION only. The result depends on
 * nothing but the header, so the CRC of a renewed header identifies the old one too. */
void slot_header_renew(struct slot_header *h);

/* Checks a header alone: magic, version, CRC, every size within its bound. Returns NULL, or a fixed sentence that names
 * the problem. A tombstone is sound. */
const char *slot_header_problem(const struct slot_header *h);

/* Whether the header names ident and generation (0: any generation). The header need not be sound: only its first
 * fields are compared. False for a tombstone. */
bool slot_header_names(const struct slot_header *h, const struct slot_ident *ident, uint64_t generation);

/* OK: the header is sound and belongs to ident and generation (0: any). STALE: it is sound, but another
 * block's, of another generation, or a tombstone. CORRUPT: it is not sound. */
enum status slot_header_match(const struct slot_header *h, const struct slot_ident *ident,
			      uint64_t generation);

/* Recomputes the CRCs of layers `first` .. `first + n - 1` of a slot whose header matched: OK, or
 * CORRUPT (also when the header has fewer layers). */
enum status slot_layers_check(const void *slot, uint32_t first, uint32_t n);

/* ---- slots that other processes may write ----
 *
 * In these functions `h` is a copy of the slot's header in the caller's own memory, and the caller keeps the header's
 * CRC. So the values that they compare with cannot change meanwhile. */

/* Whether the copy is, byte for byte, the header that had this CRC. */
bool slot_header_is(const struct slot_header *h, uint32_t crc);
/* Recomputes the CRCs of all layers of the block whose bytes stand at `block`: OK or CORRUPT. `h` is sound. */
enum status slot_block_check(const struct slot_header *h, const void *block);
/* As slot_block_check, for a block that a device reads next: calls slot_leave_caches on each layer after it was
 * read. */
enum status slot_block_check_leave(const struct slot_header *h, const void *block);
/* Copies the block to `to` and compares the CRCs of the copy. OK: `to` holds the block, even if other processes write
 * to `block` meanwhile. CORRUPT: a layer's CRC differs, and `to` holds an unknown part of it. */
enum status slot_block_copy(const struct slot_header *h, const void *block, void *to);
/* The CRC-32C of all bytes of the block, by its layers' CRCs alone. */
uint32_t slot_block_crc(const struct slot_header *h);

/* Writes into `page` (SLOT_HEADER_BYTES) the tombstone of the block with the sound header `of`: the same names and
 * generation, no checksums of layers. `of` may be `page`. */
void slot_tombstone(struct slot_header *page, const struct slot_header *of, uint64_t unix_ms);

/* CRC-32C (Castagnoli; "123456789" gives e3069283); `crc` chains, 0 to begin. */
uint32_t slot_crc32c(uint32_t crc, const void *data, size_t bytes);
/* As slot_crc32c, for a caller that sums as many bytes at `next` afterwards: prefetches them meanwhile. Nothing at
 * `next` is read. NULL: nothing follows. */
uint32_t slot_crc32c_next(uint32_t crc, const void *data, size_t bytes, const void *next);
/* A hint that the range is to go from the processor's own caches to the cache that all processors share. A device reads
 * from the processor's own caches at only a part of the bus's speed (terrace-bench caches). No effect on a processor
 * without CLDEMOTE. Nothing is read or written, and later reads of the range stay correct. */
void slot_leave_caches(const void *at, size_t bytes);

#endif
