/* The kernel of extend for devices without products of warpgroups and bulk copies. 8 warps decode a tile together, then
 * multiply with it by m16n8k16, 32 rows each (16 where a unit has 128). Tiles, rows and their orders are those of
 * extend_kernel.cuh. There is one stage of tiles, and one side's atoms at a time beside them, so that 99 KiB of shared
 * memory are enough. The next tile's keys are loaded during the products. Only this kernel has tree bias and ranges, so
 * that the other one does not pay for them.
 */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_PORTABLE_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_PORTABLE_CUH

#include "kernels/cuda/extend_weigh.cuh"

constexpr uint32_t PORTABLE_WARPS = 8, PORTABLE_THREADS = 32 * PORTABLE_WARPS;

template <int FK, int FV, int DK, int DV, bool FINE> struct portable_shape {
	using S = extend_shape<FK, FV, DK, DV, FINE>;
	static constexpr uint32_t ATOMS = S::TOKENS / KV_ATOM_TOKENS, SIDE = S::K_SIDE > S::V_SIDE ? S::K_SIDE : S::V_SIDE;
	static constexpr uint32_t K_AT = 0, V_AT = K_AT + S::K_TILE, ATOMS_AT = V_AT + S::V_TILE,
				  SCALES_AT = ATOMS_AT + ATOMS * SIDE, BYTES = SCALES_AT + (FINE ? S::TOKENS * 4 : 0);

	static_assert(BYTES + EXTEND_GROUPS * sizeof(extend_part) + 128 <= 99 * 1024, "shared memory of a multiprocessor");
};

/* c[16 x N] += a[16 x 16] b[N x 16]^T; b: rows of a panel, from chunk `chunk` on. */
template <int N>
DEVICE void multiply_rows(float (&c)[N / 2], const uint32_t (&a)[4], uint32_t panel, uint32_t chunk, uint32_t lane)
{
	static_assert(N % 16 == 0, "two products a load");
	const uint32_t row = lane / 16 * 8 + lane % 8, at = panel + row * 128 + ((chunk + lane / 8 % 2) ^ lane % 8) * 16;

#pragma unroll
	for (uint32_t n = 0; n < N / 8; n += 2) {
		const uint4 b = load_four_matrices<false>(at + n * 8 * 128);

		mma_f16(*(float(*)[4])&c[4 * n], a[0], a[1], a[2], a[3], b.x, b.y);
		mma_f16(*(float(*)[4])&c[4 * n + 4], a[0], a[1], a[2], a[3], b.z, b.w);
	}
}

