/* The kernel of extend. 4 warps make tiles of the prefix out of packed atoms, or fetch those of the new tokens;
 * meanwhile two warpgroups multiply.
 *
 * A tile serves all rows of the CTA, up to 256. Each warpgroup has one or two blocks of 64 rows; of a fine unit whose
 * queries leave no room for tiles, one block in each of two passes over the unit's tokens. The warpgroups take
 * turns. In its turn a warpgroup multiplies the weights of its last block by V and the next block's queries by K. Then
 * it hands the turn on and makes weights of the scores: so one warpgroup's exponentials run during the other's
 * products. Weights are halves between 2^-24 and 2^15. When a score would not fit, their exponent is moved, and the
 * sums with it; that is rare once the first tokens have been seen.
 */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_KERNEL_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_KERNEL_CUH

#include "kernels/cuda/extend_weigh.cuh"

constexpr uint32_t ROLE_PRODUCERS = 5; /* named barrier of the decoding warps; those of turns and groups are 1 to 4 */

/* The decoding side: warp `warp` of EXTEND_PRODUCERS. */
template <int FK, int FV, int DK, int DV, bool FINE> struct producer {
	using S = extend_shape<FK, FV, DK, DV, FINE>;
	const extend_args &a;
	uint32_t base, lane, warp, ring, ring_barriers;
	uint32_t tile = 0, taken = 0; /* tiles so far, of all parts; stages of the ring */
	uint64_t block = 0; /* of the lane's atom of the next load; 0: none. Not looked at before */
	uint32_t in_block = 0;

	DEVICE uint32_t pair() const
	{
		return S::BOTH_SIDES ? warp : warp % S::PAIRS;
	}

	DEVICE bool does_k() const
	{
		return S::BOTH_SIDES || warp < S::PAIRS;
	}

	DEVICE bool does_v() const
	{
		return S::BOTH_SIDES || warp >= S::PAIRS;
	}

	DEVICE uint32_t bytes() const
	{
		return S::BOTH_SIDES ? S::K_SIDE + S::V_SIDE : does_k() ? S::K_SIDE : S::V_SIDE;
	}

	/* Lanes 0 and 1 have an atom each. `least`, of a unit's first tile: the first atom that a query sees, which
	 * comes in the place of those before it: they are masked, and so finite. */
	DEVICE void look_up(const extend_part &p, uint32_t prefix_tile, uint32_t least = 0)
	{
		const uint32_t atom = max((prefix_tile * S::PAIRS + pair()) * 2 + lane, least);

		block = 0;
		if (lane >= 2 || atom * KV_ATOM_TOKENS >= p.span.prefix)
			return;
		const uint32_t index = block_of(a, atom);

		in_block = p.head * a.chunk_bytes +
			   (atom - index * a.block_atoms) * (S::K_SIDE + S::V_SIDE) +
			   (does_k() ? 0 : S::K_SIDE);
		block = a.blocks[(size_t)p.tile.sequence * a.blocks_stride + index];
	}

	/* The span's, made anew: kept for the producers, it costs the kernel registers. */
	DEVICE uint32_t first_atom(const extend_part &p) const
	{
		const uint32_t first = p.span.prefix + p.span.first_query + 1;

		return a.window >= first ? 0 : (first - a.window) / KV_ATOM_TOKENS;
	}

	/* Starts to load what was looked up into the stage of load number `number`. */
	DEVICE void load(uint32_t number)
	{
		const uint32_t stage = number % S::RING_STAGES;
		const uint32_t atoms = __popc(__ballot_sync(ALL_LANES, block != 0));

		if (lane == 0)
			barrier_expect(ring_barriers + stage * 8, atoms * bytes());
		__syncwarp();
		if (block)
			bulk_load(ring + stage * S::RING + lane * bytes(), block + a.layer_at + in_block,
				  bytes(), ring_barriers + stage * 8);
	}

	/* ALL: each lane arrives. */
	template <bool ALL> DEVICE void publish(uint32_t full)
	{
		stores_to_async();
		__syncwarp();
		if (ALL || lane == 0)
			barrier_arrive(full);
	}

	DEVICE uint32_t barrier(uint32_t index) const
	{
		return base + S::BARRIERS_AT + index * 8;
	}

	DEVICE void prefix_tile(uint32_t first_token, uint32_t tokens, float inverse_k, float inverse_v)
	{
		const uint32_t stage = tile % S::TILE_STAGES, parity = tile / S::TILE_STAGES % 2;
		const uint32_t slot = ring + taken % S::RING_STAGES * S::RING,
			       first = first_token + pair() * 32;

		barrier_wait(ring_barriers + taken % S::RING_STAGES * 8, taken / S::RING_STAGES % 2);
		if (does_k()) {
			const uint32_t to = base + S::K_AT + stage * S::K_TILE + pair() * 32 * 128;

			barrier_wait(barrier(S::K_EMPTY + stage), parity ^ 1);
#pragma unroll 1
			for (uint32_t atom = 0; atom < 2; atom++)
				decode_k<FK, DK, S::CROSSED, S::TOKENS, FINE>(
					slot + atom * bytes(), lane, first + 16 * atom, tokens, inverse_k, to,
					base + S::SCALES_AT + (stage * S::TOKENS + pair() * 32) * 4, atom);
			publish<FINE>(barrier(S::K_FULL + stage));
		}
		if (does_v()) {
			const uint32_t to = base + S::V_AT + stage * S::V_TILE + pair() / 2 * DV * 128;

			barrier_wait(barrier(S::V_EMPTY + stage), parity ^ 1);
			decode_v<FV, DV>(slot + (S::BOTH_SIDES ? S::K_SIDE : 0), bytes(), lane, first,
					tokens, inverse_v, to, pair() % 2);
			publish<false>(barrier(S::V_FULL + stage));
		}
	}

	/* A tile of the new tokens is in memory as it is wanted: one lane fetches it. */
	template <bool ALL> DEVICE void fetch(uint32_t full, uint32_t empty, uint32_t stage, uint32_t parity, bool first_warp, uint32_t to,
			  const uint8_t *from, uint32_t size)
	{
		barrier_wait(barrier(empty + stage), parity ^ 1);
		if (lane == 0 && first_warp) {
			barrier_expect(barrier(full + stage), size);
			bulk_load(to, (uint64_t)from, size, barrier(full + stage));
		} else if (ALL || lane == 0) {
			barrier_arrive(barrier(full + stage));
		}
		__syncwarp();
	}

	DEVICE void own_tile(const extend_part &p, uint32_t own_tile)
	{
		const uint32_t stage = tile % S::TILE_STAGES, parity = tile / S::TILE_STAGES % 2;
		const uint32_t first = a.query_starts[p.tile.sequence] / S::OWN_TOKENS + p.tile.sequence;
		const size_t image = (size_t)(first + own_tile) * a.heads + p.head;

		/* What the decoding warps stored in the stages is before the copies, as in forget_copies. */
		role_barrier(ROLE_PRODUCERS, 32 * S::ACTIVE);
		if (does_k())
			fetch<FINE>(S::K_FULL, S::K_EMPTY, stage, parity, warp == 0, base + S::K_AT + stage * S::K_TILE,
			      (FINE ? a.k_fine : a.k_images) + image * S::K_TILE, S::K_TILE);
		if (does_v())
			fetch<false>(S::V_FULL, S::V_EMPTY, stage, parity, warp == (S::BOTH_SIDES ? 0 : S::PAIRS),
			      base + S::V_AT + stage * S::V_TILE, (FINE ? a.v_fine : a.v_images) + image * S::V_TILE, S::V_TILE);
	}

	/* Before a part: bulk copies of new tokens that filled the stages are over. They are, where the stages are
	 * empty; this shows it to compute-sanitizer, which sees no order that other warps hand on. */
	DEVICE void forget_copies() const
	{
#pragma unroll
		for (uint32_t i = 0; i < S::TILE_STAGES; i++) {
			const uint32_t stage = (tile + i) % S::TILE_STAGES, parity = (tile + i) / S::TILE_STAGES % 2;

			if (does_k()) /* the other side's phases may be ahead */
				barrier_wait(barrier(S::K_FULL + stage), parity ^ 1);
			if (does_v())
				barrier_wait(barrier(S::V_FULL + stage), parity ^ 1);
		}
	}

	/* Those of pass `pass`: a block of each warpgroup, or all at once. `number`: of all passes so far. */
	DEVICE void queries(const extend_part &p, uint32_t number, uint32_t pass)
	{
		constexpr uint32_t PIECES = S::PASSES > 1 ? EXTEND_GROUPS : 1, BYTES = S::QUERIES / PIECES;

		barrier_wait(barrier(S::Q_EMPTY), number % 2 ^ 1);
		if (warp == 0 && lane == 0) {
			barrier_expect(barrier(S::Q_FULL), (S::TWO_HALVES ? 2 : 1) * S::QUERIES);
#pragma unroll
			for (uint32_t i = 0; i < PIECES; i++) {
				const size_t at = (size_t)p.unit * q_image_bytes(DK, DV) + (i * S::PASSES + pass) * BYTES;

				bulk_load(base + S::Q_AT + i * BYTES, (uint64_t)(a.q_images + at), BYTES, barrier(S::Q_FULL));
				if (S::TWO_HALVES)
					bulk_load(base + S::Q_REST_AT + i * BYTES, (uint64_t)(a.q_rests + at), BYTES,
						  barrier(S::Q_FULL));
			}
		}
		__syncwarp();
	}

	DEVICE void run_pass(const extend_part &p, uint32_t number, uint32_t pass, float inverse_k, float inverse_v)
	{
		const uint32_t prefix_to = min(p.to, p.span.prefix_steps), first = p.span.first_tile;
		uint32_t loaded = p.from;

		look_up(p, first + loaded, first_atom(p));
		for (uint32_t i = 0; i < S::RING_STAGES && loaded < prefix_to; i++) {
			load(taken + i);
			loaded++;
			look_up(p, first + loaded);
		}
		queries(p, number, pass);
		forget_copies();
		for (uint32_t step = p.from; step < p.to; step++, tile++) {
			if (step >= p.span.prefix_steps) {
				own_tile(p, p.span.first_own + step - p.span.prefix_steps);
				continue;
			}
			prefix_tile((first + step) * S::TOKENS, p.span.prefix, inverse_k, inverse_v);
			__syncwarp();
			if (lane == 0)
				forget_shared(ring + taken % S::RING_STAGES * S::RING, S::RING);
			if (loaded < prefix_to) {
				load(taken + S::RING_STAGES);
				loaded++;
				look_up(p, first + loaded);
			}
			taken++;
		}
	}

	DEVICE void run(uint32_t x, uint32_t end)
	{
		for (uint32_t number = 0; x < end; number++) {
			extend_part p;

			x = part_at<S>(a, x, end, &p);
			const float inverse_k = 1 / side_unit(a, p.tile.sequence, p.head, KV_SIDE_K),
				    inverse_v = 1 / side_unit(a, p.tile.sequence, p.head, KV_SIDE_V);

			for (uint32_t pass = 0; pass < S::PASSES; pass++)
				run_pass(p, number * S::PASSES + pass, pass, inverse_k, inverse_v);
		}
	}
};

