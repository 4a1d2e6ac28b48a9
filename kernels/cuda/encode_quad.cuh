/* Encodes an atom's 16 vectors of 128 dims with one warp, to the bit as kernels/codec.c, for encode_atom.cu. Lane (g,
 * t) has a quarter of token g and of token g + 8 in its registers. At first these are dims 32 t .. 32 t + 31, for five
 * stages of the rotation. Then, by way of shared memory, they are the dims whose codes the atom's lane (g, t) has (K),
 * or codes of one row of it (V). What is computed once a vector is computed by even lanes for the first vector and by
 * odd lanes for the second.
 */
#ifndef TERRACE_KERNELS_CUDA_ENCODE_QUAD_CUH
#define TERRACE_KERNELS_CUDA_ENCODE_QUAD_CUH

#include "kernels/cuda/codec_tile.cuh"
#include "kernels/cuda/encode_codes.cuh"

/* Where lane (g, 0) has a dim of its own after the rotation. Element 4 m + e of lane (g, t) is dim 16 m + 4 t + e (K)
 * or 16 m + 2 t + {0, 1, 8, 9}[e] (V). */
template <enum kv_side SIDE> __host__ __device__ constexpr uint32_t quad_element(uint32_t dim)
{
	return dim / 16 * 4 + (SIDE == KV_SIDE_K ? dim % 4 : dim % 2 + dim / 8 % 2 * 2);
}

/* Where piece p, of 16 bytes, of row r has its place among eight rows of 256 bytes, so that neither its writers nor
 * its readers meet in a bank. */
DEVICE uint32_t quad_row_at(uint32_t r, uint32_t p)
{
	return r * 256 + ((p ^ p / 8 ^ r % 2 << 1) << 4);
}

/* The lane's quarter of its row. */
DEVICE void quad_load(uint32_t rows, uint32_t lane, uint32_t (&w)[16])
{
	const uint32_t first = quad_row_at(lane / 4, lane % 4 * 4);

#pragma unroll
	for (uint32_t j = 0; j < 4; j++) {
		const uint4 v = load_shared_16(rows + (first ^ j << 4));

		w[4 * j] = v.x;
		w[4 * j + 1] = v.y;
		w[4 * j + 2] = v.z;
		w[4 * j + 3] = v.w;
	}
}

constexpr uint32_t QUAD_SIGNS_PITCH = 80;

/* Makes word i of the table of signs: of dims 2 i and 2 i + 1. */
DEVICE void quad_sign(uint8_t *signs, uint32_t i)
{
	*(uint32_t *)(signs + i / 16 * QUAD_SIGNS_PITCH + i % 16 * 4) =
		(rotation_negative(2 * i) ? 0x8000u : 0) | (rotation_negative(2 * i + 1) ? 0x80000000u : 0);
}

/* Two quarters with the rotation's signs: those of lane % 4. */
DEVICE void quad_signs(uint32_t signs, uint32_t (&w)[2][16])
{
#pragma unroll
	for (uint32_t j = 0; j < 4; j++) {
		const uint4 v = load_shared_16(signs + j * 16);

#pragma unroll
		for (uint32_t o = 0; o < 2; o++) {
			w[o][4 * j] ^= v.x;
			w[o][4 * j + 1] ^= v.y;
			w[o][4 * j + 2] ^= v.z;
			w[o][4 * j + 3] ^= v.w;
		}
	}
}

/* A quarter as floats. */
DEVICE void quad_widen(enum kv_dtype dtype, const uint32_t (&w)[16], float (&x)[32])
{
	if (dtype == KV_DTYPE_F16) {
#pragma unroll
		for (uint32_t i = 0; i < 16; i++) {
			x[2 * i] = __low2float(half2_of(w[i]));
			x[2 * i + 1] = __high2float(half2_of(w[i]));
		}
	} else {
#pragma unroll
		for (uint32_t i = 0; i < 16; i++) {
			x[2 * i] = __uint_as_float(w[i] << 16);
			x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000);
		}
	}
}

