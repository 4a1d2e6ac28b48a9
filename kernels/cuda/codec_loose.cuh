/* Moves rows of tokens that do not fill an atom in order to their places and back: single tokens of many sequences, the
 * ends of a prefill, or all tokens of a prefill that begins in the middle of an atom. Four lanes work on a token, eight
 * tokens at a time, in the order of the tokens' places: so the accesses of one instruction lie together where the
 * tokens do. Only a token's own bytes are written, since another warp may write its neighbours'.
 */
#ifndef TERRACE_KERNELS_CUDA_CODEC_LOOSE_CUH
#define TERRACE_KERNELS_CUDA_CODEC_LOOSE_CUH

#include "kernels/cuda/codec_tile.cuh"

constexpr uint32_t LOOSE_PASSES = 2;

/* Sixteen tokens, from lane `first` on a lane each; rows are numbered as lanes. */
struct loose_tokens {
	uint64_t atom;		  /* of this lane's token: address */
	uint32_t in_atom, placed; /* of this lane's token; a bit for each lane whose token has a place */
	uint32_t first;
};

/* The token of four lanes in one pass. */
struct loose_token {
	uint8_t *atom;
	uint32_t row, in_atom;
	bool placed;
};

DEVICE loose_token loose_token_of(const loose_tokens &all, uint32_t pass, uint32_t lane)
{
	const uint32_t begin = __shfl_sync(ALL_LANES, all.in_atom, all.first),
		       at = pass * 4 + lane / 8 + lane / 4 % 2 * 8, row = all.first + (at - begin) % KV_ATOM_TOKENS;

	return {(uint8_t *)__shfl_sync(ALL_LANES, all.atom, row), row, __shfl_sync(ALL_LANES, all.in_atom, row),
		(all.placed >> row & 1) != 0};
}

/* One plane of a token between its row, in shared memory, and its atom. What is moved goes by registers, all of it
 * asked for first: of pointers the compiler does not know that they are apart. */
template <class P, enum kv_side SIDE> struct loose_plane {
	static constexpr bool BY_WORDS = SIDE == KV_SIDE_K && P::PART == 0;
	static constexpr uint32_t N = P::LANE_BYTES / 8; /* K: words of a lane */
	static constexpr uint32_t WORDS = P::BYTES / 16; /* V: words of a row that one of four lanes reads */
	static constexpr uint32_t REGISTERS = SIDE == KV_SIDE_K ? 2 * N : 4 * WORDS;

	/* K: where in the row lane c of four has its word i: two words and two lanes of a sector of the atom at a
	 * time. */
	DEVICE static uint32_t word_at(uint32_t i, uint32_t c)
	{
		return N % 2 ? c * N * 4 + i * 4 : (i % 2 * 2 + c / 2) * N * 4 + (i / 2 * 2 + c % 2) * 4;
	}

	DEVICE static void store(const loose_token &t, const uint8_t *row, uint8_t *plane, uint32_t lane)
	{
		const uint32_t c = lane % 4;

		if (!t.placed)
			return;
		if constexpr (BY_WORDS) {
			uint32_t own[N];

#pragma unroll
			for (uint32_t i = 0; i < N; i++)
				own[i] = *(const uint32_t *)(row + word_at(i, c));
#pragma unroll
			for (uint32_t i = 0; i < N; i++)
				*(uint32_t *)(plane + P::at(t.in_atom, word_at(i, c))) = own[i];
		} else { /* a byte of each word */
			constexpr uint32_t CHUNK = P::BYTES % 64 ? P::BYTES : 64;
			__align__(16) uint32_t words[CHUNK / 4];

#pragma unroll
			for (uint32_t at = 0; at < P::BYTES; at += CHUNK) {
				move_words<CHUNK / 4>(words, (const uint32_t *)(row + at));
#pragma unroll
				for (uint32_t i = 0; i < CHUNK / 4; i++)
					plane[P::at(t.in_atom, at + 4 * i + c)] = (uint8_t)(words[i] >> 8 * c);
			}
		}
	}

	/* What the lane reads of the atom, and what it makes of that in the row: for planes that whole atoms read by
	 * words (P::FAST). */
	DEVICE static void fetch(const loose_token &t, const uint8_t *plane, uint32_t lane, uint32_t (&w)[REGISTERS])
	{
		static_assert(P::FAST, "rows of words");
		if (!t.placed)
			return;
		if constexpr (SIDE == KV_SIDE_K) { /* with those of the token 8 places on */
			load_lane_words<2 * N>(plane, t.in_atom % 8 * 4 + lane % 4, w);
		} else if constexpr (P::WORDS == 2) {
			const uint32_t first = lane % 4 * 4;

			fetch_words<2>(plane + P::at(t.in_atom, first) / 8 * 8, &w[0]);
			fetch_words<2>(plane + P::at(t.in_atom, first + 2) / 8 * 8, &w[2]);
		} else {
#pragma unroll
			for (uint32_t i = 0; i < WORDS; i++)
				fetch_words<4>(plane + P::at(t.in_atom, i * 16 + lane % 4 * 4) / 16 * 16, &w[4 * i]);
		}
	}

	template <uint32_t COUNT> DEVICE static void fetch_words(const uint8_t *from, uint32_t *w)
	{
		if constexpr (COUNT == 4) {
			const uint4 v = *(const uint4 *)from;

			w[0] = v.x;
			w[1] = v.y;
			w[2] = v.z;
			w[3] = v.w;
		} else {
			const uint2 v = *(const uint2 *)from;

			w[0] = v.x;
			w[1] = v.y;
		}
	}

	DEVICE static void put(const loose_token &t, uint8_t *row, uint32_t lane, const uint32_t (&w)[REGISTERS])
	{
		if (!t.placed)
			return;
		if constexpr (SIDE == KV_SIDE_K) {
			__align__(16) uint32_t own[N];

#pragma unroll
			for (uint32_t i = 0; i < N; i++)
				own[i] = t.in_atom < 8 ? w[2 * i] : w[2 * i + 1];
			move_words<N>((uint32_t *)(row + lane % 4 * N * 4), own);
		} else { /* the token's byte of each word */
			const uint32_t e = t.in_atom % 2 * 2 + t.in_atom / 8, select = e | (e + 4) << 4;

#pragma unroll
			for (uint32_t i = 0; i < WORDS; i++)
				*(uint32_t *)(row + i * 16 + lane % 4 * 4) =
					permute(permute(w[4 * i], w[4 * i + 1], select),
						permute(w[4 * i + 2], w[4 * i + 3], select), 0x5410);
		}
	}
};