/* The multiplying side: warpgroup `group`. */
template <int FK, int FV, int DK, int DV, bool FINE> struct consumer : extend_block<FK, FV, DK, DV, FINE> {
	using rows = extend_block<FK, FV, DK, DV, FINE>;
	using typename rows::S, typename rows::row_state;
	using rows::SCORES, rows::SPLIT, rows::WIDTH;
	using rows::a, rows::lane, rows::warp, rows::group;
	using rows::adjust, rows::begin, rows::plain, rows::prepare, rows::refine, rows::weigh, rows::write;
	uint32_t base;
	extend_part *part_room; /* in shared memory, a group each: registers are short */
	uint32_t tile = 0;      /* tiles so far, of all parts */

	DEVICE uint32_t barrier(uint32_t index) const
	{
		return base + S::BARRIERS_AT + index * 8;
	}

	DEVICE void release(uint32_t index) const
	{
		if (lane == 0)
			barrier_arrive(barrier(index));
	}

	DEVICE void take_turn() const
	{
		role_barrier(1 + group, 128 * EXTEND_GROUPS);
	}

	/* Takes the turn once p is ready. The assembler would otherwise compute p during the turn, while no warpgroup
	 * multiplies. So the barrier's number is made to depend on p, by a term that is 0. */
	DEVICE void take_turn(const uint32_t (&p)[SCORES / 2]) const
	{
		uint32_t all = 0;

#pragma unroll
		for (int i = 0; i < SCORES / 2; i++)
			all |= p[i];
		role_barrier(1 + group + (all & (minus_one() + 1)), 128 * EXTEND_GROUPS);
	}

	DEVICE void pass_turn() const
	{
		role_barrier_arrive(2 - group, 128 * EXTEND_GROUPS);
	}

	/* scores = Q K^T for block `block` of the group, tile number `number`. */
	DEVICE void score(float (&s)[SCORES], uint32_t block, uint32_t number) const
	{
		const uint32_t q = panel_descriptor(base + S::Q_AT +
						    (group * S::AT_ONCE + block) * S::PANELS *
							    S::QUERY_BLOCK),
			       k = panel_descriptor(base + S::K_AT +
						    number % S::TILE_STAGES * S::K_TILE);

		products_begin();
#pragma unroll
		for (uint32_t i = 0; i < DK / 16; i++)
			product<S::TOKENS>::shared(s, q + (i / 4 * S::QUERY_BLOCK + i % 4 * 32) / 16,
						   k + (i / 4 * S::TOKENS * 128 + i % 4 * 32) / 16,
						   i > 0);
		if constexpr (S::TWO_HALVES)
#pragma unroll
			for (uint32_t i = 0; i < DK / 16; i++)
				product<S::TOKENS>::shared(
					s, q + (S::Q_REST_AT - S::Q_AT + i / 4 * S::QUERY_BLOCK + i % 4 * 32) / 16,
					k + (i / 4 * S::TOKENS * 128 + i % 4 * 32) / 16, 1);
		products_commit();
	}

	/* o += P V, tile number `number`. */
	DEVICE void accumulate(float (&o)[SPLIT][WIDTH / 2], const uint32_t (&p)[SCORES / 2],
			       uint32_t number) const
	{
		const uint32_t v =
			panel_descriptor(base + S::V_AT + number % S::TILE_STAGES * S::V_TILE);

		products_begin();
#pragma unroll
		for (uint32_t i = 0; i < S::TOKENS / 16; i++)
#pragma unroll
			for (uint32_t part = 0; part < SPLIT; part++)
				product<WIDTH>::fragment(
					o[part], p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3],
					v + (i / 4 * DV * 128 + part * WIDTH * 128 + i % 4 * 32) / 16);
		products_commit();
	}

	/* The pass's block `block` among all of the group's. */
	static DEVICE constexpr uint32_t block_of_pass(uint32_t pass, uint32_t block)
	{
		return pass * S::AT_ONCE + block;
	}

	/* The lane's first row of it in the unit. */
	DEVICE uint32_t first_row(uint32_t in_group) const
	{
		return (group * S::BLOCKS + in_group) * 64 + warp * 16 + lane / 4;
	}

	/* One block's item of a step: after `before`, in the turn, its scores; outside it, weights. `weighed`: p has
	 * been made since the loop began again, behind which nothing of it is left over. */
	template <class Before>
	DEVICE void item(const extend_part &x, uint32_t step, uint32_t pass, uint32_t block, float (&s)[SCORES],
			 uint32_t (&p)[SCORES / 2], float (&o)[SPLIT][WIDTH / 2], row_state &r,
			 bool weighed, Before before)
	{
		if (block == 0)
			barrier_wait(barrier(S::K_FULL + tile % S::TILE_STAGES),
				     tile / S::TILE_STAGES % 2);
		if (block == 1 || (S::AT_ONCE == 1 && step > x.from)) {
			const uint32_t number =
				tile + block - 1; /* of the tile whose V `before` wants */

			barrier_wait(barrier(S::V_FULL + number % S::TILE_STAGES),
				     number / S::TILE_STAGES % 2);
		}
		if (weighed)
			take_turn(p);
		else
			take_turn();
		before();
		score(s, block, tile);
		pass_turn();

		const uint32_t in_group = block_of_pass(pass, block);
		const float *units = a.q_units + (size_t)x.unit * S::ROWS + first_row(in_group);
		const bool as_it_is = plain(x, step, in_group);
		float scale[2] = {__ldg(units), __ldg(units + 8)}; /* kept in no register meanwhile */

		products_wait();
		registers_pinned(s);
		if constexpr (FINE) {
			refine(s, step >= x.span.prefix_steps,
			       base + S::SCALES_AT + tile % S::TILE_STAGES * S::TOKENS * 4);
			if (block == S::AT_ONCE - 1)
				barrier_arrive(barrier(S::K_EMPTY + tile % S::TILE_STAGES));
		} else if (block == S::AT_ONCE - 1) {
			release(S::K_EMPTY + tile % S::TILE_STAGES);
		}

		if (!as_it_is) {
			adjust(s, x, step, first_row(in_group), scale);
			scale[0] = scale[1] = 1;
		}
		weigh(s, p, o, r, scale, x.tile.reach);
	}

	/* The weights in p times V of tile `number`. */
	DEVICE void finish(float (&o)[SPLIT][WIDTH / 2], const uint32_t (&p)[SCORES / 2], uint32_t block,
			   uint32_t number)
	{
		accumulate(o, p, number);
		products_wait();
#pragma unroll
		for (int part = 0; part < SPLIT; part++)
			registers_pinned(o[part]);
		if (block == S::AT_ONCE - 1)
			release(S::V_EMPTY + number % S::TILE_STAGES);
	}

	/* `number`: of all passes so far. */
	DEVICE void part(const extend_part &x, uint32_t number, uint32_t pass)
	{
		float s[SCORES], o[S::AT_ONCE][SPLIT][WIDTH / 2];
		uint32_t p[SCORES / 2];
		row_state r[S::AT_ONCE];

#pragma unroll
		for (uint32_t block = 0; block < S::AT_ONCE; block++)
			begin(o[block], r[block]);
		barrier_wait(barrier(S::Q_FULL), number % 2);
		for (uint32_t step = x.from; step < x.to; step++, tile++) {
			item(x, step, pass, 0, s, p, o[0], r[0], false, [&] {
				if (step > x.from)
					finish(o[S::AT_ONCE - 1], p, S::AT_ONCE - 1, tile - 1);
			});
			if constexpr (S::AT_ONCE == 2)
				item(x, step, pass, 1, s, p, o[1], r[1], true, [&] { finish(o[0], p, 0, tile); });
		}
		release(S::Q_EMPTY);
		if (S::AT_ONCE == 1)
			barrier_wait(barrier(S::V_FULL + (tile - 1) % S::TILE_STAGES),
				     (tile - 1) / S::TILE_STAGES % 2);
		take_turn();
		finish(o[S::AT_ONCE - 1], p, S::AT_ONCE - 1, tile - 1);
		pass_turn();
#pragma unroll
		for (uint32_t block = 0; block < S::AT_ONCE; block++)
			write(x, block_of_pass(pass, block), o[block], r[block]);
	}

	DEVICE void run(uint32_t x, uint32_t end)
	{
		if (group == 1)
			pass_turn(); /* the first is the other's */
		for (uint32_t number = 0; x < end; number++) {
			role_barrier(3 + group, 128); /* all are done with the last part */
			const uint32_t from = x;

			x = part_end<S>(a, from, end);
			if (warp == 0 && lane == 0)
				prepare(from, end, &part_room[group]);
			role_barrier(3 + group, 128);
			for (uint32_t pass = 0; pass < S::PASSES; pass++)
				part(part_room[group], number * S::PASSES + pass, pass);
		}
		if (group == 0)
			take_turn(); /* of no warp: leaves the barriers as they were */
	}
};

