/* The rows of a unit against a tile, for every kernel of extend: what they see, how scores become weights, and the end
 * of a part.
 *
 * A warp has 16 rows of each block of 64 of its group. A lane has rows g and g + 8 of these, and of every eight columns
 * 2t and 2t + 1, as matrix products leave their sums: column 8n + 2t + i of row g + 8h is at 4n + 2h + i.
 */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_WEIGH_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_WEIGH_CUH

#include "kernels/cuda/extend_decode.cuh"

constexpr int WEIGHT_SET = 7; /* log2 of a row's largest weight after a move of its exponent */
constexpr float WEIGHT_TOP = 15; /* of the largest that goes without one */
constexpr float WEIGHTS_TOP = 65000, WEIGHT_HELD = 120; /* or the largest sum of a lane's of a row; log2 of what float32
							 * sums */

/* What a CTA does next: steps of one unit. */
struct extend_part {
	extend_tile tile;
	extend_span span;
	uint32_t head, unit, from, to;
	uint32_t first_query[2], last_query[2]; /* of a warpgroup's blocks */
};
static_assert(sizeof(extend_part) <= 96, "room in extend_shape");

/* The part that begins at x of the line, and where it ends. */
template <class S, bool ALL = false>
DEVICE uint32_t part_at(const extend_args &a, uint32_t x, uint32_t end, extend_part *p)
{
	const extend_tile *line = a.lines[S::FINE];

	p->unit = tile_at(line, a.units, x);
	p->tile = line[p->unit];
	p->head = p->unit % a.heads;
	p->from = x - p->tile.begin;
	p->to = min(p->tile.steps, p->from + (end - x));
	p->span = span_of<ALL>(a, p->tile.sequence, p->tile.first_row, S::ROWS, S::TOKENS, S::OWN_TOKENS);
	return x + (p->to - p->from);
}

/* Where the part that begins at x ends. */
template <class S> DEVICE uint32_t part_end(const extend_args &a, uint32_t x, uint32_t end)
{
	const extend_tile *line = a.lines[S::FINE], &t = line[tile_at(line, a.units, x)];

	return min(end, t.begin + t.steps);
}

