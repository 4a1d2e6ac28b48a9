/* What `graph` has learned, as pieces of bytes for a restart: the model's cells; the classes and their worth; the
 * standing against fixed policies; and the records of blocks. Each piece has a version, the shape of the model, a
 * checksum and entries of one kind. A piece with anything wrong in it is refused as a whole.
 *
 * Numbers are little-endian:
 *
 *     u32 "TGPK"  u16 version  u16 kind  u32 entries  u32 shape  u64 sum   then by kind:
 *     CHOICE    7 f32 spared_back refused_back lru_misses returns hits loss base_loss, of the duel a f32 lead a row,
 *               a variance a row and row, u32 events, u16 seen, u8 row misses_little begins 0, u64 begins_left,
 *               32 f32 hits, 32 events, 32 base; of the model: loss, base_loss, seen, hits, events, base
 *     CELLS     u16 cell, u16 octaves (bits), f32 any, any_squares, and for each of the octaves f32 at, at_squares
 *     CLASSES   u16 class, u16 told, f32 hits, saved, 32 f32 hazard; in the order in which they came into use
 *     BLOCKS    u32 buckets; then u32 tag, bucket, age_ms, u16 class, u8 uses, children, turn, flags, and of samples
 *               u32 features, f32 weight; those made last, the oldest first
 */
#ifndef TERRACE_EVICTION_GRAPH_KEEP_H
#define TERRACE_EVICTION_GRAPH_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "eviction/duel.h"
#include "eviction/memory.h"
#include "eviction/policy.h"

struct graph_choice {
	float spared_back, refused_back, lru_misses, returns;
	struct duel_standing standing;
	uint8_t row;               /* enum duel_row */
	bool misses_little, begins;
	uint64_t begins_left;      /* inserts */
};

struct graph_kept {
	const struct memory *memory;
	const struct survival *survival;
	const uint16_t *used;      /* classes, in the order in which they came into use */
	uint32_t used_count;
	uint64_t now_us;
	struct graph_choice choice;
};

/* Writes one piece: policy_ops.keep. */
size_t graph_keep_piece(const struct graph_kept *k, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX]);

struct graph_recalled {
	struct memory *memory;     /* the contents of the piece go into these three, at once */
	struct survival *survival;
	bool *is_used;             /* by class */
	uint64_t now_us, idle_us;
	struct graph_choice choice; /* out, if has_choice */
	bool has_choice;
	uint16_t used[CLASSES];    /* out: classes that are new */
	uint32_t used_count;
};

/* Reads one piece: policy_ops.recall. The caller then brings worth[] up to date. False: the piece was refused and
 * nothing has changed. */
bool graph_recall_piece(struct graph_recalled *r, const uint8_t *bytes, size_t size);

/* The checksum that the piece must carry. size: at least GRAPH_PIECE_HEAD. */
enum { GRAPH_PIECE_HEAD = 24 };
uint64_t graph_piece_sum(const uint8_t *bytes, size_t size);

#endif