/* How many arrive at a barrier: a lane of each warp; but at those of fine keys all, since scales are written and read
 * by lanes, not by products, and compute-sanitizer sees no order that one lane makes for others. */
template <class S> DEVICE uint32_t arrivals(uint32_t barrier)
{
	const uint32_t lanes = S::FINE && barrier < S::V_FULL ? 32 : 1;

	return barrier == S::Q_FULL || barrier >= S::RING_FULL		? 1
	       : barrier == S::Q_EMPTY || barrier / 2 % 2 == 1 ? 4 * EXTEND_GROUPS * lanes
							       : S::SIDE_WARPS * lanes;
}

template <int FK, int FV, int DK, int DV, bool FINE>
__global__ void __launch_bounds__(EXTEND_THREADS, 1) extend_kernel(const __grid_constant__ extend_args a)
{
	using S = extend_shape<FK, FV, DK, DV, FINE>;

	if (FINE && a.lines[FINE][a.units].begin == 0)
		return; /* mostly */
	DYNAMIC_SHARED(uint8_t, shared, 1024);
	const uint32_t base = shared_address(shared), warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	if (threadIdx.x == 0) {
		const uint32_t barriers = base + S::BARRIERS_AT;

		for (uint32_t i = 0; i < S::BARRIERS; i++)
			barrier_init_count(barriers + i * 8, arrivals<S>(i));
		barrier_init_fence();
	}
	__syncthreads();

	const uint32_t from = a.cuts[FINE][blockIdx.x], to = a.cuts[FINE][blockIdx.x + 1];

	if (warp < EXTEND_PRODUCERS) {
		registers_less<S::PRODUCER_REGISTERS>();
		producer<FK, FV, DK, DV, FINE> p = {a,
					 base,
					 lane,
					 warp,
					 base + S::RING_AT + warp * S::RING_STAGES * S::RING,
					 base + S::BARRIERS_AT +
						 (S::RING_FULL + warp * S::RING_STAGES) * 8};

		if (warp < S::ACTIVE)
			p.run(from, to);
	} else {
		registers_more<S::CONSUMER_REGISTERS>();
		consumer<FK, FV, DK, DV, FINE> c = {{a, lane, warp % 4, (warp - EXTEND_PRODUCERS) / 4},
					 base,
					 (extend_part *)(shared + S::PARTS_AT)};

		c.run(from, to);
	}
}

#endif
