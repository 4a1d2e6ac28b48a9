/* The fast path of encode.cu and decode.cu: a warp takes a tile, two whole atoms of one side, a lane a
 * vector. 16-byte pieces go between global and shared memory, so that both ends are whole lines; rotation,
 * scale and codes stay within the lane's registers. Tokens that do not fill an atom in order are left to
 * the vector path. */
#ifndef TERRACE_KERNELS_CUDA_CODEC_TILE_CUH
#define TERRACE_KERNELS_CUDA_CODEC_TILE_CUH

#include "kernels/cuda/codec.cuh"

constexpr uint32_t TILE_WARPS = 2;
constexpr uint32_t TILE_TOKENS_MIN = 1024; /* fewer tokens do not fill the device by tiles */

template <int D> constexpr bool tile_dim = D <= 128; /* a vector fits a lane's registers */

/* Shared memory of a warp: rows of 16-bit elements, 16 bytes apart more than they need for the banks'
 * sake, or the bytes of two atoms' side. */
template <int D> constexpr uint32_t TILE_PITCH = 2 * D + 16;
template <int D> constexpr uint32_t TILE_BYTES = 32 * TILE_PITCH<D>;

/* A lane's place in its warp's tile. */
struct tile_lane {
	uint32_t token, head, in_atom;
	uint8_t *atom;
	bool whole; /* all 32 vectors of the warp fill their atoms in order */
};

DEVICE tile_lane tile_of(const codec_args &a, uint32_t warp, uint32_t lane)
{
	const uint32_t unit = 2 * warp + lane / KV_ATOM_TOKENS;
	tile_lane t = {unit / a.heads * KV_ATOM_TOKENS + lane % KV_ATOM_TOKENS, unit % a.heads, 0,
		       nullptr, false};

	if (t.token < a.tokens)
		t.atom = atom_of(a, t.token, t.head, &t.in_atom);
	const uint64_t first = __shfl_sync(ALL_LANES, (uint64_t)t.atom, lane & 16);

	t.whole = __all_sync(ALL_LANES, t.atom && t.in_atom == lane % KV_ATOM_TOKENS &&
						(uint64_t)t.atom == first);
	return t;
}

/* True if the tile kernels may take this call: 16-bit elements in 16-byte pieces. */
static bool tile_suits(const codec_work &w)
{
	bool suits = w.args.dtype != KV_DTYPE_F32 && w.args.tokens >= TILE_TOKENS_MIN;

	for (uint32_t i = w.first; i < w.first + w.count; i++)
		suits = suits && (uintptr_t)w.sides[i].vectors % 16 == 0 && w.sides[i].stride % 8 == 0;
	return suits;
}

static dim3 tile_grid(const codec_work &w)
{
	const uint64_t units = (uint64_t)((w.args.tokens - 1) / KV_ATOM_TOKENS + 1) * w.args.heads;

	return dim3((uint32_t)((units + 2 * TILE_WARPS - 1) / (2 * TILE_WARPS)), w.count);
}

/* The randomized Hadamard rotation without its signs, as hadamard(). */
template <int D, bool TRANSPOSED> DEVICE void hadamard_lane(float (&x)[D])
{
	if constexpr (D % 12 == 0) {
		constexpr uint32_t M = D / 12;

#pragma unroll
		for (uint32_t k = 0; k < M; k++) {
			float in[12];

#pragma unroll
			for (uint32_t j = 0; j < 12; j++)
				in[j] = x[k + j * M];
#pragma unroll
			for (uint32_t r = 0; r < 12; r++) {
				float sum = 0;

#pragma unroll
				for (uint32_t j = 0; j < 12; j++)
					sum += (TRANSPOSED ? h12_negative(j, r) : h12_negative(r, j))
						       ? -in[j]
						       : in[j];
				x[k + r * M] = sum;
			}
		}
	}
#pragma unroll
	for (uint32_t h = 1; h < (D % 12 == 0 ? D / 12 : D); h *= 2) {
#pragma unroll
		for (uint32_t i = 0; i < D / 2; i++) {
			const uint32_t at = i / h * 2 * h + i % h;
			const float s = x[at] + x[at + h], d = x[at] - x[at + h];

			x[at] = s;
			x[at + h] = d;
		}
	}
}

/* Where a lane's codes stand in its atom. The bytes of token 0, known when compiled, name the lane's own
 * bytes; place() moves them to its token. */
template <int D, int BITS, enum kv_side SIDE> struct tile_codes {
	static constexpr uint32_t WORDS = KV_ATOM_TOKENS * D * BITS / 32, NONE = 0xffff;
	static constexpr unsigned PLANES = BITS == 3 ? 2 : 1;

	DEVICE static uint32_t place(uint32_t token, uint32_t dim, unsigned plane)
	{
		struct kv_place p[2];

		places_of(BITS, SIDE, D, token, dim, p);
		return p[plane].byte;
	}

	/* The codes into `image`. */
	DEVICE static void store(const uint32_t (&code)[D], uint32_t token, uint8_t *image)
	{
		if constexpr (BITS == 16) {
#pragma unroll
			for (uint32_t i = 0; i < D; i++)
				*(uint16_t *)(image + place(token, i, 0)) = (uint16_t)code[i];
		} else {
#pragma unroll
			for (unsigned plane = 0; plane < PLANES; plane++)
				store_plane(code, plane, token, image);
		}
	}

	DEVICE static void store_plane(const uint32_t (&code)[D], unsigned plane, uint32_t token,
				       uint8_t *image)
	{
		uint32_t word[WORDS], dim_of[4 * WORDS];

#pragma unroll
		for (uint32_t i = 0; i < WORDS; i++)
			word[i] = 0;
#pragma unroll
		for (uint32_t i = 0; i < 4 * WORDS; i++)
			dim_of[i] = NONE;
#pragma unroll
		for (uint32_t i = 0; i < D; i++) {
			struct kv_place p[2];

			places_of(BITS, SIDE, D, 0, i, p);
			word[p[plane].byte / 4] |=
				(code[i] >> p[plane].code_shift & ((1u << p[plane].bits) - 1))
				<< (p[plane].shift + p[plane].byte % 4 * 8);
			dim_of[p[plane].byte] = i;
		}
#pragma unroll
		for (uint32_t w = 0; w < WORDS; w++) {
			if (dim_of[4 * w] != NONE && dim_of[4 * w + 1] != NONE &&
			    dim_of[4 * w + 2] != NONE && dim_of[4 * w + 3] != NONE) {
				*(uint32_t *)(image + place(token, dim_of[4 * w], plane)) = word[w];
				continue;
			}
#pragma unroll
			for (uint32_t b = 0; b < 4; b++)
				if (dim_of[4 * w + b] != NONE)
					image[place(token, dim_of[4 * w + b], plane)] =
						(uint8_t)(word[w] >> (8 * b));
		}
	}
};

#endif
