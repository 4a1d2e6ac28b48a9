/* A slot: [4 KiB header | block | pad to 4 KiB], the same bytes in host memory and on disk. It
 * describes itself: header and each layer carry a CRC-32C, so that a slot can be checked, and a
 * catalog rebuilt, from nothing but the slot.
 *
 * A *layer* is here a checked piece of the block: what the owner calls a layer, or a part of a block that has none. All
 * have layer_bytes but the last one, which ends with the block and may be shorter.
 *
 * Threads: pure functions on the caller's memory. A slot that an engine may still write can change
 * under the reader's eyes: copy the header (SLOT_HEADER_BYTES) first and check the copy.
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
	SLOT_KEY_MAX = 64,        /* of every key of the daemon; another one is a new header */
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
	uint8_t role;          /* as the engine gave it; not interpreted here */
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
	uint8_t layout[SLOT_LAYOUT_MAX];                  /* the owner's description of layout_id; zeroes behind the end */
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

/* Whose block it is and what shape it has: what a hit must compare. The caller answers for
 * key_bytes <= SLOT_KEY_MAX, layers <= SLOT_LAYERS_MAX and that the layers cover block_bytes, as above. */
struct slot_ident {
	const char *tenant;
	uint64_t layout_id;
	const uint8_t *key;
	uint8_t key_bytes;
	uint64_t block_bytes, layer_bytes;
	uint32_t layers;
	const void *layout;            /* what the owner needs to know a layout again from a slot alone; may be NULL */
	uint32_t layout_bytes;         /* at most SLOT_LAYOUT_MAX; not compared by a hit */
};

/* Bytes of this layer of a block. */
static inline uint64_t slot_layer_bytes(uint64_t block_bytes, uint64_t layer_bytes, uint32_t layer)
{
	const uint64_t left = block_bytes - layer_bytes * layer;

	return left < layer_bytes ? left : layer_bytes;
}

/* Writes the header of a slot whose block bytes stand behind it: computes the layers' CRCs and the
 * header's. `slot` is 8-byte aligned and holds SLOT_HEADER_BYTES + block_bytes. Reads every byte of the
 * block once (10 GB/s and more). Returns the header's CRC: an owner that keeps it elsewhere knows the header,
 * and by its sums the block, again (slot_header_is). */
uint32_t slot_seal(void *slot, const struct slot_ident *ident, const struct slot_info *info,
		   uint64_t generation, uint64_t unix_ms);

/* Its two steps, for several threads. The CRCs of these layers, which lie behind the header, into the header; each
 * thread has its own layers. Of ident only the sizes are looked at. */
void slot_seal_layers(void *slot, const struct slot_ident *ident, uint32_t first, uint32_t n);
/* Then, once: all of a header but its layers' CRCs, which stand in it. The header is made in memory of the function's own and copied to the slot,
 * so that the CRC that is returned is of nothing that another process wrote there meanwhile, the layers' CRCs excepted. */
uint32_t slot_seal_header(void *slot, const struct slot_ident *ident, const struct slot_info *info, uint64_t generation, uint64_t unix_ms);

/* A header of version 1 or 2, as older daemons wrote it, becomes the header of SLOT_VERSION that says the same; its CRC
 * becomes that of the new form. Every other header stays as it is, and so does an old one that is not sound. Whoever
 * has read a header from a disk calls this first: all other functions know SLOT_VERSION alone. The result depends on
 * nothing but the header, so the CRC of a renewed header names the old one too. */
void slot_header_renew(struct slot_header *h);

/* Checks a header alone: magic, version, CRC, every size within its bound. NULL or a fixed sentence. A
 * tombstone is sound. */
const char *slot_header_problem(const struct slot_header *h);

/* Whether the header names ident and generation (0: any), sound or not: a glance that reads its first lines alone. */
bool slot_header_names(const struct slot_header *h, const struct slot_ident *ident, uint64_t generation);

/* OK: the header is sound and belongs to ident and generation (0: any). STALE: it is sound, but another
 * block's, of another generation, or a tombstone. CORRUPT: it is not sound. */
enum status slot_header_match(const struct slot_header *h, const struct slot_ident *ident,
			      uint64_t generation);

/* Recomputes the CRCs of layers `first` .. `first + n - 1` of a slot whose header matched: OK, or
 * CORRUPT (also when the header has fewer layers). */
enum status slot_layers_check(const void *slot, uint32_t first, uint32_t n);

/* ---- of memory that other processes may write ----
 *
 * `h` is a copy of the slot's header in the caller's own memory, and the caller keeps the header's CRC: what these compare with cannot change
 * under them. */

/* Whether the copy is, byte for byte, the header of that CRC. */
bool slot_header_is(const struct slot_header *h, uint32_t crc);
/* Recomputes the CRCs of all layers of the block whose bytes stand at `block`: OK or CORRUPT. `h` is sound. */
enum status slot_block_check(const struct slot_header *h, const void *block);
/* The same of bytes that a device is to read next: slot_leave_caches of them. */
enum status slot_block_check_leave(const struct slot_header *h, const void *block);
/* Copies the block to `to` and compares the CRCs of the copy: upon OK, `to` has the block, even if other processes
 * write to `block` meanwhile. CORRUPT. */
enum status slot_block_copy(const struct slot_header *h, const void *block, void *to);
/* The CRC-32C of all bytes of the block, by its layers' CRCs alone. */
uint32_t slot_block_crc(const struct slot_header *h);

/* Makes in `page` (SLOT_HEADER_BYTES) the tombstone of the block whose sound header `of` is: the same
 * names and generation, no layers' checksums. `of` may be `page`. */
void slot_tombstone(struct slot_header *page, const struct slot_header *of, uint64_t unix_ms);

/* CRC-32C (Castagnoli; "123456789" gives e3069283); `crc` chains, 0 to begin. */
uint32_t slot_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same as slot_crc32c, where as many bytes at `next` are summed after these: they are asked for meanwhile. Nothing is read there; NULL: none. */
uint32_t slot_crc32c_next(uint32_t crc, const void *data, size_t bytes, const void *next);
/* What a processor has read lies in its own caches, from where a device gets it at a part of the bus's speed (terrace-bench caches): it is to go to the
 * cache that all share. A hint; no effect where there is no CLDEMOTE. Nothing is read or written; reads of the range stay correct. */
void slot_leave_caches(const void *at, size_t bytes);

#endif
