/* See daemon/scribble_rig.h. */
#include "tests/daemon/scribble_rig.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLABS_MAX = 64 };

void scribble_reseal(uint8_t *slot, uint64_t generation)
{
	struct slot_header h;

	memcpy(&h, slot, sizeof(h));
	const struct slot_ident ident = { .tenant = h.tenant, .layout_id = h.layout_id, .key = h.key, .key_bytes = h.key_bytes,
					  .block_bytes = h.block_bytes, .layer_bytes = h.layer_bytes, .layers = h.layers,
					  .layout = h.layout, .layout_bytes = h.layout_bytes };
	const struct slot_info info = { .tokens = h.tokens, .position = h.position };

	slot_seal(slot, &ident, &info, generation, h.stored_unix_ms);
}

void scribble_old(uint8_t *slot, uint64_t block_bytes)
{
	enum {
		KEY = 80,
		PARENT = 112,
		BEHIND = 144,
		KEY_BYTES = 32
	}; /* version 2: key and parent have 32 bytes, and the rest follows them */
	struct slot_header h, *old = (struct slot_header *)slot;

	(void)block_bytes;
	memcpy(&h, slot, sizeof(h));
	memset(slot + KEY, 0, SLOT_HEADER_BYTES - KEY);
	memcpy(slot + KEY, h.key, KEY_BYTES);
	memcpy(slot + PARENT, h.parent, KEY_BYTES);
	memcpy(slot + BEHIND, h.tenant, offsetof(struct slot_header, reserved) - offsetof(struct slot_header, tenant));
	old->version = 2;
	old->header_crc = 0;
	old->header_crc = slot_crc32c(0, slot, SLOT_HEADER_BYTES);
}

/* Of one slab file, whose first slot lies behind a header of its own. */
static int on_slab(int fd, uint8_t *slot, uint64_t slot_bytes, uint64_t n, scribble_fn *hit, uint64_t block_bytes)
{
	const struct slot_header *h = (const struct slot_header *)slot;
	struct stat st;
	int hits = 0;

	ck_assert_int_eq(fstat(fd, &st), 0);
	for (off_t at = SLOT_HEADER_BYTES; at + (off_t)slot_bytes <= st.st_size; at += (off_t)slot_bytes) {
		ck_assert_int_eq(pread(fd, slot, slot_bytes, at), (ssize_t)slot_bytes);
		if (h->magic != SLOT_MAGIC || h->tombstone || memcmp(h->key, &n, sizeof(n)))
			continue;
		hit(slot, block_bytes);
		ck_assert_int_eq(pwrite(fd, slot, slot_bytes, at), (ssize_t)slot_bytes);
		hits++;
	}
	return hits;
}

int scribble_on_disk(const char *folder, uint64_t slot_bytes, uint64_t n, scribble_fn *hit, uint64_t block_bytes)
{
	uint8_t *slot = aligned_alloc(SLOT_HEADER_BYTES, slot_bytes);
	int hits = 0;

	ck_assert_ptr_nonnull(slot);
	for (int slab = 1; slab < SLABS_MAX; slab++) {
		char path[256];
		int fd;

		snprintf(path, sizeof(path), "%s/slab-%06d.trc", folder, slab);
		fd = open(path, O_RDWR);
		if (fd < 0)
			continue;
		hits += on_slab(fd, slot, slot_bytes, n, hit, block_bytes);
		close(fd);
	}
	free(slot);
	return hits;
}