/* Stores a token of 16-bit elements, whose rows are in the order of dims. */
template <int D, enum kv_side SIDE> struct loose_raw {
	static constexpr uint32_t PIECES = SIDE == KV_SIDE_K ? D / 16 : D / 8, REGISTERS = 2 * PIECES;

	DEVICE static void store(const loose_token &t, const uint8_t *row, uint8_t *codes, uint32_t lane)
	{
		const uint32_t c = lane % 4;

		if (!t.placed)
			return;
		if constexpr (SIDE == KV_SIDE_K) {
			uint32_t two[D / 8];

#pragma unroll
			for (uint32_t i = 0; i < D / 8; i++)
				two[i] = *(const uint32_t *)(row + k_dim(i, c) * 2);
#pragma unroll
			for (uint32_t i = 0; i < D / 8; i++)
				*(uint32_t *)(codes + raw_place(SIDE, D, t.in_atom, k_dim(i, c))) = two[i];
		} else {
			uint4 eight[D / 16]; /* half of them the lane's: all that the token has in a line of memory goes
					      * at once */

#pragma unroll
			for (uint32_t i = 0; i < D / 16; i++)
				eight[i] = *(const uint4 *)(row + (16 * i + c % 2 * 8) * 2);
#pragma unroll
			for (uint32_t i = 0; i < D / 16; i++) {
				const uint32_t words[4] = {eight[i].x, eight[i].y, eight[i].z, eight[i].w};

#pragma unroll
				for (uint32_t g = 0; g < 8; g += 2)
					*(uint16_t *)(codes + raw_place(SIDE, D, t.in_atom, 16 * i + c % 2 * 8 + g + c / 2)) =
						(uint16_t)(words[g / 2] >> c / 2 * 16);
			}
		}
	}

	/* K: dims that one of four lanes has in its word i; together they have half a sector of the atom. */
	DEVICE static uint32_t k_dim(uint32_t i, uint32_t c)
	{
		return i / 2 * 16 + c % 2 * 8 + i % 2 * 4 + c / 2 * 2;
	}

	/* What the lane reads of the atom: two dims of K in a word, of V one dim of two tokens. */
	DEVICE static void fetch(const loose_token &t, const uint8_t *codes, uint32_t lane, uint32_t (&two)[REGISTERS])
	{
		if (!t.placed)
			return;
#pragma unroll
		for (uint32_t i = 0; i < PIECES; i++) {
			if constexpr (SIDE == KV_SIDE_K) {
				const uint32_t *p =
					(const uint32_t *)(codes + raw_place(SIDE, D, t.in_atom, i * 16 + lane % 4 * 2));

				two[2 * i] = p[0];
				two[2 * i + 1] = p[2];
			} else {
				const uint2 v = *(const uint2 *)(codes + raw_place(SIDE, D, t.in_atom & ~1u, v_dim(i, lane)));

				two[2 * i] = v.x;
				two[2 * i + 1] = v.y;
			}
		}
	}

	/* And in the row. `convert`: what becomes of two elements. */
	template <class F>
	DEVICE static void put(const loose_token &t, uint8_t *row, uint32_t lane, const uint32_t (&two)[REGISTERS], F convert)
	{
		if (!t.placed)
			return;
#pragma unroll
		for (uint32_t i = 0; i < REGISTERS; i++) {
			const uint32_t made = convert(two[i]);

			if constexpr (SIDE == KV_SIDE_K)
				*(uint32_t *)(row + (i * 8 + lane % 4 * 2) * 2) = made;
			else
				*(uint16_t *)(row + (v_dim(i / 2, lane) + i % 2 * 8) * 2) = (uint16_t)(made >> (t.in_atom % 2 * 16));
		}
	}

	/* V: the first of two dims, 8 apart, of piece i of a lane. */
	DEVICE static uint32_t v_dim(uint32_t i, uint32_t lane)
	{
		return i / 2 * 16 + i % 2 * 4 + lane % 4;
	}
};