template <int FK, int FV, int DK, int DV, bool FINE = false> struct extend_block {
	using S = extend_shape<FK, FV, DK, DV, FINE>;
	static constexpr int SCORES = S::TOKENS / 2, SPLIT = DV > 128 ? 2 : 1, WIDTH = DV / SPLIT;
	const extend_args &a;
	uint32_t lane, warp, group; /* the warp's in the group */

	struct row_state {
		float exponent[2], sum[2]; /* of rows g and g + 8 */
	};

	/* Applies scale, features and the mask to scores of a tile that is not plain: they become powers
	 * of 2. */
	template <bool ALL = false>
	DEVICE void adjust(float (&s)[SCORES], const extend_part &x, uint32_t step, uint32_t first_row,
			   const float (&scale)[2]) const
	{
		const uint32_t t = lane % 4, prefix = x.span.prefix;
		const bool own = step >= x.span.prefix_steps;
		/* Position of the lane's first column; other columns are a constant further on. */
		const uint32_t first =
			(own ? prefix + (x.span.first_own + step - x.span.prefix_steps) * S::OWN_TOKENS
			     : (x.span.first_tile + step) * S::TOKENS) +
			token_of_column(S::CROSSED, 2 * t);

#pragma unroll
		for (uint32_t h = 0; h < 2; h++) {
			const uint32_t row = x.tile.first_row + first_row + 8 * h;
			const uint32_t position = prefix + min(row / a.group, x.span.own - 1);
			const uint32_t last = own ? position : prefix - 1;
			int32_t high = (int32_t)(last - first),
				low = a.window > position ? -(int32_t)first
							  : (int32_t)(position + 1 - a.window - first);

			if constexpr (ALL) {
				uint32_t from = low + first, to = position;

				see_ranges(a, x.tile.sequence, position, position, prefix + x.span.own, &from, &to);
				low = (int32_t)(from - first);
				high = own ? (int32_t)(to - first) : high;
			}
			if (S::TWO_HALVES && own) /* the other columns are the same tokens' */
				high = min(high, (int32_t)S::OWN_TOKENS - 1);

#pragma unroll
			for (uint32_t i = 0; i < SCORES / 2; i++)
				s[i / 2 * 4 + 2 * h + i % 2] *= scale[h];
			if (a.softcap_log2 > 0) {
				const float to_exponent = 2.885390082f / a.softcap_log2;

#pragma unroll
				for (uint32_t i = 0; i < SCORES / 2; i++) {
					float &y = s[i / 2 * 4 + 2 * h + i % 2];

					if constexpr (ALL) {
						y = cap_closely(y * to_exponent);
						continue;
					}
					y = a.softcap_log2 *
					    (1 - __fdividef(2, exp2_fast(y * to_exponent) + 1));
				}
			}
			if (a.alibi) {
				const float slope = a.alibi[x.head * a.group + row % a.group] *
						    1.44269504f,
					    distance = (float)((int32_t)(position - first));

#pragma unroll
				for (uint32_t i = 0; i < SCORES / 2; i++) {
					const float apart = distance - (float)offset_of(i);

					s[i / 2 * 4 + 2 * h + i % 2] -=
						slope *
						(ALL ? a.alibi_sqrt ? root_fast(fabsf(apart)) : fabsf(apart)
						 : a.alibi_sqrt ? root_fast(fmaxf(apart, 0)) : apart);
				}
			}
			if constexpr (ALL)
				if (a.tree_bias && own)
					add_tree_bias(s, h,
						      a.tree_bias + (size_t)(a.query_starts[x.tile.sequence] + position - prefix) *
									    a.tree_stride,
						      first - prefix, x.span.own);
#pragma unroll
			for (uint32_t i = 0; i < SCORES / 2; i++) {
				const int32_t offset = (int32_t)offset_of(i);
				float &y = s[i / 2 * 4 + 2 * h + i % 2];

				y = offset <= high && offset >= low ? y : -INFINITY;
			}
		}
	}

	/* tanh times the cap, of an argument in powers of 2. Without the series near 0, where the rest cancels, it is
	 * good to the cap times 2^-21. */
	DEVICE float cap_closely(float exponent) const
	{
		const float x = exponent * 0.34657359f;

		return a.softcap_log2 *
		       (fabsf(x) < 0.02f ? x * fmaf(x * x, -0.33333333f, 1) : 1 - __fdividef(2, exp2_fast(exponent) + 1));
	}

	/* `bias`: of the row's query; `first`: new token at the lane's first column. */
	DEVICE void add_tree_bias(float (&s)[SCORES], uint32_t h, const float *bias, uint32_t first, uint32_t own) const
	{
#pragma unroll
		for (uint32_t i = 0; i < SCORES / 2; i++)
			if (first + offset_of(i) < own)
				s[i / 2 * 4 + 2 * h + i % 2] += __ldg(bias + first + offset_of(i)) * 1.44269504f;
	}

	/* Tokens from the lane's first column to its i-th. */
	static DEVICE constexpr uint32_t offset_of(uint32_t i)
	{
		return token_of_column(S::CROSSED, i / 2 * 8 + i % 2);
	}

	/* The part that begins at x, for the whole warpgroup. */
	template <bool ALL = false> DEVICE void prepare(uint32_t x, uint32_t end, extend_part *p) const
	{
		part_at<S, ALL>(a, x, end, p);
		for (uint32_t block = 0; block < S::BLOCKS; block++) {
			const uint32_t row = p->tile.first_row + (group * S::BLOCKS + block) * 64;

			p->first_query[block] = min(row / a.group, p->span.own - 1);
			p->last_query[block] = min((row + 63) / a.group, p->span.own - 1);
		}
	}

	/* True if all rows of a block see the whole tile and nothing but the scale is to be done. */
	template <bool ALL = false> DEVICE bool plain(const extend_part &x, uint32_t step, uint32_t block) const
	{
		uint32_t first, seen;

		if (ALL && a.tree_bias && step >= x.span.prefix_steps)
			return false;

		if (step < x.span.prefix_steps) {
			first = (x.span.first_tile + step) * S::TOKENS;
			seen = x.span.prefix;
		} else {
			first = x.span.prefix +
				(x.span.first_own + step - x.span.prefix_steps) * S::OWN_TOKENS;
			seen = x.span.prefix + x.first_query[block] + 1;
		}
		return a.plain && first + (step < x.span.prefix_steps ? S::TOKENS : S::OWN_TOKENS) <= seen &&
		       (a.window == NO_TOKENS || x.span.prefix + x.last_query[block] - first < a.window);
	}

	/* Scores of a fine tile as the others have them: times the tokens' scales, at `scales` in shared memory; or, of
	 * new tokens, the two halves' together. */
	DEVICE void refine(float (&s)[SCORES], bool own, uint32_t scales) const
	{
		if (!own) {
#pragma unroll
			for (uint32_t i = 0; i < SCORES; i += 4) {
				const uint2 two = load_shared_8(scales + (2 * i + lane % 4 * 2) * 4);

				s[i] *= __uint_as_float(two.x);
				s[i + 1] *= __uint_as_float(two.y);
				s[i + 2] *= __uint_as_float(two.x);
				s[i + 3] *= __uint_as_float(two.y);
			}
		} else if (S::TWO_HALVES) {
#pragma unroll
			for (uint32_t i = 0; i < SCORES / 2; i++) {
				s[i] += s[i + SCORES / 2];
				s[i + SCORES / 2] = -INFINITY;
			}
		}
	}

	/* The largest number of each of a lane's rows, over the lanes that share it. */
	DEVICE void largest_of_rows(const float (&s)[SCORES], float (&top)[2]) const
	{
		float tops[8]; /* several at a time: each is a chain */

#pragma unroll
		for (int i = 0; i < 8; i++)
			tops[i] = s[i];
#pragma unroll
		for (int i = 8; i < SCORES; i++)
			tops[i % 8] = fmaxf(tops[i % 8], s[i]);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			top[h] = fmaxf(fmaxf(tops[2 * h], tops[2 * h + 1]),
				       fmaxf(tops[2 * h + 4], tops[2 * h + 5]));
			top[h] = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 1));
			top[h] = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 2));
		}
	}

	/* Rows' sums with exponents that are greater: `shrink` is what that makes of them. */
	DEVICE void shrink_rows(float (&o)[SPLIT][WIDTH / 2], row_state &r, const float (&shrink)[2]) const
	{
#pragma unroll
		for (int h = 0; h < 2; h++)
			r.sum[h] *= shrink[h];
#pragma unroll
		for (int part = 0; part < SPLIT; part++)
#pragma unroll
			for (int i = 0; i < WIDTH / 2; i++)
				o[part][i] *= shrink[i / 2 % 2];
	}

	/* Before weights are made: exponents that these scores fit. */
	DEVICE void fit_scores(const float (&s)[SCORES], float (&o)[SPLIT][WIDTH / 2], row_state &r, const float (&factor)[2]) const
	{
		float top[2], shrink[2];
		bool move = false;

		largest_of_rows(s, top);
#pragma unroll
		for (int h = 0; h < 2; h++)
			move = move || top[h] * factor[h] > r.exponent[h] + WEIGHT_TOP;
		if (!__any_sync(ALL_LANES, move))
			return;
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const float next = top[h] * factor[h] > r.exponent[h] + WEIGHT_TOP ? top[h] * factor[h] - WEIGHT_SET
											   : r.exponent[h];

			shrink[h] = exp2_fast(r.exponent[h] - next);
			r.exponent[h] = next;
		}
		shrink_rows(o, r, shrink);
	}

	/* After: weights that halves would not hold move exponents by whole powers of 2. */
	DEVICE void fit_weights(float (&s)[SCORES], float (&sum)[2], float (&o)[SPLIT][WIDTH / 2], row_state &r) const
	{
		float top[2], shrink[2];

		largest_of_rows(s, top);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int up = max((int)(__float_as_uint(top[h]) >> 23) - 127 - WEIGHT_SET, 0);

			shrink[h] = __uint_as_float((127 - up) << 23);
			r.exponent[h] += (float)up;
			sum[h] *= shrink[h];
		}
