/* From packed atoms to the 16-bit tiles that products read, by one warp, two atoms at a time.
 *
 * A lane (g = lane / 4, t = lane % 4) has of K the tokens g and g + 8 and of V the tokens 2t, 2t + 8, 2t
 * + 1, 2t + 9; both as words of eight codes, which become a chunk of eight halves of K, or halves of two
 * chunks of V. Values are the decoded ones divided by the side's unit (extend_shape.cuh); scales past
 * the last token are taken as 0, whatever the bytes say.
 */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_DECODE_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_DECODE_CUH

#include "kernels/cuda/extend_mma.cuh"
#include "kernels/cuda/extend_shape.cuh"

DEVICE __half2 halves_of(uint32_t bits)
{
	return *(const __half2 *)&bits;
}

DEVICE uint32_t bits_of(__half2 h)
{
	return *(const uint32_t *)&h;
}

/* Two bf16 as fp16; what fp16 cannot hold saturates. */
DEVICE uint32_t halves_of_bf16(uint32_t w)
{
	const float lo = __uint_as_float(w << 16), hi = __uint_as_float(w & 0xffff0000);

	return bits_of(__floats2half2_rn(fminf(fmaxf(lo, -KV_FINITE_MAX), KV_FINITE_MAX),
					 fminf(fmaxf(hi, -KV_FINITE_MAX), KV_FINITE_MAX)));
}

/* The scales of two tokens, ready to be applied to a pair of their values. */
struct pair_scale {
	__half2 scale, shift, shift_high; /* int4_pth: zero points; tq: half of the scale */
	__half2 rest;  /* int4_pth: what rounding took from the scale, which is a float */
	uint32_t mask; /* of the tokens that exist */
};

/* From the scales' bits; inverse: 1 / unit. */
template <int F>
DEVICE pair_scale pair_scale_of(uint32_t a, uint32_t b, float inverse, bool has_a, bool has_b)
{
	pair_scale p = {};

	p.mask = (has_a ? 0xffffu : 0) | (has_b ? 0xffff0000u : 0);
	if constexpr (F == KV_INT4_PTH) {
		const float za = (float)(a & 15), zb = (float)(b & 15);

		const float sa = has_a ? __uint_as_float(a & ~15u) * inverse : 0,
			    sb = has_b ? __uint_as_float(b & ~15u) * inverse : 0;

		p.scale = __floats2half2_rn(sa, sb);
		p.rest = __floats2half2_rn(sa - __low2float(p.scale), sb - __high2float(p.scale));
		p.shift = __floats2half2_rn(-1024 - za, -1024 - zb);
		p.shift_high = __floats2half2_rn(-64 - za, -64 - zb);
	} else if constexpr (format_scale_bytes(F) == 2) {
		p.scale = __floats2half2_rn(
			has_a ? __half2float(__ushort_as_half((uint16_t)a)) * inverse : 0,
			has_b ? __half2float(__ushort_as_half((uint16_t)b)) * inverse : 0);
		p.shift = __hmul2(p.scale, __float2half2_rn(0.5f));
	}
	return p;
}

/* Four codebook codes, the nibbles of the low half of w, as bytes: value + 127.5. */
template <int F> DEVICE uint32_t codebook_bytes(uint32_t w)
{
	if constexpr (F == KV_TQ4) {
		/* The selector's top bit makes a table's byte its sign, 0; the sum stays within a byte.
		 */
		constexpr uint32_t m0 = 5 | 16 << 8 | 27 << 16 | 39 << 24,
				   m1 = 52 | 67 << 8 | 86 << 16 | 114 << 24;

		return permute(m0, m1, w) + 0x80808080 -
		       permute(m0 + 0x01010101, m1 + 0x01010101, w ^ 0x8888);
	} else if constexpr (F == KV_TQ3) {
		constexpr uint32_t m = 12 | 38 << 8 | 68 << 16 | 109u << 24;

		return permute(m + 0x80808080, 0x7f7f7f7f - m, w);
	} else {
		return permute((35 + 128) | (118 + 128) << 8 | (127 - 35) << 16 |
				       (uint32_t)(127 - 118) << 24,
			       0, w);
	}
}

/* Bytes picked by `selector` (4 is the byte that makes a half of 1024 + byte), as values, or as those of their codes
 * alone. */
