/* The fast path of decode.cu for rotated formats. The codes of two heads are loaded by asynchronous copies, one unit
 * ahead, and their addresses two units ahead. The tensor cores do the rotation within 32 dims, and additions do it
 * across them (decode_lane.cuh). The elements go straight from registers to their rows, 16 bytes a lane.
 */
#include "kernels/cuda/decode_tile.cuh"

#include "kernels/cuda/codec_atom.cuh"
#include "kernels/cuda/codec_loose.cuh"
#include "kernels/cuda/decode_lane.cuh"

namespace
{

constexpr uint32_t WARPS = 12, HEADS = 2; /* with 168 registers a lane; heads of a unit */

/* Shared memory of a warp: codes and scales of the atoms of two units, rows of codes of one atom. */
template <int D, int FORMAT> struct atom_shape {
	static constexpr uint32_t BITS = format_bits(FORMAT), CODES = KV_ATOM_TOKENS * D * BITS / 8,
				  SCALES = KV_ATOM_TOKENS * format_scale_bytes(FORMAT), ATOM = CODES + SCALES,
				  STAGE = HEADS * ATOM;
	static constexpr uint32_t PITCH = row_shape<D, BITS>::PITCH, ROWS_AT = 2 * STAGE,
				  BYTES = ROWS_AT + KV_ATOM_TOKENS * PITCH;
	static constexpr uint32_t MASK_PITCH = D / 2 + 16, MASKS_AT = WARPS * BYTES,
				  COUNTER_AT = MASKS_AT + 8 * MASK_PITCH,
				  SHARED = COUNTER_AT + 16; /* masks of both sides, by lane % 4 */
};

/* Asks for codes and scales of a unit whose atoms are whole. */
template <int D, int FORMAT>
DEVICE void fetch_unit(const atom_launch &l, const atom_unit &u, const atom_place &p, uint32_t lane, uint32_t to)
{
	using shape = atom_shape<D, FORMAT>;
	const codec_side &side = l.sides[u.side];
	uint64_t atom = __shfl_sync(ALL_LANES, p.atom, 0) + (uint64_t)u.head * l.args.chunk_bytes;

	if (!p.whole())
		return;
#pragma unroll
	for (uint32_t h = 0; h < HEADS; h++) {
		if (u.head + h >= l.args.heads)
			break;
#pragma unroll
		for (uint32_t at = 0; at < shape::CODES; at += 512)
			if (shape::CODES % 512 == 0 || at + lane * 16 < shape::CODES)
				async_load_16(to + h * shape::ATOM + at + lane * 16,
					      atom + side.codes_at + lane * 16 + at);
		if (lane < shape::SCALES / 16)
			async_load_16(to + h * shape::ATOM + shape::CODES + lane * 16,
				      atom + side.scales_at + lane * 16);
		atom += l.args.chunk_bytes;
	}
}

/* An atom's codes and scales token by token, from wherever they are, to rows; a row's scale stands behind it. */
template <int D, int FORMAT, enum kv_side SIDE>
__device__ __noinline__ void load_scattered(const codec_side &s, const loose_tokens all, uint32_t lane, uint8_t *rows)
{
	using shape = row_shape<D, format_bits(FORMAT)>;

	if (lane < KV_ATOM_TOKENS && (all.placed >> lane & 1)) {
		const uint8_t *const scales = (const uint8_t *)all.atom + s.scales_at;

		*(uint32_t *)(rows + lane * shape::PITCH + shape::BYTES) =
			FORMAT == KV_INT4_PTH ? ((const uint32_t *)scales)[scale_entry(all.in_atom)]
					      : ((const uint16_t *)scales)[scale_entry(all.in_atom)];
	}
	load_loose<D, format_bits(FORMAT), SIDE>(all, s.codes_at, rows, lane);
}

/* Words of tokens g and g + 8 for operand A from a whole atom of K in shared memory: as they stand. */
template <int D, int FORMAT> DEVICE void load_k(const uint8_t *codes, uint32_t lane, operand<D, FORMAT> (&row)[2])
{
	using shape = row_shape<D, format_bits(FORMAT)>;
	constexpr uint32_t N = D * shape::W / 64;
	uint32_t in[N];

	load_lane_words<N>(codes, lane, in);
#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		row[i % 2].word[i / 2] = in[i];
	if constexpr (shape::PLANES == 2) {
		uint32_t signs[2];

		load_lane_words<2>(codes + shape::SECOND_AT, lane, signs);
		row[0].signs = signs[0];
		row[1].signs = signs[1];
	}
}

/* Loads the operand by way of rows, and the two scales. */
template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void load_operand(const codec_side &side, const atom_place &p, uint64_t head_at, const uint8_t *codes,
			 uint8_t *rows, uint32_t lane, operand<D, FORMAT> (&row)[2], uint32_t (&scale)[2])
{
	using shape = row_shape<D, format_bits(FORMAT)>;
	using first = plane_row<D, shape::W, SIDE>;
	const uint32_t g = lane / 4, t = lane % 4;

	if (p.whole()) {
		const uint8_t *const scales = codes + atom_shape<D, FORMAT>::CODES;

		if (FORMAT == KV_INT4_PTH) {
			scale[0] = ((const uint32_t *)scales)[2 * g];
			scale[1] = ((const uint32_t *)scales)[2 * g + 1];
		} else {
			scale[0] = ((const uint16_t *)scales)[2 * g];
			scale[1] = ((const uint16_t *)scales)[2 * g + 1];
		}
		if constexpr (SIDE == KV_SIDE_K) {
			load_k(codes, lane, row);
			return;
		}
		whole_plane<first, SIDE>::load(rows, shape::PITCH, lane, codes);
		if constexpr (shape::PLANES == 2)
			whole_plane<plane_row<D, 1, SIDE>, SIDE>::load(rows + first::BYTES, shape::PITCH, lane,
								       codes + shape::SECOND_AT);
		__syncwarp();
	} else {
		load_scattered<D, FORMAT, SIDE>(side, {p.atom + head_at, p.in_atom, p.placed, 0}, lane, rows);
		__syncwarp();
		scale[0] = *(const uint32_t *)(rows + g * shape::PITCH + shape::BYTES);
		scale[1] = *(const uint32_t *)(rows + (g + 8) * shape::PITCH + shape::BYTES);
	}
	row[0].template load<SIDE>(rows + g * shape::PITCH, t);
	row[1].template load<SIDE>(rows + (g + 8) * shape::PITCH, t);
}

/* Both tokens' elements from operand A, to the lane's places in their rows. `word`, `masks`: decode_lane.cuh. */
template <int D, int FORMAT, enum kv_side SIDE, bool F16>
DEVICE void rotate_and_store(const uint32_t (&low)[D / 16], const uint32_t (&high)[D / 16],
			     const uint32_t (&scale_bits)[2], const uint32_t (&word)[8], uint32_t masks,
			     uint32_t lane, uint8_t *const (&to)[2], const bool (&wanted)[2])
{
	using R = rotation<D, format_bits(FORMAT), SIDE>;
	float scale[2], less[2];
	int32_t same[2];

#pragma unroll
	for (uint32_t i = 0; i < 2; i++) {
		scale[i] = (FORMAT == KV_INT4_PTH ? __uint_as_float(scale_bits[i] & ~15u)
						  : __half2float(__ushort_as_half((uint16_t)scale_bits[i]))) /
			   D;
		less[i] = -MAGIC * scale[i]; /* exact, for scales have 20 bits or fewer: then all is rounded once */
		/* dim 0 alone sums up what is the same in all codes: D zero points too many, or D halves too few */
		same[i] = lane % 4 ? 0 : FORMAT == KV_INT4_PTH ? -(int32_t)(scale_bits[i] & 15) * D : D / 2;
	}
#pragma unroll
	for (uint32_t part = 0; part < R::PARTS; part++) {
		constexpr uint32_t TILES = R::TILES / R::PARTS, PIECES = D / 32 / R::PARTS;
		uint32_t packed[PIECES][2][4];

#pragma unroll
		for (uint32_t n = part * TILES; n < (part + 1) * TILES; n++) {
			int32_t c[R::STEPS][4];

#pragma unroll
			for (uint32_t s = 0; s < R::STEPS; s++) {
#pragma unroll
				for (uint32_t k = 0; k < 4; k++)
					c[s][k] = 0;
				mma_ss(c[s], low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1], word[2 * n],
				       word[2 * n + 1]);
			}
			R::across(c);
			if (n == 0) {
				c[0][0] += same[0];
				c[0][2] += same[1];
			}
#pragma unroll
			for (uint32_t piece = 0; piece < PIECES; piece++)
#pragma unroll
				for (uint32_t w = 0; w < 4; w++) {
					const uint32_t p = part * PIECES + piece;
					const auto a = R::place(p, 2 * w),
						   b = R::place(p, 2 * w + 1); /* of one tile */

					if (a.tile != n)
						continue;
#pragma unroll
					for (uint32_t i = 0; i < 2; i++)
						packed[piece][i][w] = pack_two<F16>(
							__fmaf_rn(__int_as_float(c[a.step][2 * i + a.column]),
								  scale[i], less[i]),
							__fmaf_rn(__int_as_float(c[b.step][2 * i + b.column]),
								  scale[i], less[i]));
				}
		}
#pragma unroll
		for (uint32_t piece = 0; piece < PIECES; piece++) {
			const uint32_t p = part * PIECES + piece;
			const uint4 mask = load_shared_16(masks + p * 16);

#pragma unroll
			for (uint32_t i = 0; i < 2; i++) {
				const uint32_t(&w)[4] = packed[piece][i];

				if (wanted[i])
					__stcs((uint4 *)(to[i] + R::piece_at(p) * 2),
					       make_uint4(w[0] ^ mask.x, w[1] ^ mask.y, w[2] ^ mask.z,
							  w[3] ^ mask.w));
			}
		}
	}
}