template <int FK, int FV, int DK, int DV, bool FINE> struct portable_rows : extend_block<FK, FV, DK, DV, FINE> {
	using rows = extend_block<FK, FV, DK, DV, FINE>;
	using P = portable_shape<FK, FV, DK, DV, FINE>;
	using typename rows::S, typename rows::row_state;
	using rows::SCORES, rows::SPLIT, rows::WIDTH;
	using rows::a, rows::lane, rows::warp, rows::group;
	using rows::begin, rows::refine, rows::weigh, rows::write;
	uint32_t base;

	/* Asks for one side of a tile's atoms; where there are none the bytes stay what they are. In the place of one
	 * that no query sees comes the first that one does: it is masked, and finite. */
	template <enum kv_side SIDE> DEVICE void fetch_atoms(const extend_part &x, uint32_t step) const
	{
		constexpr uint32_t BYTES = SIDE == KV_SIDE_K ? S::K_SIDE : S::V_SIDE, PIECES = BYTES / 16;
		const uint32_t first = (x.span.first_tile + step) * P::ATOMS;
		const uint64_t *table = a.blocks + (size_t)x.tile.sequence * a.blocks_stride;
		const uint64_t head_at = a.layer_at + (uint64_t)x.head * a.chunk_bytes + (SIDE == KV_SIDE_K ? 0 : S::K_SIDE);

		for (uint32_t i = threadIdx.x; i < P::ATOMS * PIECES; i += PORTABLE_THREADS) {
			const uint32_t atom = max(first + i / PIECES, x.span.first_atom);
			const uint32_t block = block_of(a, atom);

			forget_shared(base + P::ATOMS_AT + i * 16, 16);
			if (atom * KV_ATOM_TOKENS < x.span.prefix)
				async_load_16(base + P::ATOMS_AT + i * 16,
					      table[block] + head_at +
						      (uint64_t)(atom - block * a.block_atoms) * (S::K_SIDE + S::V_SIDE) +
						      i % PIECES * 16);
		}
		async_close_group();
	}

	/* All threads are past what was fetched and may read it. */
	static DEVICE void fetched()
	{
		async_wait<0>();
		__syncthreads();
	}

	/* A tile of the prefix; its keys are on their way. */
	DEVICE void prefix_tile(const extend_part &x, uint32_t step, float inverse_k, float inverse_v) const
	{
		const uint32_t first = (x.span.first_tile + step) * S::TOKENS, all = group * 4 + warp;

		fetched();
		for (uint32_t atom = all; atom < P::ATOMS; atom += PORTABLE_WARPS)
			decode_k<FK, DK, S::CROSSED, S::TOKENS, FINE>(
				base + P::ATOMS_AT + atom * S::K_SIDE, lane, first + 16 * atom, x.span.prefix, inverse_k,
				base + P::K_AT + atom / 2 * 32 * 128, base + P::SCALES_AT + atom / 2 * 32 * 4, atom % 2);
		__syncthreads();
		fetch_atoms<KV_SIDE_V>(x, step);
		fetched();
		for (uint32_t pair = all; pair < P::ATOMS / 2; pair += PORTABLE_WARPS)
			decode_v<FV, DV>(base + P::ATOMS_AT + pair * 2 * S::V_SIDE, S::V_SIDE, lane, first + 32 * pair, x.span.prefix,
					inverse_v, base + P::V_AT + pair / 2 * DV * 128, pair % 2);
		__syncthreads();
	}

	/* A tile of the new tokens, which is in memory as it is wanted. */
	DEVICE void own_tile(const extend_part &x, uint32_t own_tile) const
	{
		const uint32_t first = a.query_starts[x.tile.sequence] / S::OWN_TOKENS + x.tile.sequence;
		const size_t image = (size_t)(first + own_tile) * a.heads + x.head;
		const uint64_t k = (uint64_t)((FINE ? a.k_fine : a.k_images) + image * S::K_TILE),
			       v = (uint64_t)((FINE ? a.v_fine : a.v_images) + image * S::V_TILE);

		for (uint32_t at = threadIdx.x * 16; at < S::K_TILE; at += PORTABLE_THREADS * 16)
			async_load_16(base + P::K_AT + at, k + at);
		for (uint32_t at = threadIdx.x * 16; at < S::V_TILE; at += PORTABLE_THREADS * 16)
			async_load_16(base + P::V_AT + at, v + at);
		async_close_group();
		fetched();
	}

	/* scores = Q K^T for block `block` of the group; queries come from memory, or the caches. */
	DEVICE void score(float (&s)[SCORES], const extend_part &x, uint32_t block) const
	{
		const uint32_t g = lane / 4, t = lane % 4;
		const size_t at = (size_t)x.unit * q_image_bytes(DK, DV) +
				  ((group * S::BLOCKS + block) * S::PANELS * 64 + warp * 16 + g) * 128 + t * 4;

#pragma unroll
		for (int i = 0; i < SCORES; i++)
			s[i] = 0;
#pragma unroll 1
		for (uint32_t half = 0; half < (S::TWO_HALVES ? 2 : 1); half++) {
			const uint8_t *q = (half ? a.q_rests : a.q_images) + at;

#pragma unroll
			for (uint32_t i = 0; i < DK / 16; i++) {
				uint32_t fragment[4];

#pragma unroll
				for (uint32_t r = 0; r < 4; r++)
					fragment[r] = *(const uint32_t *)(q + i / 4 * S::QUERY_BLOCK + r % 2 * 8 * 128 +
									  ((i % 4 * 2 + r / 2) ^ g) * 16);
				multiply_rows<S::TOKENS>(s, fragment, base + P::K_AT + i / 4 * S::TOKENS * 128, i % 4 * 2, lane);
			}
		}
	}

	/* o += P V. */
	DEVICE void accumulate(float (&o)[SPLIT][WIDTH / 2], const uint32_t (&p)[SCORES / 2]) const
	{
#pragma unroll
		for (uint32_t i = 0; i < S::TOKENS / 16; i++) {
			const uint32_t fragment[4] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};

#pragma unroll
			for (uint32_t part = 0; part < SPLIT; part++)
				multiply_rows<WIDTH>(o[part], fragment, base + P::V_AT + i / 4 * DV * 128 + part * WIDTH * 128,
						     i % 4 * 2, lane);
		}
	}

	DEVICE void multiply(const extend_part &x, uint32_t step, uint32_t block, float (&o)[SPLIT][WIDTH / 2], row_state &r) const
	{
		const uint32_t row = (group * S::BLOCKS + block) * 64 + warp * 16 + lane / 4;
		const float *units = a.q_units + (size_t)x.unit * S::ROWS + row;
		float s[SCORES], scale[2] = {units[0], units[8]};
		uint32_t p[SCORES / 2];

		score(s, x, block);
		if constexpr (FINE)
			refine(s, step >= x.span.prefix_steps, base + P::SCALES_AT);
		if (!rows::template plain<true>(x, step, block)) {
			rows::template adjust<true>(s, x, step, row, scale);
			scale[0] = scale[1] = 1;
		}
		weigh(s, p, o, r, scale, x.tile.reach);
		accumulate(o, p);
	}

	DEVICE void part(const extend_part &x)
	{
		const float inverse_k = 1 / side_unit(a, x.tile.sequence, x.head, KV_SIDE_K),
			    inverse_v = 1 / side_unit(a, x.tile.sequence, x.head, KV_SIDE_V);
		float o[S::BLOCKS][SPLIT][WIDTH / 2];
		row_state r[S::BLOCKS];

#pragma unroll
		for (uint32_t block = 0; block < S::BLOCKS; block++)
			begin(o[block], r[block]);
		if (x.from < x.span.prefix_steps)
			fetch_atoms<KV_SIDE_K>(x, x.from);
		for (uint32_t step = x.from; step < x.to; step++) {
			if (step < x.span.prefix_steps)
				prefix_tile(x, step, inverse_k, inverse_v);
			else
				own_tile(x, x.span.first_own + step - x.span.prefix_steps);
			if (step + 1 < x.to && step + 1 < x.span.prefix_steps)
				fetch_atoms<KV_SIDE_K>(x, step + 1);
#pragma unroll
			for (uint32_t block = 0; block < S::BLOCKS; block++)
				multiply(x, step, block, o[block], r[block]);
			__syncthreads(); /* the tile is free */
		}
#pragma unroll
		for (uint32_t block = 0; block < S::BLOCKS; block++)
			write(x, block, o[block], r[block]);
	}
};