/* Codes of sixteen rows, row_shape's, to their atoms. */
template <int D, int BITS, enum kv_side SIDE>
DEVICE void store_loose(const loose_tokens &all, uint32_t codes_at, const uint8_t *rows, uint32_t lane)
{
	using shape = row_shape<D, BITS>;
	using first = plane_row<D, shape::W, SIDE>;

#pragma unroll 1
	for (uint32_t pass = 0; pass < LOOSE_PASSES; pass++) {
		const loose_token t = loose_token_of(all, pass, lane);
		const uint8_t *row = rows + t.row * shape::PITCH;

		loose_plane<first, SIDE>::store(t, row, t.atom + codes_at, lane);
		if constexpr (shape::PLANES == 2)
			loose_plane<plane_row<D, 1, SIDE>, SIDE>::store(t, row + first::BYTES,
									t.atom + codes_at + shape::SECOND_AT, lane);
	}
}

/* And back. */
template <int D, int BITS, enum kv_side SIDE>
DEVICE void load_loose(const loose_tokens &all, uint32_t codes_at, uint8_t *rows, uint32_t lane)
{
	using shape = row_shape<D, BITS>;
	using first = plane_row<D, shape::W, SIDE>;
	using plane = loose_plane<first, SIDE>;
	using signs = loose_plane<plane_row<D, 1, SIDE>, SIDE>;

#pragma unroll 1
	for (uint32_t pass = 0; pass < LOOSE_PASSES; pass++) {
		const loose_token t = loose_token_of(all, pass, lane);
		uint8_t *row = rows + t.row * shape::PITCH;
		uint32_t w[plane::REGISTERS], s[shape::PLANES == 2 ? signs::REGISTERS : 1];

		plane::fetch(t, t.atom + codes_at, lane, w);
		if constexpr (shape::PLANES == 2)
			signs::fetch(t, t.atom + codes_at + shape::SECOND_AT, lane, s);
		plane::put(t, row, lane, w);
		if constexpr (shape::PLANES == 2)
			signs::put(t, row + first::BYTES, lane, s);
	}
}

/* 16-bit elements to rows, `pitch` apart. */
template <int D, enum kv_side SIDE, class F>
DEVICE void load_loose_raw(const loose_tokens &all, uint32_t codes_at, uint8_t *rows, uint32_t pitch, uint32_t lane, F convert)
{
	using raw = loose_raw<D, SIDE>;
	const loose_token t[LOOSE_PASSES] = {loose_token_of(all, 0, lane), loose_token_of(all, 1, lane)};
	uint32_t two[LOOSE_PASSES][raw::REGISTERS];

#pragma unroll
	for (uint32_t i = 0; i < LOOSE_PASSES; i++)
		raw::fetch(t[i], t[i].atom + codes_at, lane, two[i]);
#pragma unroll
	for (uint32_t i = 0; i < LOOSE_PASSES; i++)
		raw::put(t[i], rows + t[i].row * pitch, lane, two[i], convert);
}

#endif
