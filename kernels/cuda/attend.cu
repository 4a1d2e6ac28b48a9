/* Attention from packed blocks, for a few queries a sequence (see cuda_kernels.h).
 *
 * One kernel. The grid fills the device once; each CTA walks the segments that the plan (plan.cuh) gives
 * it. In a segment every one of its warps takes its own run of atoms and keeps a ring of bulk copies
 * going into shared memory, so that no warp waits for another before the end. A step is two atoms, 32
 * tokens: scores on the integer tensor cores, weights as 16-bit integers, weighted values on the tensor
 * cores again (fragments.cuh). The query is rotated here, while the first loads are under way, and the
 * result is rotated back after the parts of a row have met.
 *
 * Weights. A column (one query head) has its own unit 2^max a lane group, so that weight = 2^(score -
 * max) times V's scale, as an integer below 65536. The unit is set when a weight would not fit, which is
 * rare once the first tokens have been seen, and then leaves three bits for growth; accumulators are
 * shifted by whole bits. What rounding takes from a weight is added to the next one of the lane, so that
 * many small weights beside a large one keep their sum.
 */
#include "kernels/cuda/attend_feed.cuh"
#include "kernels/cuda/attend_finish.cuh"
#include "kernels/cuda/attend_shape.cuh"
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/hadamard.cuh"

namespace
{

constexpr float WEIGHT_MAX = 65000.0f; /* a weight that still fits 16 bits with the carried rounding */
constexpr float BARE_WEIGHT_MAX = 0x1p40f; /* the same without V's scale, which may be 0 */
constexpr float SMALLEST_SCALE_LOG2 = -24;
constexpr float UNIT_BITS = 13; /* of the largest weight when the unit is set: three more for growth */
constexpr uint32_t HALVING_STEPS =
	512; /* accumulators are halved after so many steps, before 32 bits could overflow */

DEVICE float max_over_g(float x)
{
	x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 4));
	x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 8));
	return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 16));
}

/* Sets a column's unit so that the step's weights fit, at least `extra` bits up; shifts what was summed
 * so far. High and low bytes are shifted as one number. */
template <int WORDS>
DEVICE void rescale(column &c, int32_t (&o)[WORDS][4], const float (&score)[STEP_ATOMS][2],
		    const scale_pair (&v)[STEP_ATOMS], float extra)
{
	float top = -INFINITY;

#pragma unroll
	for (int a = 0; a < STEP_ATOMS; a++)
#pragma unroll
		for (int r = 0; r < 2; r++)
			top = fmaxf(top,
				    score[a][r] + fmaxf(__log2f(v[a].scale[r]), SMALLEST_SCALE_LOG2));
	float next = fmaxf(ceilf(max_over_g(top)) - UNIT_BITS, c.max + extra);

	if (next > c.max) {
		int shift = (int)fminf(next - c.max, 31);
		float factor = exp2_fast(c.max - next);

		c.max = next;
		c.sum *= factor;
		c.carried *= factor;
		c.weights >>= shift;
#pragma unroll
		for (int j = 0; j < WORDS; j++) {
#pragma unroll
			for (int r = 0; r < 4; r += 2) {
				int32_t high = o[j][r + 1] >> shift;
				int64_t rest =
					(int64_t)(o[j][r + 1] - (int32_t)((uint32_t)high << shift)) *
						256 +
					o[j][r];

				o[j][r + 1] = high;
				o[j][r] = (int32_t)(rest >> shift);
			}
		}
	}
}

/* The scores of one column for a step become weights; returns operand B, one register an atom. */
template <class F, int WORDS>
DEVICE void weigh(column &c, int32_t (&o)[WORDS][4], const float (&score)[STEP_ATOMS][2],
		  const scale_pair (&v)[STEP_ATOMS], bool halve, uint32_t (&p)[STEP_ATOMS])
{
	constexpr float ROUND = 12582912.0f; /* 1.5 * 2^23: the low bits of the sum are the integer */
	float bare[STEP_ATOMS][2], weight[STEP_ATOMS][2];
	float largest = 0, largest_bare = 0;

#pragma unroll
	for (int a = 0; a < STEP_ATOMS; a++) {
#pragma unroll
		for (int r = 0; r < 2; r++) {
			bare[a][r] = exp2_fast(score[a][r] - c.max);
			weight[a][r] = bare[a][r] * v[a].scale[r];
			largest = fmaxf(largest, weight[a][r]);
			largest_bare = fmaxf(largest_bare, bare[a][r]);
		}
	}
	if (__any_sync(ALL_LANES, largest > WEIGHT_MAX || largest_bare > BARE_WEIGHT_MAX || halve)) {
		rescale(c, o, score, v, halve ? 1.0f : 0.0f);
#pragma unroll
		for (int a = 0; a < STEP_ATOMS; a++) {
#pragma unroll
			for (int r = 0; r < 2; r++) {
				bare[a][r] = exp2_fast(score[a][r] - c.max);
				weight[a][r] = bare[a][r] * v[a].scale[r];
			}
		}
	}
#pragma unroll
	for (int a = 0; a < STEP_ATOMS; a++) {
		uint32_t bits[2];

#pragma unroll
		for (int r = 0; r < 2; r++) {
			float wanted = weight[a][r] + c.carried, rounded = wanted + ROUND;

			c.carried = wanted - (rounded - ROUND);
			c.sum += bare[a][r];
			bits[r] = __float_as_uint(rounded);
			c.weights += F::weigh(bits[r] - __float_as_uint(ROUND), v[a].zero[r]);
		}
		/* Bytes {low g, low g + 8, high g, high g + 8}; transposed, a lane has one column's
		 * tokens 2t, 2t + 8, 2t + 1, 2t + 9. */
		p[a] = transpose_8x8(permute(bits[0], bits[1], 0x5140));
	}
}

