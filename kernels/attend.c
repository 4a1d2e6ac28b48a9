/* Attention over packed blocks, a tile at a time.
 *
 * The rows that share a KV head (queries x heads of the group) are taken in passes. A pass walks the tokens that any of
 * its rows sees, in tiles of KV_TILE_TOKENS. For each tile it does S = Q K^T, the online softmax and O += P V: straight
 * from the codes (attend_lanes.h) where the machine and the format allow it, else from a decoded tile
 * (attend_matrix.c).
 *
 * Nothing is rotated back inside the loop. The rotation R is unnormalised, R^T R = d. So (R q) . (R k) = d q . k, and
 * 1/d goes into the scale. And sum p (R v) = R sum p v, so O is rotated back once, at the end.
 *
 * All sums are fp32, but none is long. A tile's weights are summed into a double. Every FLUSH_TILES tiles O is added to
 * a second accumulator and starts again at zero. So the rounding error does not grow with the number of tokens.
 */
#include "kernels/attend_pass.h"
#include "kernels/half.h"
#include "kernels/order.h"

#include <math.h>
#include <string.h>

enum { FLUSH_TILES = 32, ATOM = KV_ATOM_TOKENS };

static void load(const void *src, enum kv_dtype type, size_t at, uint32_t n, float scale, float *x)
{
	const float *f = src;
	const uint16_t *h = src;

	for (uint32_t i = 0; i < n; i++)
		x[i] = scale * (type == KV_DTYPE_F32   ? f[at + i]
				: type == KV_DTYPE_F16 ? kv_half_to(h[at + i])
						       : kv_bf16_to(h[at + i]));
}

static void store(const struct kv_attend *a, size_t at, uint32_t n, const float *x)
{
	const float *divisor = a->features.out_scale;
	uint16_t *h = a->out;

	switch (a->out_dtype) {
	case KV_DTYPE_F32:
		memcpy((float *)a->out + at, x, n * sizeof(*x));
		break;
	case KV_DTYPE_E4M3:
		for (uint32_t i = 0; i < n; i++)
			((uint8_t *)a->out)[at + i] = kv_e4m3_from(divisor ? x[i] / *divisor : x[i]);
		break;
	default:
		for (uint32_t i = 0; i < n; i++)
			h[at + i] = a->out_dtype == KV_DTYPE_F16 ? half_saturated(x[i]) : bf16_saturated(x[i]);
	}
}

/* The tokens that at least one of `n` rows from `r` on sees. */
static void rows_see(const struct kv_row *row, uint32_t n, int64_t *from, int64_t *to)
{
	*from = INT64_MAX;
	*to = 0;
	for (uint32_t r = 0; r < n; r++)
		if (row[r].from < row[r].to) {
			*from = row[r].from < *from ? row[r].from : *from;
			*to = row[r].to > *to ? row[r].to : *to;
		}
}

/* Index of a row of the pass among the [queries][q_heads] vectors. */
static size_t row_vector(const struct kv_pass *p, uint32_t r)
{
	return (size_t)p->row[r].query * p->a->q_heads + p->row[r].head;
}

/* A sink is a token without a value, seen before all others. */
static void row_init(const struct kv_pass *p, uint32_t r)
{
	const float *sinks = p->a->features.sinks;
	uint64_t i = p->first_row + r;
	struct kv_row *row = p->row + r;

	*row = (struct kv_row){.max = -INFINITY, .total_max = -INFINITY};
	row->query = (uint32_t)(i / p->group);
	row->head = p->head * p->group + (uint32_t)(i % p->group);
	row->position = p->a->first_pos + row->query;
	if (sinks && sinks[row->head] != -INFINITY) {
		row->max = sinks[row->head];
		row->sum = 1;
	}
	kv_attend_sees(p->a, row->query, &row->from, &row->to);
}

/* A query that holds a NaN or an infinity is all NaN, whatever a format or a soft cap would make of one such
 * element. */
static void spread_nan(uint32_t d, float *q)
{
	float zero = 0;

	for (uint32_t i = 0; i < d; i++)
		zero += q[i] * 0;
	for (uint32_t i = 0; i < d && isnan(zero); i++)
		q[i] = zero;
}