template <uint32_t H> DEVICE void quad_stage(float (&x)[32])
{
#pragma unroll
	for (uint32_t i = 0; i < 16; i++) {
		const uint32_t at = i / H * 2 * H + i % H;
		const float s = x[at] + x[at + H], d = x[at] - x[at + H];

		x[at] = s;
		x[at + H] = d;
	}
}

/* What a warp needs for the exchange: for each of 8 vectors four parts of 144 bytes, for the banks' sake. */
constexpr uint32_t QUAD_EXCHANGE_ROW = 576, QUAD_EXCHANGE = 8 * QUAD_EXCHANGE_ROW;

/* Rotates; `space`: QUAD_EXCHANGE bytes of the warp's. */
template <enum kv_side SIDE> DEVICE void quad_rotate(float (&x)[32], uint32_t space, uint32_t lane)
{
	const uint32_t row = space + lane / 4 * QUAD_EXCHANGE_ROW, to = row + lane % 4 * 144,
		       from = row + lane % 4 * 16;

	quad_stage<1>(x);
	quad_stage<2>(x);
	quad_stage<4>(x);
	quad_stage<8>(x);
	quad_stage<16>(x);
	/* Four elements that stay together: dims 4 j .. 4 j + 3 of K, and of V dims i, i + 1, i + 8, i + 9. */
	__syncwarp();
#pragma unroll
	for (uint32_t j = 0; j < 8; j++) {
		const uint32_t at = SIDE == KV_SIDE_K ? 4 * j : j % 4 * 2 + j / 4 * 16,
			       far = SIDE == KV_SIDE_K ? 2 : 8;

		store_shared_16(to + j * 16,
				make_uint4(__float_as_uint(x[at]), __float_as_uint(x[at + 1]),
					   __float_as_uint(x[at + far]), __float_as_uint(x[at + far + 1])));
	}
	__syncwarp();
#pragma unroll
	for (uint32_t m = 0; m < 8; m++) {
		const uint4 v = load_shared_16(from + m / 2 * 144 + m % 2 * 64);

		x[4 * m] = __uint_as_float(v.x);
		x[4 * m + 1] = __uint_as_float(v.y);
		x[4 * m + 2] = __uint_as_float(v.z);
		x[4 * m + 3] = __uint_as_float(v.w);
	}
	quad_stage<8>(x);
	quad_stage<16>(x);
}

/* A value of each vector: the even lane of two gets both lanes' of the first one, the odd lane of the second. */
DEVICE uint32_t quad_own(uint32_t lane, uint32_t first, uint32_t second, uint32_t *theirs)
{
	*theirs = __shfl_xor_sync(ALL_LANES, lane % 2 ? first : second, 1);
	return lane % 2 ? second : first;
}

/* The way back: what lanes know of their vectors, to all lanes. */
DEVICE void quad_tell(uint32_t lane, float own, float (&both)[2])
{
	both[0] = __shfl_sync(ALL_LANES, own, lane & ~1u);
	both[1] = __shfl_sync(ALL_LANES, own, lane | 1);
}

/* Votes of lanes about tokens g and g + 8 as a bit a token. */
DEVICE uint32_t quad_tokens(bool first, bool second)
{
	const uint32_t firsts = __ballot_sync(ALL_LANES, first), seconds = __ballot_sync(ALL_LANES, second);
	uint32_t tokens = 0;

#pragma unroll 1
	for (uint32_t g = 0; g < 8; g++)
		tokens |= ((firsts >> (4 * g) & 15) != 0) << g | ((seconds >> (4 * g) & 15) != 0) << (8 + g);
	return tokens;
}

/* int4_pth. A code is floor(t + 1/2), t = x / step + zero, each rounded. 2^19 + t + 1/2 rounded down to 1/16 has it in
 * bits 4 .. 7, 2^15 + t + 1/2 rounded down to 1/256 in bits 8 .. 11, and nothing in 12 .. 15. That sum is not rounded
 * before, as the CPU's is: only where t is the number below 1/2 does that make another code. */