/* From the rows of tokens `token` and 8 on to those that the call names. */
DEVICE void to_rows(const atom_launch &l, const codec_side &side, uint32_t token, bool (&wanted)[2], uint8_t *(&to)[2])
{
#pragma unroll
	for (uint32_t i = 0; i < 2; i++) {
		const uint32_t own = token + 8 * i;
		const int64_t row = wanted[i] ? l.args.rows[own] : -1;

		wanted[i] = row >= 0;
		to[i] += (row - own) * 2 * (int64_t)side.stride;
	}
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void decode_unit(const atom_launch &l, const atom_unit &u, const atom_place &p, uint32_t lane,
			const uint8_t *stage, uint8_t *rows, const uint32_t (&word)[8], uint32_t masks)
{
	using R = rotation<D, format_bits(FORMAT), SIDE>;
	const codec_side &side = l.sides[SIDE];
	const uint32_t g = lane / 4, token = u.atom * KV_ATOM_TOKENS + g;
	bool wanted[2] = {(p.placed >> g & 1) != 0, (p.placed >> (g + 8) & 1) != 0};
	uint8_t *to[2] = {
		(uint8_t *)((uint16_t *)side.vectors + token * side.stride + u.head * D + R::lane_at(lane % 4)),
		nullptr};

	to[1] = to[0] + 16 * side.stride;
	if (l.args.rows)
		to_rows(l, side, token, wanted, to);
#pragma unroll 1
	for (uint32_t h = 0; h < HEADS && u.head + h < l.args.heads; h++) {
		uint32_t scale[2], low[D / 16], high[D / 16];
		operand<D, FORMAT> row[2];

		load_operand<D, FORMAT, SIDE>(side, p, (uint64_t)(u.head + h) * l.args.chunk_bytes,
					      stage + h * atom_shape<D, FORMAT>::ATOM, rows, lane, row, scale);
		row[0].template values<SIDE>(low);
		row[1].template values<SIDE>(high);
		if (l.args.dtype == KV_DTYPE_F16)
			rotate_and_store<D, FORMAT, SIDE, true>(low, high, scale, word, masks, lane, to, wanted);
		else
			rotate_and_store<D, FORMAT, SIDE, false>(low, high, scale, word, masks, lane, to, wanted);
		to[0] += D * 2;
		to[1] += D * 2;
		__syncwarp(); /* the rows are free again */
	}
}

/* The masks of both sides to shared memory. */
template <int D, int FORMAT> DEVICE void make_masks(uint8_t *masks)
{
	for (uint32_t i = threadIdx.x; i < 8 * D / 8; i += 32 * WARPS) {
		const uint32_t side = i / (D / 2), t = i / (D / 8) % 4, w = i % (D / 8);

		*(uint32_t *)(masks + (side * 4 + t) * atom_shape<D, FORMAT>::MASK_PITCH + w * 4) =
			side == KV_SIDE_K ? rotation<D, format_bits(FORMAT), KV_SIDE_K>::mask(t, w)
					  : rotation<D, format_bits(FORMAT), KV_SIDE_V>::mask(t, w);
	}
}

template <int D, int FORMAT>
__global__ void __launch_bounds__(32 * WARPS, 1) decode_atoms_kernel(const __grid_constant__ atom_launch l)
{
	using shape = atom_shape<D, FORMAT>;
	constexpr uint32_t BITS = format_bits(FORMAT);
	DYNAMIC_SHARED(uint8_t, shared, 16);
	const uint32_t lane = threadIdx.x % 32, warp = same_in_all(threadIdx.x / 32), count = units_here(l),
		       counter = shared_address(shared + shape::COUNTER_AT);
	uint8_t *const mine = shared + warp * shape::BYTES;
	uint32_t buffer = 0, side = ~0u, next_i = warp + WARPS, later_i = warp + 2 * WARPS;
	uint32_t word[8];

	if (threadIdx.x == 0)
		*(uint32_t *)(shared + shape::COUNTER_AT) = 3 * WARPS; /* each warp begins with three */
	make_masks<D, FORMAT>(shared + shape::MASKS_AT);
	__syncthreads();
	begin_after_previous();
	if (warp >= count)
		return;
	const auto unit_at = [&](uint32_t i) { return unit_of<HEADS>(l, min(i, count - 1)); };
	const auto slot_at = [&](uint32_t i) { return unit_slot(l, unit_at(i), lane); };
	atom_place now_at = look_up(l, slot_at(warp), lane).place(),
		   next_at = look_up(l, slot_at(next_i), lane).place();
	int64_t slot = slot_at(later_i);

	atom_unit now = unit_at(warp);

	fetch_unit<D, FORMAT>(l, now, now_at, lane, shared_address(mine));
	async_close_group();
	for (;;) {
		const atom_unit next = unit_at(next_i);

		if (next_i < count)
			fetch_unit<D, FORMAT>(l, next, next_at, lane, shared_address(mine) + (shape::STAGE - buffer));
		async_close_group();
		const atom_looked_up later_at = look_up(l, slot, lane);
		const uint32_t last_i = take_unit(counter, lane);

		slot = slot_at(last_i);
		async_wait<1>();
		__syncwarp();
		if (side != now.side) {
			if (now.side == KV_SIDE_K)
				rotation<D, BITS, KV_SIDE_K>::words(lane, word);
			else
				rotation<D, BITS, KV_SIDE_V>::words(lane, word);
		}
		side = now.side;
		const uint32_t masks =
			shared_address(shared + shape::MASKS_AT) + (side * 4 + lane % 4) * shape::MASK_PITCH;

		if (now_at.placed) {
			if (side == KV_SIDE_K)
				decode_unit<D, FORMAT, KV_SIDE_K>(l, now, now_at, lane, mine + buffer,
								  mine + shape::ROWS_AT, word, masks);
			else
				decode_unit<D, FORMAT, KV_SIDE_V>(l, now, now_at, lane, mine + buffer,
								  mine + shape::ROWS_AT, word, masks);
		}
		__syncwarp(); /* the stage is free again */
		if (next_i >= count)
			break;
		now = next;
		now_at = next_at;
		next_at = later_at.place();
		next_i = later_i;
		later_i = last_i;
		buffer = shape::STAGE - buffer;
	}
}

template <int D, int FORMAT> bool launch(const codec_work &w)
{
	if constexpr (operand_suits<D, FORMAT>) {
		using shape = atom_shape<D, FORMAT>;
		const atom_launch l = atom_launch_of<HEADS>(w);
		const uint32_t sms = multiprocessors();

		if (!sms ||
		    cudaFuncSetAttribute(decode_atoms_kernel<D, FORMAT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
					 shape::SHARED) != cudaSuccess) {
			cudaGetLastError(); /* the device has too little; the other kernel's launch is not to be blamed
					     * for it */
			return false;
		}
		launch_early(decode_atoms_kernel<D, FORMAT>, l.all < sms ? l.all : sms, 32 * WARPS, shape::SHARED,
			      w.stream, l);
		return true;
	} else {
		return false;
	}
}

template <int D> bool launch_format(enum kv_format f, const codec_work &w)
{
	switch (f) {
	case KV_INT4_PTH:
		return launch<D, KV_INT4_PTH>(w);
	case KV_TQ4:
		return launch<D, KV_TQ4>(w);
	case KV_TQ3:
		return launch<D, KV_TQ3>(w);
	case KV_TQ2:
		return launch<D, KV_TQ2>(w);
	default:
		return false;
	}
}

} // namespace

bool decode_atoms(uint32_t d, enum kv_format f, const codec_work &w)
{
	switch (d) {
	case 128:
		return launch_format<128>(f, w);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return launch_format<64>(f, w);
#endif
	default:
		return false;
	}
}