/* Rotated, as K's codes are, but for the dims of a rope part. */
static void load_query(struct kv_pass *p, uint32_t r)
{
	const struct kv_attend *a = p->a;
	uint32_t d = a->layout->head_dim_k;
	size_t at = row_vector(p, r) * p->dk;
	float *q = p->q + (size_t)r * p->dk;

	load(a->q, a->q_dtype, at, d, p->k_rotated ? a->scale / (float)d : a->scale, q);
	load(a->q, a->q_dtype, at + d, p->dk - d, a->scale, q + d);
	spread_nan(p->dk, q);
	if (p->k_rotated)
		kv_rotate(q, d);
}

static void load_queries(struct kv_pass *p)
{
	const struct kv_attend *a = p->a;
	uint32_t rows = p->lanes ? kv_lane_rows(p->rows) : p->rows;

	for (uint32_t r = 0; r < p->rows; r++) {
		row_init(p, r);
		load_query(p, r);
	}
	if (p->lanes) {
		p->lanes->queries(p->k_order, a->layout->k_format, p->dk, p->rows, p->q, p->lane_q, p->lane_row);
		memset(p->s, 0, (size_t)rows * KV_TILE_TOKENS * sizeof(*p->s));
	}
	memset(p->acc, 0, (size_t)rows * p->acc_floats * sizeof(*p->acc));
	memset(p->total, 0, (size_t)p->rows * p->wide * sizeof(*p->total));
}

/* ---- the lanes' way ---- */

static const uint8_t *atom_of(const struct kv_pass *p, int64_t token)
{
	const struct kv_attend *a = p->a;
	uint32_t size = a->layout->block_tokens;
	const uint8_t *block = a->blocks[token / size];

	return block + kv_atom_at(a->geometry, a->layer, p->head, (uint32_t)(token % size));
}

/* V of fp16 and bf16 meets weights of 0 where a token is not seen: a copy of such an atom, with zeroes. */
static const uint8_t *finite_codes(struct kv_pass *p, const uint8_t *codes, int64_t at, int64_t from, int64_t to)
{
	const struct kv_plane_order *o = kv_plane_order(16, KV_SIDE_V, p->wide);
	uint8_t *copy = p->ends + (at >= from ? p->a->geometry->v_codes : 0);

	memcpy(copy, codes, p->a->geometry->v_codes);
	for (uint32_t t = 0; t < ATOM; t++)
		for (uint32_t k = 0; (at + t < from || at + t >= to) && k < o->bytes; k++)
			copy[kv_plane_at(o, t)[k]] = 0;
	return copy;
}

/* The atoms of the tile at .. end - 1, of what is seen from `from` to `to`; returns their number. */
static uint32_t tile_atoms(struct kv_pass *p, int64_t at, int64_t end, int64_t from, int64_t to,
			   struct kv_lane_atom k[KV_LANE_ATOMS], struct kv_lane_atom v[KV_LANE_ATOMS])
{
	const struct kv_geometry *g = p->a->geometry;
	enum kv_format f = p->a->layout->v_format;
	uint32_t n = 0;

	for (; at < end; n++, at += ATOM) {
		const uint8_t *atom = atom_of(p, at);
		const uint8_t *ahead = at + KV_TILE_TOKENS < to ? atom_of(p, at + KV_TILE_TOKENS) : atom;

		k[n] = (struct kv_lane_atom){atom + g->k_codes_at, atom + g->k_scales_at, ahead + g->k_codes_at};
		v[n] = (struct kv_lane_atom){atom + g->v_codes_at, atom + g->v_scales_at, ahead + g->v_codes_at};
		if (kv_format_info(f)->code_bits == 16 && (at < from || at + ATOM > to))
			v[n].codes = finite_codes(p, v[n].codes, at, from, to);
	}
	return n;
}

static void attend_lanes(struct kv_pass *p, int64_t at, int64_t end, int64_t from, int64_t to)
{
	const struct kv_layout *l = p->a->layout;
	struct kv_lane_atom k[KV_LANE_ATOMS], v[KV_LANE_ATOMS];
	uint32_t atoms = tile_atoms(p, at, end, from, to, k, v);

	p->lanes->score(&(struct kv_lane_scores){.format = l->k_format, .d = p->dk, .rows = p->rows, .atoms = atoms,
						 .order = p->k_order, .atom = k, .q = p->lane_q,
						 .row = p->lane_row, .s = p->s});
	for (uint32_t r = 0; r < p->rows; r++) {
		float factor = kv_attend_weights(p, &p->row[r], at, atoms * ATOM, true, p->s + r * KV_TILE_TOKENS);

		if (factor != 1.0f)
			kv_scale_add(p->acc_floats, factor, p->acc + r * p->acc_floats, NULL);
	}
	for (uint32_t r = p->rows; r < kv_lane_rows(p->rows); r++)
		memset(p->s + r * KV_TILE_TOKENS, 0, KV_TILE_TOKENS * sizeof(*p->s));
	p->lanes->weigh(&(struct kv_lane_weighing){.format = l->v_format, .d = p->wide, .rows = p->rows,
						   .atoms = atoms, .order = p->v_order, .atom = v, .w = p->s,
						   .sums = p->acc});
}