template <bool FINE = false> DEVICE uint32_t codebook_halves(uint32_t bytes, uint32_t selector, const pair_scale &p)
{
	const __half2 x = halves_of(permute(bytes, 0x64646464, selector));

	if (FINE)
		return bits_of(__hadd2(__hadd2(x, __float2half2_rn(-1152)), __float2half2_rn(0.5f)));
	return bits_of(__hfma2(__hadd2(x, __float2half2_rn(-1152)), p.scale, p.shift));
}

enum scaling { ROUGH, EXACT, NONE };

/* A code's value times its scale; of K to the last bit, since errors that all dims of a token share
 * would add up in its score. */
template <enum scaling SCALING> DEVICE uint32_t int4_scaled(__half2 value, const pair_scale &p)
{
	return bits_of(SCALING == NONE    ? value
		       : SCALING == EXACT ? __hfma2(value, p.scale, __hmul2(value, p.rest))
					  : __hmul2(value, p.scale));
}

/* A word of int4_pth codes: pairs of nibbles 0 4, 1 5, 2 6, 3 7, of which tokens a hold 0 1 4 5, tokens
 * b 2 3 6 7. */
template <enum scaling SCALING>
DEVICE void int4_halves(uint32_t w, const pair_scale &a, const pair_scale &b, uint32_t (&out)[4])
{
	const __half2 sixteenth = __float2half2_rn(0.0625f);

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const pair_scale &p = i ? b : a;
		const uint32_t x = i ? w >> 8 : w;
		const __half2 lo = halves_of(choose_bits(0x000f000f, x, 0x64006400)),
			      hi = halves_of(choose_bits(0x00f000f0, x, 0x64006400));

		out[2 * i] = int4_scaled<SCALING>(__hadd2(lo, p.shift), p);
		out[2 * i + 1] = int4_scaled<SCALING>(__hfma2(hi, sixteenth, p.shift_high), p);
	}
}

/* Two E4M3 codes. */
template <bool FINE = false> DEVICE uint32_t e4m3_halves(uint32_t codes, const pair_scale &p)
{
	const uint32_t values = halves_of_e4m3((uint16_t)codes);

	return (FINE ? values : bits_of(__hmul2(halves_of(values), p.scale))) & p.mask;
}