#pragma unroll
		for (int i = 0; i < SCORES; i++)
			s[i] *= shrink[i / 2 % 2];
		shrink_rows(o, r, shrink);
	}

	/* Scores, of which none passes `reach`, become weights, as fragments for V. Where the shape is LATE, exponents
	 * are moved by what sums of weights show, later but for less than a maximum costs; but by scores, while a row's
	 * exponent is so far below what it could see that float32 might not hold its weights. */
	DEVICE void weigh(float (&s)[SCORES], uint32_t (&p)[SCORES / 2], float (&o)[SPLIT][WIDTH / 2],
			  row_state &r, const float (&factor)[2], float reach) const
	{
		float sum[2] = {0, 0};

		if (!S::LATE || __any_sync(ALL_LANES, !(fminf(r.exponent[0], r.exponent[1]) >= reach - WEIGHT_HELD)))
			fit_scores(s, o, r, factor);
#pragma unroll
		for (int i = 0; i < SCORES; i++)
			s[i] = exp2_fast(fmaf(s[i], factor[i / 2 % 2], -r.exponent[i / 2 % 2]));
#pragma unroll
		for (int i = 0; i < SCORES; i += 2)
			sum[i / 2 % 2] += s[i] + s[i + 1];
		if (S::LATE && __any_sync(ALL_LANES, fmaxf(sum[0], sum[1]) > WEIGHTS_TOP))
			fit_weights(s, sum, o, r);
#pragma unroll
		for (int h = 0; h < 2; h++)
			r.sum[h] += sum[h];
#pragma unroll
		for (int i = 0; i < SCORES; i += 2)
			p[i / 2] = bits_of(__floats2half2_rn(s[i], s[i + 1]));
		registers_settled(p); /* not in the next turn */
	}

	DEVICE void write(const extend_part &x, uint32_t block, const float (&o)[SPLIT][WIDTH / 2],
			  row_state &r) const
	{
		const size_t slot = slot_of(a, FINE, x.tile, blockIdx.x);
		const uint32_t first = (group * S::BLOCKS + block) * 64 + warp * 16 + lane / 4;

#pragma unroll
		for (uint32_t h = 0; h < 2; h++) {
			const size_t row = slot * S::ROWS + first + 8 * h;
			float *to = a.partials + row * DV + lane % 4 * 2;

			r.sum[h] += __shfl_xor_sync(ALL_LANES, r.sum[h], 1);
			r.sum[h] += __shfl_xor_sync(ALL_LANES, r.sum[h], 2);
			if (lane % 4 == 0)
				a.sums[row] = {r.exponent[h], r.sum[h]};
#pragma unroll
			for (int part = 0; part < SPLIT; part++)
#pragma unroll
				for (int i = 0; i < WIDTH / 8; i++)
					*(float2 *)(to + part * WIDTH + 8 * i) = {
						o[part][4 * i + 2 * h], o[part][4 * i + 2 * h + 1]};
		}
	}

	static DEVICE void begin(float (&o)[SPLIT][WIDTH / 2], row_state &r)
	{
#pragma unroll
		for (int part = 0; part < SPLIT; part++)
#pragma unroll
			for (int i = 0; i < WIDTH / 2; i++)
				o[part][i] = 0;
#pragma unroll
		for (int h = 0; h < 2; h++) {
			r.exponent[h] = NEVER_SEEN;
			r.sum[h] = 0;
		}
	}
};

#endif
