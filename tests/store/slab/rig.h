/* What the tests of store/slab/disk.h share: a folder of their own, blocks to write, transfers that wait,
 * faults on order. */
#ifndef TERRACE_TESTS_STORE_SLAB_RIG_H
#define TERRACE_TESTS_STORE_SLAB_RIG_H

#include <stdatomic.h>

#include "store/slab/disk.h"
#include "store/slot.h"

enum { RIG_LAYERS = 3, RIG_LAYER_BYTES = 4096 - 8, RIG_SLOT = 16384 };

/* What the ring's requests meet; all zero: nothing. */
struct rig_fault {
	atomic_int op;             /* ring_op + 1; 0: any */
	atomic_bool shut;          /* they wait until it no longer is: nothing moves on */
	atomic_int error, times;   /* times: so many requests, -1 all */
	atomic_uint most, delay_ms;
	atomic_uint asked;         /* requests of that op seen */
};

struct rig {
	char folder[128];
	struct disk *disk;
	struct disk_options options;
	struct ring_calls calls;
	struct rig_fault fault;
	char why[256];
};

/* The engines that the machine allows, as [rig_engine_first(), 2): uring is left out, with a word,
 * where it is refused. */
extern const enum ring_engine rig_engines[2];
int rig_engine_first(void);

/* An empty folder under `parent` (NULL: TMPDIR or /tmp), options for 64 MiB in slabs of 1 MiB; nothing
 * opened. */
void rig_begin(struct rig *r, enum ring_engine engine, const char *parent);
enum status rig_try(struct rig *r);
void rig_open(struct rig *r);    /* rig_try that must succeed */
void rig_close(struct rig *r);
/* Closes while requests are held up by fault.shut, which opens once the close has begun. */
void rig_close_over(struct rig *r);
void rig_end(struct rig *r);     /* closes, and deletes the folder */
struct disk_view rig_look(struct rig *r);
/* A file of the folder. */
const char *rig_path(const struct rig *r, const char *name);

/* Waits for the transfer: the refusal, or the outcome. */
enum status rig_read(struct rig *r, struct disk_place p, void *at, uint32_t bytes);
enum status rig_write(struct rig *r, struct disk_place p, const void *at, uint32_t bytes);
enum status rig_tombstone(struct rig *r, struct disk_place p, const void *page);
enum status rig_sync(struct rig *r);

/* Waits until the fault has seen so many requests. */
void rig_asked(struct rig *r, uint32_t n);

/* A request that somebody waits for later. */
struct rig_wait {
	struct disk_request q;     /* first */
	atomic_int done;
};
void rig_wait_begin(struct rig_wait *w);
enum status rig_wait_end(struct rig_wait *w);

/* A free slot, from a new slab if need be. */
struct disk_place rig_take(struct rig *r, uint64_t slot_bytes);
/* The ident of block n. The key is kept in `key`. */
struct slot_ident rig_ident(uint64_t n, uint8_t key[SLOT_KEY_MAX]);
/* A sealed slot of block n at `slot`, RIG_SLOT bytes. */
void rig_block(void *slot, uint64_t n, uint64_t generation);
/* What slot_header_match and slot_layers_check make of it. */
enum status rig_judge(const void *slot, uint64_t n, uint64_t generation);

uint64_t rig_next(uint64_t *rng);
uint64_t rig_now_ms(void);
enum { RIG_NET_MS = 60000 };     /* ends a wait for what does not come; proves nothing */
void *rig_pages(size_t bytes);   /* 4 KiB aligned, zeroed; freed by free() */

#endif
