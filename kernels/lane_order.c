/* See lane_order.h. A table is filled under a lock and published by a flag, so that readers take no lock. */
#include "kernels/lane_order.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

enum { SIDES = 2, DIMS = KV_HEAD_DIM_COUNT, LOAD_BYTES = 64, VECTOR_BYTES = 512, TOKENS = KV_ATOM_TOKENS };

static struct kv_lane_order tables[KV_FORMAT_COUNT][SIDES][DIMS];
static atomic_bool ready[KV_FORMAT_COUNT][SIDES][DIMS];
static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;

/* Bytes that a lane of the tensor core has in the first plane; those of a second one follow from it. */
static uint32_t lane_bytes(enum kv_format f, uint32_t d)
{
	uint32_t bits = kv_format_info(f)->code_bits;

	return d * (bits == 3 ? 2 : bits) / 16;
}

/* The element that each field's lane of a load begins with: [byte][bit] to field * 16 + lane. */
static void invert(enum kv_format f, uint16_t at[LOAD_BYTES][8])
{
	for (unsigned field = 0; field < kv_lane_fields(f); field++)
		for (unsigned l = 0; l < KV_LANES; l++) {
			unsigned shift, byte = kv_lane_place(f, field, l, &shift);

			at[byte][shift] = (uint16_t)(field * KV_LANES + l);
		}
}

static void put(struct kv_lane_order *o, enum kv_format f, enum kv_side side, uint32_t token, uint32_t dim,
		const struct kv_place *p, uint16_t at[LOAD_BYTES][8])
{
	uint32_t m = p->byte / VECTOR_BYTES, g = p->byte % VECTOR_BYTES / LOAD_BYTES;
	unsigned which = at[p->byte % LOAD_BYTES][p->shift], field = which / KV_LANES, l = which % KV_LANES;

	if (side == KV_SIDE_K) {
		assert(g == token % 8);
		o->k_dim[m * o->fields + field][l] = (uint8_t)dim;
	} else {
		o->v_dim[(m * 8 + g) * o->sums + kv_lane_sum(f, field)][l] = (uint8_t)dim;
		o->v_token[kv_lane_class(f, field)][l] = token % 8 * 2 + token / 8;
	}
}

static void fill(struct kv_lane_order *o, enum kv_format f, enum kv_side side, uint32_t d)
{
	uint16_t at[LOAD_BYTES][8] = {{0}};

	o->vectors = lane_bytes(f, d) / 16;
	o->fields = kv_lane_fields(f);
	o->sums = kv_lane_sums(f);
	o->classes = o->fields / o->sums;
	invert(f, at);
	for (uint32_t token = 0; token < TOKENS; token++)
		for (uint32_t dim = 0; dim < d; dim++) {
			struct kv_place p[2];

			kv_code_places(f, side, d, token, dim, p);
			put(o, f, side, token, dim, &p[0], at);
		}
}

const struct kv_lane_order *kv_lane_order(enum kv_format f, enum kv_side side, uint32_t d)
{
	unsigned i = kv_head_dim_index(d);
	struct kv_lane_order *o = &tables[f][side][i];

	if (kv_lane_fields(f) == 0 || lane_bytes(f, d) % 16 || d % 32 || d > KV_LANE_DIM_MAX)
		return NULL;
	if (!atomic_load_explicit(&ready[f][side][i], memory_order_acquire)) {
		pthread_mutex_lock(&filling);
		if (!atomic_load_explicit(&ready[f][side][i], memory_order_relaxed)) {
			fill(o, f, side, d);
			atomic_store_explicit(&ready[f][side][i], true, memory_order_release);
		}
		pthread_mutex_unlock(&filling);
	}
	return o;
}