/* All of a warp's run. */
template <class F, int D, int TILES>
DEVICE void attend_run(feed<shape<F, D, TILES>> &in, const segment &s,
		       const uint32_t (&q)[TILES][D / 32][2], column (&c)[TILES],
		       int32_t (&o)[TILES][D / 16][4], uint32_t queries)
{
	using S = shape<F, D, TILES>;
	const uint32_t g = in.lane / 4, steps = (in.atoms + STEP_ATOMS - 1) / STEP_ATOMS;
	const uint32_t seen_by_all = s.tokens - min(s.tokens, queries - 1);

	for (uint32_t step = 0; step < steps; step++) {
		const uint32_t at = in.wait(),
			       token = (in.first + step * STEP_ATOMS) * KV_ATOM_TOKENS + g;
		const bool tail =
			(in.first + step * STEP_ATOMS + STEP_ATOMS) * KV_ATOM_TOKENS > seen_by_all;
		int32_t sum[STEP_ATOMS][TILES][F::SUMS][4] = {};
		scale_pair k[STEP_ATOMS], v[STEP_ATOMS];
		uint32_t p[TILES][STEP_ATOMS];

#pragma unroll
		for (int a = 0; a < STEP_ATOMS; a++) {
			F::dot(at + a * S::ATOM, in.lane, q, sum[a]);
			k[a] = F::scales(at + a * S::ATOM + S::CODES, g);
			v[a] = F::scales(at + a * S::ATOM + S::ATOM - S::SCALES, g);
		}
		if (tail) { /* a scale past the end may be anything, a NaN too */
#pragma unroll
			for (int a = 0; a < STEP_ATOMS; a++)
#pragma unroll
				for (int r = 0; r < 2; r++)
					v[a].scale[r] =
						token + 16 * a + 8 * r < s.tokens ? v[a].scale[r] : 0;
		}
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			float score[STEP_ATOMS][2];

#pragma unroll
			for (int a = 0; a < STEP_ATOMS; a++)
#pragma unroll
				for (int r = 0; r < 2; r++)
					score[a][r] = F::score(sum[a][n], r, c[n].query_sum, k[a]) *
						      (k[a].scale[r] * c[n].unit);
			if (tail) {
#pragma unroll
				for (int a = 0; a < STEP_ATOMS; a++)
#pragma unroll
					for (int r = 0; r < 2; r++)
						score[a][r] = token + 16 * a + 8 * r < c[n].limit
								      ? score[a][r]
								      : -INFINITY;
			}
			weigh<F>(c[n], o[n], score, v, step % HALVING_STEPS == HALVING_STEPS - 1, p[n]);
		}
		F::accumulate(at + S::CODES + S::SCALES, at + S::ATOM + S::CODES + S::SCALES, in.lane, p,
			      o, [&] { in.release(step); });
	}
}

/* One query column, by one warp: loads it, rotates it and leaves it as operand B wants it, as 16-bit
 * integers, high bytes first, then low; and its {unit, sum}. */
template <class F, int D>
DEVICE void hand_out_query(const attend_args &a, size_t row, bool present, float *x, uint32_t *high_words,
			   float2 *unit_sum, uint32_t lane)
{
	float largest = 1e-20f;
	int32_t total = 0;

#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32) {
		float v = present ? load_element(a.q_dtype, a.q, row * D + dim) : 0;

		x[dim] = rotation_negative(dim) ? -v : v;
	}
	hadamard<D, false>(x, lane);