template <int FK, int FV, int DK, int DV, bool FINE>
__global__ void __launch_bounds__(PORTABLE_THREADS, 1) extend_portable_kernel(const __grid_constant__ extend_args a)
{
	using S = extend_shape<FK, FV, DK, DV, FINE>;
	DYNAMIC_SHARED(uint8_t, shared, 128);
	__shared__ extend_part now[EXTEND_GROUPS];
	const uint32_t end = a.cuts[FINE][blockIdx.x + 1], warp = threadIdx.x / 32;
	portable_rows<FK, FV, DK, DV, FINE> rows = {{a, threadIdx.x % 32, warp % 4, warp / 4}, shared_address(shared)};

	for (uint32_t x = a.cuts[FINE][blockIdx.x]; x < end;) {
		const uint32_t from = x;

		x = part_end<S>(a, from, end);
		__syncthreads(); /* all are done with the last part */
		if (threadIdx.x % 128 == 0)
			rows.template prepare<true>(from, end, &now[warp / 4]);
		__syncthreads();
		rows.part(now[warp / 4]);
	}
}

template <int FK, int FV, int DK, int DV, bool FINE>
enum status extend_portable_one(const extend_args &a, cudaStream_t stream)
{
	using P = portable_shape<FK, FV, DK, DV, FINE>;

	if (cudaFuncSetAttribute(extend_portable_kernel<FK, FV, DK, DV, FINE>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::BYTES) !=
	    cudaSuccess)
		return shared_memory_refused();
	launch_kernel(extend_portable_kernel<FK, FV, DK, DV, FINE>, a.ctas, PORTABLE_THREADS, P::BYTES, stream, a);
	return launched();
}

template <int FK, int FV, int DK, int DV> enum status extend_portable_dims(const extend_args &a, cudaStream_t stream)
{
	enum status status = extend_portable_one<FK, FV, DK, DV, false>(a, stream);

	if constexpr (format_fine(FK))
		if (status == STATUS_OK)
			status = extend_portable_one<FK, FV, DK, DV, true>(a, stream);
	return status;
}

/* For any head dims built. */
template <int FK, int FV> enum status extend_portable(const extend_args &a, head_dims d, cudaStream_t stream)
{
#define EXTEND_PORTABLE(DK, DV) \
	if (d.k == DK && d.v == DV) \
		return extend_portable_dims<FK, FV, DK, DV>(a, stream);
	ATTEND_DIMS(EXTEND_PORTABLE)
#undef EXTEND_PORTABLE
	return STATUS_UNSUPPORTED;
}

#endif