template <enum kv_side SIDE, bool BF16> struct quad_int4 {
	using two = kept_two<BF16>;
	using pair = typename two::type;
	static constexpr uint32_t WORDS = 4;
	pair h[2][16]; /* the rotated vectors, as vLLM keeps them */
	float inverse[2], zero[2];
	uint32_t scale; /* of the lane's own vector, as is: */
	bool doubtful;	/* numbers that are none or too large */

	/* x in halves; the lane's lowest number and the highest, negated. */
	DEVICE static uint32_t narrow(const float (&x)[32], pair (&h)[16])
	{
		pair low, high;

#pragma unroll
		for (int i = 0; i < 16; i++) {
			h[i] = two::of(x[2 * i], x[2 * i + 1]);
			low = i ? __hmin2(low, h[i]) : h[0];
			high = i ? __hmax2(high, h[i]) : h[0];
		}
		high = __hneg2(high);
		return two::bits(__hmin2(two::of_bits(permute(two::bits(low), two::bits(high), 0x5410)),
					 two::of_bits(permute(two::bits(low), two::bits(high), 0x7632))));
	}

	DEVICE void measure(const float (&x)[2][32], uint32_t lane, uint32_t)
	{
		const uint32_t first = narrow(x[0], h[0]), second = narrow(x[1], h[1]);
		uint32_t theirs, own = quad_own(lane, first, second, &theirs);
		pair range = __hmin2(two::of_bits(own), two::of_bits(theirs));

		range = __hmin2(range, two::of_bits(__shfl_xor_sync(ALL_LANES, two::bits(range), 2)));
		const float low = __low2float(range), high = -__high2float(range);
		const float step = fmaxf(__fmul_rn(__fadd_rn(high, -low), 1.0f / 15.0f), 1e-6f),
			    inv = reciprocal_fast(step);
		const uint32_t point = int4_rounded(-low, inv, 0);

		/* A number beyond 65504, or none, makes one beyond 60000 here: the rotated vector is that long. Of
		 * bf16 others may be, too. */
		doubtful = !(low > -60000.0f && high < 60000.0f);
		scale = (__float_as_uint(step) & ~15u) | point;
		quad_tell(lane, inv, inverse);
		quad_tell(lane, (float)point, zero);
		/* Codes must not leave 0 .. 15: only where a range does not hold 0, or by rounding. The middles of the
		 * outermost steps have those steps' codes. */
		if (__any_sync(ALL_LANES,
			       !(place(low, inv, (float)point) >= 0 && place(high, inv, (float)point) < 16)))
			clamp(lane, step);
		/* A number of that dtype whose t is the number below 1/2 is the one next to where t is 1/2. */
		const float v = two::rounded((0.5f - (float)point) * step);
		const bool below = __fmaf_rn(v, inv, (float)point) == 0x1.fffffep-2f;

		if (__any_sync(ALL_LANES, below))
			raise(lane, v, below);
	}

	/* The next number takes the place of v, where there is one and `wanted`. */
	DEVICE void raise(uint32_t lane, float v, bool wanted)
	{
		const float next = two::above(v);
		float from[2], by[2];

		quad_tell(lane, v, from);
		quad_tell(lane, wanted ? next - v : 0, by);
#pragma unroll
		for (int o = 0; o < 2; o++)
#pragma unroll
			for (int i = 0; i < 16; i++)
				h[o][i] = __hfma2(__heq2(h[o][i], two::of(from[o], from[o])), two::of(by[o], by[o]),
					h[o][i]);
	}

	DEVICE void clamp(uint32_t lane, float own)
	{
		float step[2];

		quad_tell(lane, own, step);
#pragma unroll
		for (int o = 0; o < 2; o++) {
			const float first = -zero[o] * step[o], last = (15 - zero[o]) * step[o];
			const pair low = two::of(first, first), high = two::of(last, last);

#pragma unroll
			for (int i = 0; i < 16; i++)
				h[o][i] = __hmin2(__hmax2(h[o][i], low), high);
		}
	}

	/* Byte N of each. */
	template <uint32_t N> DEVICE static uint32_t four_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
	{
		return permute(permute(a, b, 0x40 + 0x11 * N), permute(c, d, 0x40 + 0x11 * N), 0x5410);
	}

	DEVICE static float place(float v, float inverse, float zero)
	{
		return __fadd_rn(__fmaf_rn(v, inverse, zero), 0.5f);
	}

	DEVICE void pack(const float (&)[2][32], uint32_t (&words)[2][WORDS], uint32_t, uint32_t)
	{
		using P = plane_row<128, 4, SIDE>;

#pragma unroll
		for (uint32_t o = 0; o < 2; o++)
#pragma unroll
			for (uint32_t i = 0; i < WORDS; i++) {
				uint32_t byte[8];

#pragma unroll
				for (uint32_t n = 0; n < 8; n++) {
					const uint32_t e = quad_element<SIDE>(P::dim_of(4 * i + n / 2, n % 2));
					const float v = e % 2 ? __high2float(h[o][e / 2]) : __low2float(h[o][e / 2]);

					byte[n] = __float_as_uint(__fadd_rd(__fmaf_rn(v, inverse[o], zero[o]), (n % 2 ? 0x1p19f : 0x1p15f) + 0.5f));
				}
				words[o][i] = choose_bits(0xf0f0f0f0, four_bytes<0>(byte[1], byte[3], byte[5], byte[7]),
							  four_bytes<1>(byte[0], byte[2], byte[4], byte[6]));
			}
	}

	DEVICE bool unsure_here() const
	{
		return doubtful;
	}

	/* Tokens to be done again by encode_vector. */
	DEVICE uint32_t again(uint32_t lane) const
	{
		return quad_tokens(doubtful && lane % 2 == 0, doubtful && lane % 2);
	}
};

