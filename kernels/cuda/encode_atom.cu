/* The fast path of encode.cu for rotated formats, head dim 128. A warp takes the 16 vectors of an atom at a time, four
 * lanes for each (encode_quad.cuh), while the next atom's rows are loaded into shared memory. A few vectors in a
 * thousand are left to encode_vector.
 */
#include "kernels/cuda/encode_tile.cuh"

#include <type_traits>

#include "kernels/cuda/codec_atom.cuh"
#include "kernels/cuda/codec_loose.cuh"
#include "kernels/cuda/encode_quad.cuh"

namespace
{

constexpr uint32_t HEADS = 1; /* of a unit: with more the warps end at different times */

/* Warps with 96 or 128 registers a lane, and their shared memory: rows of two atoms, in turns, each giving way to
 * what lanes exchange; places of tokens. */
constexpr uint32_t STAGE = QUAD_EXCHANGE, PLACES_AT = 2 * STAGE, WARP_BYTES = PLACES_AT + 512;

template <int FORMAT> struct encode_shape {
	static constexpr uint32_t WARPS = FORMAT == KV_INT4_PTH ? 20 : 16, SIGNS_AT = WARPS * WARP_BYTES,
				  COUNTER_AT = SIGNS_AT + 4 * QUAD_SIGNS_PITCH, SHARED = COUNTER_AT + 16;
};

/* Asks for the rows of one head's tokens, in the order of quad_load. `from` and `to` are the lane's own. */
DEVICE void fetch_rows(uint64_t from, uint32_t pitch, uint32_t there, uint32_t lane, uint32_t to)
{
	if (there >= KV_ATOM_TOKENS) {
		async_load_16(to, from);
		async_load_16(to + 512, add_times<1>(from, pitch));
		async_load_16(to + 1024, add_times<2>(from, pitch));
		async_load_16(to + 1536, add_times<3>(from, pitch));
		async_load_16(to + 2048, add_times<4>(from, pitch));
		async_load_16(to + 2560, add_times<5>(from, pitch));
		async_load_16(to + 3072, add_times<6>(from, pitch));
		async_load_16(to + 3584, add_times<7>(from, pitch));
	} else {
#pragma unroll 1
		for (uint32_t i = 0; i < 8; i++)
			if (2 * i + lane / 16 < there)
				async_load_16(to + i * 512, from + (uint64_t)pitch * i);
	}
	async_close_group();
}

/* The vectors of some tokens once more, each by the whole warp. */
template <int FORMAT>
__device__ __noinline__ void encode_again(const atom_launch &l, uint32_t token, uint32_t head, uint32_t side,
					  uint32_t which, uint32_t lane, uint8_t *shared)
{
	for (; which; which &= which - 1) {
		const uint32_t vector = (token + (uint32_t)__ffs((int)which) - 1) * l.args.heads + head;

		__syncwarp(); /* the stores before and these are in order */
		if (side == KV_SIDE_K)
			encode_vector<128, FORMAT, KV_SIDE_K>(l.args, l.sides[side], vector, lane, (float *)shared,
							      shared + 512);
		else
			encode_vector<128, FORMAT, KV_SIDE_V>(l.args, l.sides[side], vector, lane, (float *)shared,
							      shared + 512);
	}
}

/* A lane's words of tokens g and g + 8 to rows. */
template <uint32_t N, uint32_t PITCH>
DEVICE void words_to_rows(const uint32_t (&words)[2][N], uint32_t lane, uint32_t rows)
{
#pragma unroll
	for (uint32_t o = 0; o < 2; o++) {
		const uint32_t row = rows + (lane / 4 + 8 * o) * PITCH;

		if constexpr (N == 4) {
			store_shared_16(row + lane % 4 * 16,
					make_uint4(words[o][0], words[o][1], words[o][2], words[o][3]));
		} else {
			store_shared_8(row + lane % 4 * 8, make_uint2(words[o][0], words[o][1]));
			if constexpr (N == 3)
				store_shared_4(row + 32 + lane % 4 * 4, words[o][2]);
		}
	}
}

/* Codes and scales to a whole atom. K's words are in its order; V's go by rows. `scale`: of token g + 8 (lane % 2). */
template <int FORMAT, enum kv_side SIDE, uint32_t N>
DEVICE void store_whole(const codec_side &s, uint8_t *atom, const uint32_t (&words)[2][N], uint32_t scale,
			uint32_t lane, uint8_t *rows)
{
	using shape = row_shape<128, format_bits(FORMAT)>;
	using first = plane_row<128, shape::W, SIDE>;
	uint8_t *const codes = atom + s.codes_at, *const scales = atom + s.scales_at;

	if (lane % 4 < 2) {
		if (FORMAT == KV_INT4_PTH)
			((uint32_t *)scales)[lane / 4 * 2 + lane % 4] = scale;
		else
			((uint16_t *)scales)[lane / 4 * 2 + lane % 4] = (uint16_t)scale;
	}
	if constexpr (SIDE == KV_SIDE_K) {
#pragma unroll
		for (uint32_t i = 0; i < shape::W; i += 2)
			*(uint4 *)(codes + i * 256 + lane * 16) =
				make_uint4(words[0][i], words[1][i], words[0][i + 1], words[1][i + 1]);
		if constexpr (shape::PLANES == 2)
			*(uint2 *)(codes + shape::SECOND_AT + lane * 8) = make_uint2(words[0][2], words[1][2]);
	} else {
		words_to_rows<N, shape::PITCH>(words, lane, shared_address(rows));
		__syncwarp();
		whole_plane<first, SIDE>::store(rows, shape::PITCH, lane, codes);
		if constexpr (shape::PLANES == 2)
			whole_plane<plane_row<128, 1, SIDE>, SIDE>::store(rows + first::BYTES, shape::PITCH, lane,
									  codes + shape::SECOND_AT);
	}
}

/* Stores tokens that do not fill an atom in order; their rows and their places are in shared memory. `own`: the scale
 * of the lane's token. */
template <int FORMAT, enum kv_side SIDE>
__device__ __noinline__ void store_scattered(const atom_launch &l, uint32_t head, uint32_t own, uint32_t lane, uint32_t places,
					     const uint8_t *rows)
{
	const codec_side &s = l.sides[SIDE];
	const uint4 kept = load_shared_16(places + lane * 16);
	const loose_tokens all = {((uint64_t)kept.y << 32 | kept.x) + (uint64_t)head * l.args.chunk_bytes, kept.z, kept.w, 0};

	if (lane < KV_ATOM_TOKENS && (all.placed >> lane & 1)) {
		uint8_t *const scales = (uint8_t *)all.atom + s.scales_at;

		if (FORMAT == KV_INT4_PTH)
			((uint32_t *)scales)[scale_entry(all.in_atom)] = own;
		else
			((uint16_t *)scales)[scale_entry(all.in_atom)] = (uint16_t)own;
	}
	store_loose<128, format_bits(FORMAT), SIDE>(all, s.codes_at, rows, lane);
}

/* One atom's rows at `stage`, which becomes the lanes' own. */
template <int FORMAT, bool BF16, enum kv_side SIDE>
DEVICE void encode_atom(const atom_launch &l, uint32_t token, uint32_t head, uint32_t lane, uint8_t *stage,
			uint32_t places, uint32_t signs)
{
	using quads = std::conditional_t<FORMAT == KV_INT4_PTH, quad_int4<SIDE, BF16>,
					 quad_codebook<FORMAT == KV_INT4_PTH ? KV_TQ4 : FORMAT, SIDE>>;
	const uint32_t space = shared_address(stage);
	const codec_side &s = l.sides[SIDE];
	float x[2][32];
	uint32_t words[2][quads::WORDS], w[2][16];
	quads q;

	quad_load(space, lane, w[0]);
	quad_load(space + 2048, lane, w[1]);
	quad_signs(signs + lane % 4 * QUAD_SIGNS_PITCH, w);
#pragma unroll
	for (uint32_t o = 0; o < 2; o++) {
		quad_widen(l.args.dtype, w[o], x[o]);
		quad_rotate<SIDE>(x[o], space, lane);
	}
	q.measure(x, lane, space);
	q.pack(x, words, lane, space);
	const uint4 first = load_shared_16(places); /* of the first token */
	const atom_place p = {(uint64_t)first.y << 32 | first.x, 0, first.w};

	__syncwarp();
	if (p.whole()) {
		store_whole<FORMAT, SIDE>(s, (uint8_t *)p.atom + (uint64_t)head * l.args.chunk_bytes, words, q.scale, lane, stage);
	} else if (p.placed) {
		const uint32_t own = __shfl_sync(ALL_LANES, q.scale, lane % 8 * 4 + lane / 8 % 2);

		words_to_rows<quads::WORDS, row_shape<128, format_bits(FORMAT)>::PITCH>(words, lane, space);
		__syncwarp();
		store_scattered<FORMAT, SIDE>(l, head, own, lane, places, stage);
	}
	if (__any_sync(ALL_LANES, q.unsure_here())) {
		const uint32_t again = q.again(lane) & p.placed;

		if (again)
			encode_again<FORMAT>(l, token, head, SIDE, again, lane, stage);
	}
}

/* The lane's piece of the first two rows of a unit. */
DEVICE uint64_t row_of(const atom_launch &l, const atom_unit &u, uint32_t lane)
{
	const codec_side &s = l.sides[u.side];

	return (uint64_t)((const uint16_t *)s.vectors + (u.atom * KV_ATOM_TOKENS + lane / 16) * s.stride +
			  u.head * 128) +
	       lane % 16 * 16;
}

/* BF16: int4_pth's rotated vectors are rounded to that. */
template <int FORMAT, bool BF16>
__global__ void __launch_bounds__(32 * encode_shape<FORMAT>::WARPS, 1)
	encode_atoms_kernel(const __grid_constant__ atom_launch l)
{
	using shape = encode_shape<FORMAT>;
	DYNAMIC_SHARED(uint8_t, shared, 16);
	const uint32_t lane = threadIdx.x % 32, warp = same_in_all(threadIdx.x / 32), count = units_here(l),
		       counter = shared_address(shared + shape::COUNTER_AT),
		       signs = shared_address(shared + shape::SIGNS_AT);
	uint8_t *const mine = shared + warp * WARP_BYTES;
	const uint32_t places = shared_address(mine + PLACES_AT),
		       to = shared_address(mine) + quad_row_at(lane / 16, lane % 16);
	uint32_t buffer = 0;

	if (threadIdx.x < 64)
		quad_sign(shared + shape::SIGNS_AT, threadIdx.x);
	if (threadIdx.x == 0)
		*(uint32_t *)(shared + shape::COUNTER_AT) = shape::WARPS; /* each warp begins with one */
	__syncthreads();
	begin_after_previous();
	if (warp >= count)
		return;
	atom_unit unit = unit_of<HEADS>(l, warp);
	int64_t slot = unit_slot(l, unit, lane);
	bool more = true;

	fetch_rows(row_of(l, unit, lane), (uint32_t)l.sides[unit.side].stride * 4,
		   l.args.tokens - unit.atom * KV_ATOM_TOKENS, lane, to);
	while (more) {
		const atom_unit now = unit;
		const atom_looked_up asked = look_up(l, slot, lane);
		const uint32_t i = take_unit(counter, lane);

		more = i < count;
		if (more) {
			unit = unit_of<HEADS>(l, i);
			slot = unit_slot(l, unit, lane);
			fetch_rows(row_of(l, unit, lane), (uint32_t)l.sides[unit.side].stride * 4,
				   l.args.tokens - unit.atom * KV_ATOM_TOKENS, lane, to + (STAGE - buffer));
		}
		const atom_place p = asked.place();

		store_shared_16(places + lane * 16,
				make_uint4((uint32_t)p.atom, (uint32_t)(p.atom >> 32), p.in_atom, p.placed));
		if (more)
			async_wait<1>();
		else
			async_wait<0>();
		__syncwarp();
		if (now.side == KV_SIDE_K)
			encode_atom<FORMAT, BF16, KV_SIDE_K>(l, now.atom * KV_ATOM_TOKENS, now.head, lane,
				mine + buffer,
						       places, signs);
		else
			encode_atom<FORMAT, BF16, KV_SIDE_V>(l, now.atom * KV_ATOM_TOKENS, now.head, lane,
				mine + buffer,
						       places, signs);
		__syncwarp(); /* the stage is free again */
		buffer = STAGE - buffer;
	}
}

template <int FORMAT, bool BF16 = false> bool launch_atoms(const codec_work &w)
{
	using shape = encode_shape<FORMAT>;
	const atom_launch l = atom_launch_of<HEADS>(w);
	const uint32_t sms = multiprocessors();

	if (!sms || cudaFuncSetAttribute(encode_atoms_kernel<FORMAT, BF16>, cudaFuncAttributeMaxDynamicSharedMemorySize,
					 shape::SHARED) != cudaSuccess) {
		cudaGetLastError(); /* the device has too little; the other kernel's launch is not to be blamed for
				     * it */
		return false;
	}
	launch_early(encode_atoms_kernel<FORMAT, BF16>, l.all < sms ? l.all : sms, 32 * shape::WARPS, shape::SHARED,
		      w.stream, l);
	return true;
}

} // namespace

bool encode_atoms(enum kv_format f, const codec_work &w)
{
	switch (f) {
	case KV_INT4_PTH:
		return w.args.rounding == KV_ROUND_BF16 ? launch_atoms<KV_INT4_PTH, true>(w)
							: launch_atoms<KV_INT4_PTH>(w);
	case KV_TQ4:
		return launch_atoms<KV_TQ4>(w);
	case KV_TQ3:
		return launch_atoms<KV_TQ3>(w);
	case KV_TQ2:
		return launch_atoms<KV_TQ2>(w);
	default:
		return false;
	}
}