/* ---- the matrix way ---- */

/* Rows first .. first + n - 1 (at most KV_TILE_ROWS) against the tile at .. end - 1. */
static void attend_rows(struct kv_pass *p, uint32_t first, uint32_t n, int64_t at, int64_t end)
{
	int64_t from, to;
	uint32_t tokens, padded;

	rows_see(p->row + first, n, &from, &to);
	if (to <= at || from >= end)
		return;
	tokens = (uint32_t)((to < end ? to : end) - at);
	padded = (tokens + ATOM - 1) / ATOM * ATOM;
	kv_matrix_score(p, first, n, tokens);
	for (uint32_t r = 0; r < n; r++) {
		float factor = kv_attend_weights(p, &p->row[first + r], at, padded, false,
						 p->s + (size_t)r * KV_TILE_TOKENS);

		if (factor != 1.0f)
			kv_scale_add(p->wide, factor, p->acc + (size_t)(first + r) * p->wide, NULL);
	}
	kv_matrix_weigh(p, first, n, tokens);
}

static void attend_matrix(struct kv_pass *p, int64_t at, int64_t end, int64_t from)
{
	kv_matrix_load(p, at, from, end);
	for (uint32_t r = 0; r < p->rows; r += KV_TILE_ROWS)
		attend_rows(p, r, p->rows - r < KV_TILE_ROWS ? p->rows - r : KV_TILE_ROWS, at, end);
}

/* ---- a pass ---- */

/* total += acc, acc <- 0. */
static void flush(struct kv_pass *p)
{
	for (uint32_t r = 0; r < p->rows; r++) {
		struct kv_row *row = p->row + r;
		float factor = row->total_max == row->max ? 1.0f : expf(row->total_max - row->max);
		float *acc = p->acc + r * p->acc_floats, *total = p->total + (size_t)r * p->wide;

		if (p->lanes) {
			if (factor != 1.0f)
				kv_scale_add(p->wide, factor, total, NULL);
			kv_lane_collect(p->v_order, p->a->layout->v_format, p->wide, acc, total);
		} else {
			kv_scale_add(p->wide, factor, total, acc);
			memset(acc, 0, p->wide * sizeof(*acc));
		}
		row->total_max = row->max;
	}
}

static void store_rows(struct kv_pass *p)
{
	const struct kv_attend *a = p->a;
	uint32_t d = a->layout->head_dim_v;

	for (uint32_t r = 0; r < p->rows; r++) {
		const struct kv_row *row = p->row + r;
		float *x = p->total + (size_t)r * p->wide;
		size_t vector = row_vector(p, r);
		bool seen = row->sum != 0;

		if (seen)
			kv_scale_add(p->wide, (float)(1 / row->sum), x, NULL);
		else
			memset(x, 0, p->wide * sizeof(*x));
		if (seen && p->out_rotated)
			kv_unrotate(x, p->wide);
		store(a, vector * d, d, x);
		if (a->lse)
			a->lse[vector] = seen ? (float)((double)row->max + log(row->sum)) : -INFINITY;
	}
}

/* Tiles end at multiples of their size and sums are flushed at fixed tokens, whatever the other rows of the pass see,
 * so that a row's result does not depend on them. */
static void run_pass(struct kv_pass *p)
{
	int64_t from, to, end;

	load_queries(p);
	rows_see(p->row, p->rows, &from, &to);
	for (int64_t at = from - from % ATOM; from < to && at < to; at = end) {
		end = at - at % KV_TILE_TOKENS + KV_TILE_TOKENS;
		if (p->lanes)
			attend_lanes(p, at, end < to ? end : to, from, to);
		else
			attend_matrix(p, at, end < to ? end : to, from);
		if (end % (FLUSH_TILES * KV_TILE_TOKENS) == 0)
			flush(p);
	}
	flush(p);
	store_rows(p);
}

/* Hands out parts of the scratch; with a null one they are only counted. */
struct parts {
	uint8_t *scratch;
	size_t used;
};