/* x / by, rounded as a division rounds: for a constant and its rounded inverse (Markstein). */
DEVICE float divided(float x, float by, float inverse)
{
	const float q = __fmul_rn(x, inverse), rest = __fmaf_rn(-q, by, x);

	return __fmaf_rn(rest, inverse, q);
}

template <int FORMAT, enum kv_side SIDE> __device__ __noinline__ bool other_words(uint32_t at, float more);

/* Codebooks (encode_codes.cuh). Codes are made by a lower bound of 2 / step, and the sum of all k by an upper one as
 * well: where the sums differ, rounding could decide, and the words are made by the upper bound, too. Where those
 * differ, the vector is to be done again by encode_vector, as is one too small or too large for the bounds. That must
 * be rare: it takes as long as an atom, and at the end of a launch all wait for the last one. */
template <int FORMAT, enum kv_side SIDE> struct quad_codebook {
	using codes = codebook_codes<FORMAT>;
	static constexpr uint32_t W = codes::W, PLAIN = W, WORDS = PLAIN + (FORMAT == KV_TQ3);
	static constexpr float MAGIC = 0x1p23f + 0x6400; /* its bits and an integer's below 1024: in a half 1024 + the
							  * integer */
	static constexpr uint32_t MAGIC_BITS = 0x4b006400;
	float less[2], more[2];
	float squared, length; /* of the lane's own vector, as are: */
	uint32_t scale;
	bool doubtful;
	uint32_t squares[2];
	bool unsure[2];

	/* The length as codebook.c sums it: part j is of dims j, j + 16, ..., so that a lane has whole parts. */
	DEVICE static void store_parts(const float (&x)[32], uint32_t lane, uint32_t parts)
	{
		float part[4];

#pragma unroll
		for (int e = 0; e < 4; e++)
			part[e] = __fmul_rn(x[e], x[e]);
#pragma unroll
		for (int i = 4; i < 32; i++)
			part[i % 4] = __fadd_rn(part[i % 4], __fmul_rn(x[i], x[i]));
		const uint4 bits = make_uint4(__float_as_uint(part[0]), __float_as_uint(part[1]),
					      __float_as_uint(part[2]), __float_as_uint(part[3]));

		if (SIDE == KV_SIDE_K) {
			store_shared_16(parts + lane % 4 * 16, bits);
		} else {
			store_shared_8(parts + lane % 4 * 8, make_uint2(bits.x, bits.y));
			store_shared_8(parts + 32 + lane % 4 * 8, make_uint2(bits.z, bits.w));
		}
	}

	DEVICE static float sum_parts(uint32_t parts)
	{
		float sum = 0;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint4 v = load_shared_16(parts + i * 16);

			sum = i ? __fadd_rn(sum, __uint_as_float(v.x)) : __uint_as_float(v.x);
			sum = __fadd_rn(sum, __uint_as_float(v.y));
			sum = __fadd_rn(sum, __uint_as_float(v.z));
			sum = __fadd_rn(sum, __uint_as_float(v.w));
		}
		return sum;
	}

	DEVICE void measure(const float (&x)[2][32], uint32_t lane, uint32_t space)
	{
		const uint32_t parts = space + lane / 4 * 128;

		__syncwarp();
		store_parts(x[0], lane, parts);
		store_parts(x[1], lane, parts + 64);
		__syncwarp();
		const float sum = sum_parts(parts + lane % 2 * 64);

		/* A number beyond 65504 would make it 2^39; -0 is left only where all are 0. */
		doubtful = !(sum > 0x1p-60f && sum < 0x1p38f);
		squared = doubtful ? 1 : sum;
		const float y = root_inverse_fast(squared), s = __fmul_rn(squared, y);

		length = __fmaf_rn(__fmaf_rn(-s, s, squared), __fmul_rn(y, 0.5f), s); /* the root, rounded as sqrtf */
		bound(lane, divided(divided(length, ROOT, 1 / ROOT), codes::PER_UNIT, 1 / codes::PER_UNIT));
	}

	static constexpr float ROOT = 0x1.6a09e6p+3f; /* sqrtf(128) */

	/* A threshold is off its place by 2^-24 of it at most. */
	DEVICE void bound(uint32_t lane, float step)
	{
		float inverse = reciprocal_fast(step);

		inverse = __fmaf_rn(__fmaf_rn(-step, inverse, 1.0f), inverse, inverse);
		const float rest = __fmaf_rn(-step, inverse, 1.0f), twice = inverse + inverse;

		quad_tell(lane, __fmaf_rd(twice, rest - 0x1.02p-24f, twice), less);
		quad_tell(lane, -__fmaf_rd(-twice, rest + 0x1.02p-24f, -twice), more);
	}

	/* Sums of k by the two bounds; below is two sums of halves. */
	struct sums {
		float less, more;
		uint32_t below, above;
	};

	DEVICE static uint32_t floored(float v, float by)
	{
		return __float_as_uint(__fmaf_rd(fabsf(v), by, MAGIC));
	}

	/* The codes of a and b with codes::BIAS; of tq3 their magnitudes. */
	DEVICE static uint32_t two_codes(float a, float b, sums &s)
	{
		const uint32_t whole = permute(floored(a, s.less), floored(b, s.less), 0x5410),
			       sign = permute(__float_as_uint(a), __float_as_uint(b), 0xffbb); /* each one's, 16 times */

		s.below += whole;
		s.above += floored(a, s.more) + floored(b, s.more);
		return bits_of(codes::magnitudes(half2_of(whole))) | (sign & codes::SIGNS);
	}

	/* Returns four times the sum of the squares of the magnitudes. */
	DEVICE static uint32_t make_words(const float (&x)[32], uint32_t (&words)[WORDS], sums &s)
	{
		using P = plane_row<128, W, SIDE>;
		uint32_t squares = 0;

#pragma unroll
		for (uint32_t i = 0; i < PLAIN; i++) {
			uint32_t w = 0;

#pragma unroll
			for (uint32_t n = 16 / W; n-- > 0;) {
				const uint32_t byte = 4 * i + n / P::FIELDS, q = n % P::FIELDS;

				w = (w << W) + two_codes(x[quad_element<SIDE>(P::dim_of(byte, q))],
							 x[quad_element<SIDE>(P::dim_of(byte + 2, q))], s);
			}
			words[i] = w - codes::BIAS * (W == 4 ? 0x1111u : 0x5555u);
			squares = codes::squares_of(words[i], squares);
		}
		if constexpr (FORMAT == KV_TQ3) { /* the plane of signs */
			using S = plane_row<128, 1, SIDE>;
			uint32_t w = 0;

#pragma unroll
			for (uint32_t n = 32; n-- > 0;)
				w = __funnelshift_l(__float_as_uint(x[quad_element<SIDE>(S::dim_of(n / 8, n % 8))]), w, 1);
			words[PLAIN] = w;
		}
		return squares;
	}

	DEVICE void pack(const float (&x)[2][32], uint32_t (&words)[2][WORDS], uint32_t lane, uint32_t space)
	{
#pragma unroll
		for (uint32_t o = 0; o < 2; o++) {
			sums s = {less[o], more[o], 0u - 16u * 0x64006400u, 0u - 32u * MAGIC_BITS};

			squares[o] = make_words(x[o], words[o], s);
			unsure[o] = s.above != (s.below & 0xffff) + (s.below >> 16);
			if (__any_sync(ALL_LANES, unsure[o]))
				look_again(x[o], words[o], o, space + lane * 144);
		}
		make_scale(lane);
	}

	/* Through shared memory, so that vectors which do not need it pay no registers for it. */
	DEVICE void look_again(const float (&x)[32], const uint32_t (&words)[WORDS], uint32_t o, uint32_t mine)
	{
		__syncwarp();
#pragma unroll
		for (uint32_t i = 0; i < 8; i++)
			store_shared_16(mine + i * 16,
					make_uint4(__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
						   __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3])));
