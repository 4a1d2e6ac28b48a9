/* Computes which tokens a query sees, and checks the parameters of attention. */
#include "kernels/attend_pass.h"

#include <math.h>

static uint32_t window_of(const struct kv_attend *a)
{
	uint32_t own = a->features.window, layout = a->layout->window;

	return own && (!layout || own < layout) ? own : layout;
}

/* The interval without ranges contains the query's own position before it is cut to the tokens there are, and so does
 * every range that matters: together they are one interval. */
void kv_attend_sees(const struct kv_attend *a, uint64_t i, int64_t *from, int64_t *to)
{
	int64_t p = a->first_pos + (int64_t)i, n = a->kv_tokens, window = window_of(a);
	int64_t low = window ? p - window + 1 : -KV_POSITION_MAX, high = a->causal ? p + 1 : n;
	const int32_t *range = a->features.ranges;

	for (uint32_t r = 0; r < a->features.ranges_max; r++) {
		int64_t first = range[2 * r], last = range[2 * r + 1];

		if (p < first || p > last)
			continue;
		low = first < low ? first : low;
		high = last + 1 > high ? last + 1 : high;
	}
	*from = low > 0 ? low : 0;
	*to = high < n ? high : n;
	if (*from >= *to)
		*from = *to = 0;
}

static bool dtype_known(enum kv_dtype t)
{
	return t == KV_DTYPE_F32 || t == KV_DTYPE_F16 || t == KV_DTYPE_BF16;
}

/* Every number finite, or -INFINITY where that is allowed, and aligned. */
static bool sound(const float *x, uint64_t n, bool infinite)
{
	if ((uintptr_t)x % sizeof(*x))
		return false;
	for (uint64_t i = 0; x && i < n; i++)
		if (!isfinite(x[i]) && !(infinite && x[i] == -INFINITY))
			return false;
	return true;
}

static const char *features_problem(const struct kv_attend *a)
{
	const struct kv_attend_features *f = &a->features;
	uint64_t tree = (uint64_t)a->queries * a->queries;

	if (!isfinite(f->softcap) || f->softcap < 0)
		return "softcap is negative or not finite";
	if (!sound(f->sinks, a->q_heads, true))
		return "sinks are NaN, infinite or not aligned";
	if (!sound(f->alibi, a->q_heads, false))
		return "alibi slopes are not finite or not aligned";
	if (!sound(f->tree_bias, tree, true))
		return "tree_bias is NaN, infinite or not aligned";
	if (f->ranges_max > KV_RANGES_MAX)
		return "more than 64 ranges";
	if (f->ranges_max && !f->ranges)
		return "ranges are null";
	if ((uintptr_t)f->ranges % sizeof(*f->ranges))
		return "ranges are not aligned";
	if (f->out_scale && (!sound(f->out_scale, 1, false) || *f->out_scale <= 0))
		return "out_scale is not a positive number";
	return NULL;
}

const char *kv_attend_shape_problem(const struct kv_attend *a)
{
	const char *problem;

	if (!a || !a->layout || !a->geometry)
		return "attention without a layout and its geometry";
	problem = kv_layout_problem(a->layout);
	if (!problem && kv_is_opaque(a->layout))
		problem = KV_OPAQUE_REFUSED;
	if (problem)
		return problem;
	if (a->layer >= a->layout->layers)
		return "layer out of the layout's range";
	if (a->q_heads == 0 || a->q_heads % a->layout->heads)
		return "q_heads is not a multiple of the layout's KV heads";
	if (!dtype_known(a->q_dtype) || (!dtype_known(a->out_dtype) && a->out_dtype != KV_DTYPE_E4M3))
		return "unknown dtype of q or out";
	if (a->first_pos > KV_POSITION_MAX || a->first_pos < -KV_POSITION_MAX)
		return "first_pos is out of range";
	if (!isfinite(a->scale))
		return "scale is not finite";
	return NULL;
}

/* What is wrong with the blocks that a query sees; the others are never looked at. What neighbouring queries
 * see adjoins or overlaps, so that it is one interval for all of them. */
static const char *blocks_problem(const struct kv_attend *a)
{
	int64_t from = INT64_MAX, to = 0, size = a->layout->block_tokens;

	for (uint64_t i = 0; i < a->queries; i++) {
		int64_t first, end;

		kv_attend_sees(a, i, &first, &end);
		if (first < end) {
			from = first < from ? first : from;
			to = end > to ? end : to;
		}
	}
	if (from < to && !a->blocks)
		return "no blocks";
	for (int64_t b = from / size; from < to && b * size < to; b++)
		if (!a->blocks[b] || (uintptr_t)a->blocks[b] % 16)
			return "a block's address is null or not a multiple of 16";
	return NULL;
}

static bool misplaced(const void *data, enum kv_dtype type)
{
	return !data || (uintptr_t)data % kv_dtype_bytes(type);
}

const char *kv_attend_data_problem(const struct kv_attend *a, const void *scratch)
{
	const char *problem;

	if (misplaced(a->q, a->q_dtype) || misplaced(a->out, a->out_dtype))
		return "q or out is null or not aligned to its elements";
	if ((uintptr_t)a->lse % sizeof(float))
		return "lse is not aligned to its elements";
	if (!scratch || (uintptr_t)scratch % KV_SCRATCH_ALIGN)
		return "scratch is null or not 64-byte aligned";
	problem = features_problem(a);
	return problem ? problem : blocks_problem(a);
}