/* A word of eight codes of one token of K, as four pairs in the order of k_place_of. */
template <int F, bool FINE> DEVICE uint4 k_halves(uint32_t w, const pair_scale &p)
{
	uint32_t out[4];

	if constexpr (F == KV_INT4_PTH) {
		int4_halves<FINE ? NONE : EXACT>(w, p, p, out);
	} else {
		const uint32_t lo = codebook_bytes<F>(w), hi = codebook_bytes<F>(w >> 16);

		out[0] = codebook_halves<FINE>(lo, 0x4140, p);
		out[1] = codebook_halves<FINE>(lo, 0x4342, p);
		out[2] = codebook_halves<FINE>(hi, 0x4140, p);
		out[3] = codebook_halves<FINE>(hi, 0x4342, p);
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/* A word of V's codes: four tokens of dim 16w + g (low), and of dim 16w + g + 8 (high). */
template <int F>
DEVICE void v_halves(uint32_t w, const pair_scale (&p)[2], uint32_t (&low)[2], uint32_t (&high)[2])
{
	if constexpr (F == KV_INT4_PTH) {
		uint32_t out[4];

		int4_halves<ROUGH>(w, p[0], p[1], out);
		low[0] = out[0];
		high[0] = out[1];
		low[1] = out[2];
		high[1] = out[3];
	} else {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t bytes = codebook_bytes<F>(i ? w >> 16 : w);

			low[i] = codebook_halves(bytes, 0x4240, p[i]);
			high[i] = codebook_halves(bytes, 0x4341, p[i]);
		}
	}
}

/* Eight codes of tq2 or tq3 as nibbles, from wherever they stand. */
template <int BITS, enum kv_side SIDE, int D, class Where>
DEVICE uint32_t nibbles_of(uint32_t codes, Where where)
{
	uint32_t w = 0;

#pragma unroll
	for (uint32_t n = 0; n < 8; n++) {
		uint32_t token, dim;
		struct kv_place p[2];

		where(n, &token, &dim);
		places_of(BITS, SIDE, D, token, dim, p);
#pragma unroll
		for (int i = 0; i < (BITS == 3 ? 2 : 1); i++)
			w |= (load_shared_1(codes + p[i].byte) >> p[i].shift & ((1u << p[i].bits) - 1))
			     << (4 * n + p[i].code_shift);
	}
	return w;
}

/* Codes in nibbles, from a word of the 2-bit plane, whose fields 0 1 are wanted, and one of the 1-bit plane. */
template <int BITS> DEVICE uint32_t nibbles_of_planes(uint32_t two, uint32_t one)
{
	const uint32_t w = (two & 0x03030303) | (two & 0x0c0c0c0c) << 2;

	return BITS == 2 ? w : w | (one << 2 & 0x04040404) | (one << 5 & 0x40404040);
}

/* Word `word` of panel `panel` of K's codes, token g + 8 half. */
template <int F, int D>
DEVICE uint32_t k_word(uint32_t codes, uint32_t lane, uint32_t panel, uint32_t half, uint32_t word)
{
	constexpr int BITS = format_bits(F);

	if constexpr (D % (BITS == 3 ? 128 : 64) == 0) {
		const uint32_t two =
			load_shared_4(codes + lane_byte_at(D / 8, lane, panel * 8 + half * 4));
		uint32_t one = 0;

		if (BITS == 3)
			one = load_shared_4(codes + 4 * D +
					    lane_byte_at(D / 16, lane, panel / 2 * 8 + half * 4)) >>
			      (panel % 2 * 4 + 2 * word);
		return nibbles_of_planes<BITS>(two >> (4 * word), one);
	} else {
		return nibbles_of<BITS, KV_SIDE_K, D>(
			codes, [=](uint32_t n, uint32_t *token, uint32_t *dim) {
				*token = lane / 4 + 8 * half;
				*dim = 64 * panel + 32 * word + n % 2 * 16 + lane % 4 * 4 + n / 2;
			});
	}
}

/* Word w of V's codes. */
template <int F, int D> DEVICE uint32_t v_word(uint32_t codes, uint32_t lane, uint32_t w)
{
	constexpr int BITS = format_bits(F);

	if constexpr (BITS == 2 || D != 96) {
		const uint32_t two = load_shared_4(codes + lane_byte_at(D / 8, lane, w / 2 * 4));
		uint32_t one = 0;

		if (BITS == 3)
			one = load_shared_4(codes + 4 * D + lane_byte_at(D / 16, lane, w / 4 * 4)) >>
			      (w % 4 * 2);
		return nibbles_of_planes<BITS>(two >> (w % 2 * 4), one);
	} else {
		return nibbles_of<BITS, KV_SIDE_V, D>(
			codes, [=](uint32_t n, uint32_t *token, uint32_t *dim) {
				*token = lane % 4 * 2 + n / 2 % 2 * 8 + n / 4;
				*dim = 16 * w + n % 2 * 8 + lane / 4;
			});
	}
}

/* The scale in a token's bits. */
template <int F> DEVICE float scale_of(uint32_t bits)
{
	return F == KV_INT4_PTH ? __uint_as_float(bits & ~15u) : __half2float(__ushort_as_half((uint16_t)bits));
}

/* One atom of K, tokens from `first` on; `to`: the panels' address at the pair's first row, `atom` 0 or
 * 1 of it. FINE: codes' values without the scales, which go to `scales_to`, a float a row of the pair. */
template <int F, int D, bool CROSSED, uint32_t TOKENS, bool FINE>
DEVICE void decode_k(uint32_t codes, uint32_t lane, uint32_t first, uint32_t tokens, float inverse,
		     uint32_t to, uint32_t scales_to, uint32_t atom)
{
	constexpr int BITS = format_bits(F);
	const uint32_t g = lane / 4, t = lane % 4, scales = codes + 2 * BITS * D;
	uint32_t row[2], bits[2] = {};
	pair_scale p[2];

	if constexpr (format_scale_bytes(F) == 4) {
		const uint2 s = load_shared_8(scales + g * 8);

		bits[0] = s.x;
		bits[1] = s.y;
	} else if constexpr (format_scale_bytes(F) == 2) {
		const uint32_t s = load_shared_4(scales + g * 4);

		bits[0] = s & 0xffff;
		bits[1] = s >> 16;
	}
#pragma unroll
	for (uint32_t h = 0; h < 2; h++) {
		const bool has = first + g + 8 * h < tokens;

		row[h] = 8 * (g / 2) + 4 * atom + (CROSSED ? g % 2 * 2 + h : g % 2 + 2 * h);
		p[h] = pair_scale_of<F>(bits[h], bits[h], inverse, has, has);
		if (FINE && t == 0)
			store_shared_4(scales_to + row[h] * 4, __float_as_uint(has ? scale_of<F>(bits[h]) * inverse : 0));
	}
	const auto put = [&](uint32_t panel, uint32_t h, uint32_t word, uint4 x) {
		const uint32_t chunk = k_chunk(CROSSED, D % 64 && panel == D / 64, t, word);

		store_shared_16(to + panel * TOKENS * 128 + row[h] * 128 + (chunk ^ row[h] % 8) * 16, x);
	};

	if constexpr (BITS == 4) {
#pragma unroll
		for (uint32_t v = 0; v < D / 64; v++) {
			const uint4 w = load_shared_16(codes + v * 512 + lane * 16);

			put(v, 0, 0, k_halves<F, FINE>(w.x, p[0]));
			put(v, 1, 0, k_halves<F, FINE>(w.y, p[1]));
			put(v, 0, 1, k_halves<F, FINE>(w.z, p[0]));
			put(v, 1, 1, k_halves<F, FINE>(w.w, p[1]));
		}
		if constexpr (D % 64 == 32) {
			const uint2 w = load_shared_8(codes + D / 64 * 512 + lane * 8);

			put(D / 64, 0, 0, k_halves<F, FINE>(w.x, p[0]));
			put(D / 64, 1, 0, k_halves<F, FINE>(w.y, p[1]));
		}
	} else if constexpr (BITS < 4) {
#pragma unroll
		for (uint32_t c = 0; c < D / 32; c++)
#pragma unroll
			for (uint32_t h = 0; h < 2; h++)
				put(c / 2, h, c % 2,
				    k_halves<F, FINE>(k_word<F, D>(codes, lane, c / 2, h, c % 2), p[h]));
	} else {
#pragma unroll
		for (uint32_t c = 0; c < D / 32; c++) {
			uint32_t w[2][4]; /* by token */

			if constexpr (BITS == 8) {
				const uint4 x = load_shared_16(codes + c * 512 + lane * 16);

				w[0][0] = e4m3_halves<FINE>(x.x, p[0]);
				w[0][1] = e4m3_halves<FINE>(x.x >> 16, p[0]);
				w[0][2] = e4m3_halves<FINE>(x.z, p[0]);
				w[0][3] = e4m3_halves<FINE>(x.z >> 16, p[0]);
				w[1][0] = e4m3_halves<FINE>(x.y, p[1]);
				w[1][1] = e4m3_halves<FINE>(x.y >> 16, p[1]);
				w[1][2] = e4m3_halves<FINE>(x.w, p[1]);
				w[1][3] = e4m3_halves<FINE>(x.w >> 16, p[1]);
			} else {
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const uint4 x =
						load_shared_16(codes + (2 * c + i) * 512 + lane * 16);

					w[0][2 * i] = x.x & p[0].mask;
					w[1][2 * i] = x.y & p[1].mask;
					w[0][2 * i + 1] = x.z & p[0].mask;
					w[1][2 * i + 1] = x.w & p[1].mask;
				}
				if (F == KV_BF16)
#pragma unroll
					for (int i = 0; i < 8; i++)
						w[i / 4][i % 4] = halves_of_bf16(w[i / 4][i % 4]);
			}
#pragma unroll
			for (uint32_t h = 0; h < 2; h++)
				put(c / 2, h, c % 2, make_uint4(w[h][0], w[h][1], w[h][2], w[h][3]));
		}
	}
}