static void *part(struct parts *s, size_t bytes)
{
	void *at = s->scratch ? s->scratch + s->used : NULL;

	s->used += (bytes + KV_SCRATCH_ALIGN - 1) / KV_SCRATCH_ALIGN * KV_SCRATCH_ALIGN;
	return at;
}

static float *floats(struct parts *s, size_t n)
{
	return part(s, n * sizeof(float));
}

/* The best code for this machine; NULL: there is none. */
static const struct kv_lane_code *lane_code(void)
{
#if defined(__x86_64__)
	switch (kv_machine()) {
	case KV_MACHINE_VNNI:
		return &kv_lane_code_vnni;
	case KV_MACHINE_AVX512:
		return &kv_lane_code_avx512;
	case KV_MACHINE_AVX2:
		return &kv_lane_code_avx2;
	case KV_MACHINE_PLAIN:
		break;
	}
#endif
	return NULL;
}

static void choose_way(struct kv_pass *p, const struct kv_layout *l)
{
	p->acc_floats = p->wide;
	p->most_rows = KV_PASS_ROWS;
	if (l->v_format == KV_NONE)
		return;
	p->k_order = kv_lane_order(l->k_format, KV_SIDE_K, p->dk);
	p->v_order = kv_lane_order(l->v_format, KV_SIDE_V, p->wide);
	if (!p->k_order || !p->v_order)
		return;
	p->lanes = lane_code();
	if (!p->lanes)
		return;
	p->acc_floats = kv_lane_sum_floats(p->v_order);
	p->most_rows = KV_LANE_ROWS_MAX;
}

/* Fills in the shape, and the pointers into the scratch if there is one; returns the bytes taken. */
static size_t pass_init(struct kv_pass *p, const struct kv_attend *a, void *scratch)
{
	const struct kv_layout *l = a->layout;
	bool view = l->v_format == KV_NONE;
	uint32_t group = a->q_heads / l->heads;
	uint64_t all = (uint64_t)a->queries * group;
	struct parts s = {.scratch = scratch};
	size_t rows, padded;

	*p = (struct kv_pass){.a = a, .group = group, .dk = kv_key_dims(l)};
	p->k_rotated = kv_format_info(l->k_format)->rotated;
	p->out_rotated = view ? p->k_rotated : kv_format_info(l->v_format)->rotated;
	p->wide = view ? l->head_dim_k : l->head_dim_v;
	p->v_stride = view ? p->dk : p->wide;
	choose_way(p, l);
	rows = all < p->most_rows ? (size_t)all : p->most_rows;
	padded = kv_lane_rows((uint32_t)rows);
	p->q = floats(&s, rows * p->dk);
	p->acc = floats(&s, padded * p->acc_floats);
	p->total = floats(&s, rows * p->wide);
	p->s = floats(&s, (size_t)KV_TILE_ROWS * KV_TILE_TOKENS);
	p->row = part(&s, rows * sizeof(*p->row));
	if (p->lanes) {
		p->lane_q = floats(&s, padded * p->dk * 2);
		p->lane_row = part(&s, padded * sizeof(*p->lane_row));
		p->ends = part(&s, 2 * (size_t)a->geometry->v_codes);
	} else {
		p->k = floats(&s, (size_t)KV_TILE_TOKENS * p->dk);
		p->kt = floats(&s, (size_t)KV_TILE_TOKENS * p->dk);
		p->v = view ? p->k : floats(&s, (size_t)KV_TILE_TOKENS * p->wide);
	}
	return s.used;
}

size_t kv_attend_scratch(const struct kv_attend *a)
{
	struct kv_pass p;

	return kv_attend_shape_problem(a) ? 0 : pass_init(&p, a, NULL);
}

const char *kv_attend_run(const struct kv_attend *a, void *scratch)
{
	const char *problem = kv_attend_shape_problem(a);
	struct kv_pass p;
	uint64_t rows;

	if (problem || a->queries == 0)
		return problem;
	problem = kv_attend_data_problem(a, scratch);
	if (problem)
		return problem;
	pass_init(&p, a, scratch);
	rows = (uint64_t)a->queries * p.group;
	for (p.head = 0; p.head < a->layout->heads; p.head++)
		for (p.first_row = 0; p.first_row < rows; p.first_row += p.most_rows) {
			p.rows = rows - p.first_row < p.most_rows ? (uint32_t)(rows - p.first_row) : p.most_rows;
			run_pass(&p);
		}
	return NULL;
}