#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32)
		largest = fmaxf(largest, fabsf(x[dim]));
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, i));
	const float to_integer = QUERY_MAX / largest;

	for (uint32_t k = lane; k < D / 4;
	     k += 32) { /* word of k step k / 8, register k / 4 % 2, lane column k % 4 */
		uint32_t high_word = 0, low_word = 0;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			int32_t v =
				__float2int_rn(x[F::query_dim(k / 8, k / 4 % 2, k % 4, i)] * to_integer);
			int32_t high = (v + 128) >> 8, low = v - high * 256;

			high_word |= (uint32_t)(high & 255) << (8 * i);
			low_word |= (uint32_t)(low & 255) << (8 * i);
			total += v;
		}
		high_words[k] = high_word;
		high_words[D / 4 + k] = low_word;
	}
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		total += __shfl_xor_sync(ALL_LANES, total, i);
	if (lane == 0)
		*unit_sum = {a.scale_log2 * F::SCORE_UNIT * largest / QUERY_MAX,
			     (float)total * F::QUERY_SUM_UNIT};
}

/* The segment's queries, from memory to every warp's registers. Has one barrier; the one before it must
 * be past all use of rows and results. */
template <class F, int D, int TILES>
DEVICE void load_query(const attend_args &a, const segment &s, uint8_t *shared,
		       uint32_t (&q)[TILES][D / 32][2], column (&c)[TILES])
{
	using S = shape<F, D, TILES>;
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
	uint32_t *words = (uint32_t *)(shared + S::RESULTS_AT);
	float2 *unit_sum = (float2 *)(words + S::COLUMNS * D / 2);
	uint32_t query;
	size_t row;

	if (warp < S::COLUMNS) {
		bool present = column_row(a, s, warp, S::COLUMNS, &row, &query);

		hand_out_query<F, D>(a, row, present, (float *)(shared + S::ROWS_AT) + warp * D,
				     words + warp * D / 2, unit_sum + warp, lane);
	}
	__syncthreads();
#pragma unroll
	for (int n = 0; n < TILES; n++) {
		const uint32_t *mine = words + (4 * n + g / 2) * D / 2 + g % 2 * D / 4 + t;

#pragma unroll
		for (int k = 0; k < D / 16; k++)
			q[n][k / 2][k % 2] = mine[4 * k];
		column_row(a, s, 4 * n + t, S::COLUMNS, &row, &query);
		uint32_t unseen = query < a.queries ? a.queries - 1 - query : 0;

		c[n] = {unit_sum[4 * n + t].x,
			unit_sum[4 * n + t].y,
			s.tokens > unseen ? s.tokens - unseen : 0,
			NEVER,
			0,
			0,
			0};
	}
}

/* Begins to load this warp's run of a segment. */
template <class S>
DEVICE void begin_segment(feed<S> &in, const attend_args &a, const segment &s, bool *waited)
{
	const uint32_t warp = threadIdx.x / 32, pairs = (s.atoms + 1) / 2;
	const uint32_t from = pairs * warp / S::WARPS * 2,
		       to = min(pairs * (warp + 1) / S::WARPS * 2, s.atoms);
	const uint32_t newest = (s.tokens - min(s.tokens, a.queries)) / KV_ATOM_TOKENS;

	if (!*waited && s.first_atom + min(to, from + S::STAGES * STEP_ATOMS) > newest)
		wait_for_previous_kernel(); /* the ring takes in the newest tokens at once */
	in.begin(a, s, s.first_atom + from, to > from ? to - from : 0);
	if (!*waited)
		wait_for_previous_kernel();
	*waited = true;
}

template <class F, int D, int TILES>
__global__ void __launch_bounds__(32 * warps_per_cta(D, 4 * TILES), ctas_per_sm(D, 4 * TILES))
	attend_kernel(const __grid_constant__ attend_args a)
{
	using S = shape<F, D, TILES>;
	extern __shared__ __align__(128) uint8_t shared[];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	bool waited = !a.settled;
	feed<S> in;

	in.lane = lane;
	in.data = shared_address(shared) + warp * S::RING;
	in.barriers = shared_address(shared) + S::BARRIERS_AT + warp * S::STAGES * 8;
	in.put = in.take = in.parity = 0;
	if (lane == 0) {
		for (uint32_t i = 0; i < S::STAGES; i++)
			barrier_init(in.barriers + i * 8);
		barrier_init_fence();
	}
	__syncwarp();
	if (!a.settled)
		wait_for_previous_kernel();

	segment s = a.segments[blockIdx.x];

	if (s.parts > 0)
		begin_segment(in, a, s, &waited);
	while (s.parts > 0) {
		segment next = {};
		uint32_t q[TILES][D / 32][2];
		int32_t o[TILES][D / 16][4] = {};
		column c[TILES];

		load_query<F, D, TILES>(a, s, shared, q, c);
		attend_run<F, D, TILES>(in, s, q, c, o, a.queries);
		if (s.next == NO_SEGMENT) {
			let_next_kernel_start();
		} else {
			next = a.segments[s.next];
			begin_segment(in, a, next, &waited);
		}
		finish_segment<F, D, TILES>(a, s, c, o, shared);
		__syncthreads();
		s = next;
	}
	if (!waited)
		wait_for_previous_kernel();
}