/* Two atoms of V, at codes and codes + next, tokens from `first` on; `to`: the panel's address. `odd`:
 * the pair is the panel's second. */
template <int F, int D>
DEVICE void decode_v(uint32_t codes, uint32_t next, uint32_t lane, uint32_t first, uint32_t tokens,
		     float inverse, uint32_t to, uint32_t odd)
{
	constexpr int BITS = format_bits(F);
	const uint32_t g = lane / 4, t = lane % 4, row = v_row(g);
	const uint32_t at = to + row * 128 + ((odd * 4 + t) ^ row) * 16;
	pair_scale p[2][2]; /* by atom, by pair */

#pragma unroll
	for (uint32_t a = 0; a < 2; a++) {
		const uint32_t scales = codes + a * next + 2 * BITS * D, token = first + 16 * a + 2 * t;
		uint32_t s[4] = {}; /* tokens 2t, 2t + 8, 2t + 1, 2t + 9 */

		if constexpr (format_scale_bytes(F) == 4) {
			const uint4 x = load_shared_16(scales + t * 16);

			s[0] = x.x;
			s[1] = x.y;
			s[2] = x.z;
			s[3] = x.w;
		} else if constexpr (format_scale_bytes(F) == 2) {
			const uint2 x = load_shared_8(scales + t * 8);

			s[0] = x.x & 0xffff;
			s[1] = x.x >> 16;
			s[2] = x.y & 0xffff;
			s[3] = x.y >> 16;
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if constexpr (format_crossed(F))
				p[a][i] = pair_scale_of<F>(s[2 * i], s[2 * i + 1], inverse,
							   token + i < tokens, token + 8 + i < tokens);
			else
				p[a][i] =
					pair_scale_of<F>(s[i], s[2 + i], inverse, token + 8 * i < tokens,
							 token + 1 + 8 * i < tokens);
		}
	}
	const auto put = [&](uint32_t j,
			     const uint32_t(&x)[2][2]) { /* dim 8j + g */
							 store_shared_16(at + j * 1024,
									 make_uint4(x[0][0], x[0][1],
										    x[1][0], x[1][1]));
	};

	if constexpr (BITS <= 4) {
		constexpr uint32_t WORDS = D / 16;

#pragma unroll
		for (uint32_t from = 0; from < WORDS; from += BITS == 4 && WORDS - from >= 4 ? 4 : 2) {
			const uint32_t n = BITS == 4 && WORDS - from >= 4 ? 4 : 2;
			uint32_t w[2][4] = {};

#pragma unroll
			for (uint32_t a = 0; a < 2; a++) {
				const uint32_t here = codes + a * next;

				if (BITS == 4 && n == 4) {
					const uint4 x =
						load_shared_16(here + from / 4 * 512 + lane * 16);

					w[a][0] = x.x;
					w[a][1] = x.y;
					w[a][2] = x.z;
					w[a][3] = x.w;
				} else if (BITS == 4) {
					const uint2 x = load_shared_8(here + from / 4 * 512 + lane * 8);

					w[a][0] = x.x;
					w[a][1] = x.y;
				} else if constexpr (BITS < 4) {
					w[a][0] = v_word<F, D>(here, lane, from);
					w[a][1] = v_word<F, D>(here, lane, from + 1);
				}
			}
#pragma unroll
			for (uint32_t i = 0; i < n; i++) {
				uint32_t low[2][2], high[2][2];

				v_halves<F>(w[0][i], p[0], low[0], high[0]);
				v_halves<F>(w[1][i], p[1], low[1], high[1]);
				put(2 * (from + i), low);
				put(2 * (from + i) + 1, high);
			}
		}
	} else if constexpr (BITS == 8) {
#pragma unroll
		for (uint32_t v = 0; v < D / 32; v++) {
			uint32_t w[2][4];

#pragma unroll
			for (uint32_t a = 0; a < 2; a++) {
				const uint4 x = load_shared_16(codes + a * next + v * 512 + lane * 16);

				w[a][0] = x.x;
				w[a][1] = x.y;
				w[a][2] = x.z;
				w[a][3] = x.w;
			}
#pragma unroll
			for (uint32_t i = 0; i < 4; i++) {
				uint32_t x[2][2];

#pragma unroll
				for (uint32_t a = 0; a < 2; a++) {
					x[a][0] = e4m3_halves(w[a][i], p[a][0]);
					x[a][1] = e4m3_halves(w[a][i] >> 16, p[a][1]);
				}
				put(4 * v + i, x);
			}
		}
	} else {
#pragma unroll
		for (uint32_t m = 0; m < D / 16; m++) {
			uint32_t low[2][2], high[2][2];

#pragma unroll
			for (uint32_t a = 0; a < 2; a++) {
				const uint4 x = load_shared_16(codes + a * next + m * 512 + lane * 16);

				low[a][0] = x.x & p[a][0].mask;
				high[a][0] = x.y & p[a][0].mask;
				low[a][1] = x.z & p[a][1].mask;
				high[a][1] = x.w & p[a][1].mask;
				if (F == KV_BF16)
#pragma unroll
					for (int i = 0; i < 2; i++) {
						low[a][i] = halves_of_bf16(low[a][i]);
						high[a][i] = halves_of_bf16(high[a][i]);
					}
			}
			put(2 * m, low);
			put(2 * m + 1, high);
		}
	}
}

#endif