#pragma unroll
		for (uint32_t i = 0; i < WORDS; i++)
			store_shared_4(mine + 128 + i * 4, words[i]);
		unsure[o] = other_words<FORMAT, SIDE>(mine, more[o]);
	}

	/* length / (sqrt(squares) / 2) as a half: by two bounds, where they agree. */
	DEVICE void make_scale(uint32_t lane)
	{
		uint32_t theirs, sum = quad_own(lane, squares[0], squares[1], &theirs);

		sum += theirs;
		sum += __shfl_xor_sync(ALL_LANES, sum, 2);
		const float n = (float)sum, guess = root_inverse_fast(n),
			    y = __fmaf_rn(__fmaf_rn(-__fmul_rn(n, guess), guess, 1.0f), __fmul_rn(guess, 0.5f), guess),
			    full = __fmul_rn(length + length, y);
		const uint32_t two = bits_of(__floats2half2_rn(__fmul_rn(full, 1 - 0x1p-21f), __fmul_rn(full, 1 + 0x1p-21f)));

		scale = two & 0xffff;
		if (__any_sync(ALL_LANES, scale != two >> 16 || full > 65000.0f)) /* as the CPU, then */
			scale = __half_as_ushort(__float2half_rn(fminf(__fdiv_rn(sqrtf(squared), sqrtf(n) / 2), FINITE_MAX)));
	}

	DEVICE bool unsure_here() const
	{
		return unsure[0] || unsure[1] || doubtful;
	}

	/* Tokens to be done again by encode_vector. */
	DEVICE uint32_t again(uint32_t lane) const
	{
		return quad_tokens(unsure[0] || (doubtful && lane % 2 == 0), unsure[1] || (doubtful && lane % 2));
	}
};

/* Whether the lane's words are others by the upper bound: its elements and its words stand in shared memory. */
template <int FORMAT, enum kv_side SIDE> __device__ __noinline__ bool other_words(uint32_t at, float more)
{
	using Q = quad_codebook<FORMAT, SIDE>;
	typename Q::sums s = {more, more, 0, 0};
	uint32_t words[Q::WORDS], differ = 0;
	float x[32];

#pragma unroll
	for (uint32_t i = 0; i < 8; i++) {
		const uint4 v = load_shared_16(at + i * 16);

		x[4 * i] = __uint_as_float(v.x);
		x[4 * i + 1] = __uint_as_float(v.y);
		x[4 * i + 2] = __uint_as_float(v.z);
		x[4 * i + 3] = __uint_as_float(v.w);
	}
	Q::make_words(x, words, s);
#pragma unroll
	for (uint32_t i = 0; i < Q::WORDS; i++)
		differ |= words[i] ^ load_shared_4(at + 128 + i * 4);
	return differ != 0;
}

#endif