template <class F, int D, int TILES>
enum status launch(const attend_args &args, uint32_t ctas, cudaStream_t stream)
{
	cudaLaunchAttribute overlap = {};
	cudaLaunchConfig_t config = {};

	overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	overlap.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = dim3(ctas);
	config.blockDim = dim3(shape<F, D, TILES>::THREADS);
	config.dynamicSmemBytes = shape<F, D, TILES>::BYTES;
	config.stream = stream;
	config.attrs = &overlap;
	config.numAttrs = 1;
	if (cudaFuncSetAttribute(attend_kernel<F, D, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 shape<F, D, TILES>::BYTES) != cudaSuccess)
		return STATUS_UNSUPPORTED;
	return cudaLaunchKernelEx(&config, attend_kernel<F, D, TILES>, args) == cudaSuccess
		       ? STATUS_OK
		       : STATUS_INTERNAL;
}

template <template <int> class F, int D>
enum status launch_tiles(const attend_args &args, uint32_t tile_columns, uint32_t ctas,
			 cudaStream_t stream)
{
	if (tile_columns == 4)
		return launch<F<D>, D, 1>(args, ctas, stream);
	return launch<F<D>, D, 2>(args, ctas, stream);
}

template <template <int> class F>
enum status launch_dim(const attend_args &args, uint32_t d, uint32_t tile_columns, uint32_t ctas,
		       cudaStream_t stream)
{
	switch (d) {
	case 128:
		return launch_tiles<F, 128>(args, tile_columns, ctas, stream);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return launch_tiles<F, 64>(args, tile_columns, ctas, stream);
	case 96:
		return launch_tiles<F, 96>(args, tile_columns, ctas, stream);
	case 192:
		return launch_tiles<F, 192>(args, tile_columns, ctas, stream);
	case 256:
		return launch_tiles<F, 256>(args, tile_columns, ctas, stream);
#endif
	default:
		return STATUS_UNSUPPORTED;
	}
}

} // namespace

extern "C" enum status kv_cuda_attend_run(const struct kv_cuda_attend *a, cudaStream_t stream)
{
	struct attend_plan plan;
	enum status status = attend_plan_of(a, &plan);

	if (status != STATUS_OK)
		return status;
	if (!a->q || !a->out || !a->blocks || !a->workspace || a->layer >= a->layout->layers)
		return STATUS_INVALID;
	if (a->workspace_bytes < plan.bytes)
		return STATUS_EXHAUSTED;
	if (a->sequences == 0)
		return STATUS_OK;

	uint8_t *workspace = (uint8_t *)a->workspace;
	attend_args args = {};

	args.blocks = a->blocks;
	args.q = a->q;
	args.out = a->out;
	args.lse = a->lse;
	args.segments = (const segment *)(workspace + plan.segments_at);
	args.arrived = (uint32_t *)(workspace + plan.arrived_at);
	args.partials = (float *)(workspace + plan.partials_at);
	args.sums = (float2 *)(workspace + plan.sums_at);
	args.layer_at = a->layer * a->geometry->layer_bytes;
	args.chunk_bytes = a->geometry->chunk_bytes;
	args.block_atoms = a->geometry->atoms;
	args.block_magic = (uint32_t)((0x100000000 + args.block_atoms - 1) / args.block_atoms);
	args.blocks_stride = a->blocks_stride;
	args.heads = a->layout->heads;
	args.q_heads = a->q_heads;
	args.group = a->q_heads / a->layout->heads;
	args.queries = a->queries;
	args.columns = plan.columns;
	args.tiles = plan.tiles;
	args.q_dtype = a->q_dtype;
	args.out_dtype = a->out_dtype;
	/* Rotation is unnormalised: rotated queries and keys are sqrt(D) too long each. */
	args.scale_log2 = a->scale * 1.44269504f / (float)a->layout->head_dim_k;
	args.settled = a->settled;
	if (a->layout->k_format == KV_TQ4)
		return launch_dim<tq4_fragments>(args, a->layout->head_dim_k, plan.tile_columns,
						 plan.ctas, stream);
	return launch_dim<int4_fragments>(args, a->layout->head_dim_k, plan.tile_columns, plan.ctas,
					  stream);
}
