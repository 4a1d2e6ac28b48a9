#include "tests/cuda_cpu/product.h"

#include "kernels/half.h"
#include "tests/cuda_cpu/block.h"

namespace cuda_cpu
{

namespace
{

constexpr uint32_t WORDS = 8; /* of a row of A and of a column of B */

/* Whose word k of a row or column is. */
unsigned lane_of(unsigned row, uint32_t k)
{
	return 4 * row + k % 4;
}

template <class A, class B> void product_of_bytes(const char *what, int32_t (&c)[4], const operands &mine)
{
	constexpr uint32_t BYTES = 4 * WORDS;
	const exchange<operands> all(what, mine);
	const uint32_t g = lane() / 4, t = lane() % 4;
	uint32_t words[2][2][WORDS];
	A a[2][BYTES];
	B b[2][BYTES];

	for (uint32_t k = 0; k < WORDS; k++) {
		const operands row = all[lane_of(g, k)];

		for (uint32_t i = 0; i < 2; i++) {
			words[0][i][k] = row.a[k / 4 * 2 + i];
			words[1][i][k] = all[lane_of(2 * t + i, k)].b[k / 4];
		}
	}
	memcpy(a, words[0], sizeof(a));
	memcpy(b, words[1], sizeof(b));
	for (uint32_t i = 0; i < 4; i++) {
		int32_t products = 0;

		for (uint32_t k = 0; k < BYTES; k++)
			products += (int32_t)a[i / 2][k] * b[i % 2][k];
		if (__builtin_add_overflow(c[i], products, &c[i]))
			fail("overflows a sum of %s", what);
	}
}

/* A lane's operands as numbers. */
struct numbers {
	float a[4][2], b[2][2];
};

/* Summed in float64. */
template <float (*NUMBER)(uint16_t)> void product_of_halves(const char *what, float (&c)[4], const operands &mine)
{
	numbers own;

	for (uint32_t e = 0; e < 2; e++) {
		for (uint32_t i = 0; i < 4; i++)
			own.a[i][e] = NUMBER((uint16_t)(mine.a[i] >> (16 * e)));
		for (uint32_t i = 0; i < 2; i++)
			own.b[i][e] = NUMBER((uint16_t)(mine.b[i] >> (16 * e)));
	}
	const exchange<numbers> all(what, own);
	const uint32_t g = lane() / 4, t = lane() % 4;
	double sum[4] = {c[0], c[1], c[2], c[3]};

	for (uint32_t k = 0; k < WORDS; k++) {
		const numbers row = all[lane_of(g, k)], columns[2] = {all[lane_of(2 * t, k)], all[lane_of(2 * t + 1, k)]};

		for (uint32_t e = 0; e < 2; e++)
			for (uint32_t i = 0; i < 4; i++)
				sum[i] += (double)row.a[k / 4 * 2 + i / 2][e] * columns[i % 2].b[k / 4][e];
	}
	for (uint32_t i = 0; i < 4; i++)
		c[i] = (float)sum[i];
}

} // namespace

void product_us(const char *what, int32_t (&c)[4], const operands &mine)
{
	product_of_bytes<uint8_t, int8_t>(what, c, mine);
}

void product_ss(const char *what, int32_t (&c)[4], const operands &mine)
{
	product_of_bytes<int8_t, int8_t>(what, c, mine);
}

void product_uu(const char *what, int32_t (&c)[4], const operands &mine)
{
	product_of_bytes<uint8_t, uint8_t>(what, c, mine);
}

void product_su(const char *what, int32_t (&c)[4], const operands &mine)
{
	product_of_bytes<int8_t, uint8_t>(what, c, mine);
}

void product_f16(const char *what, float (&c)[4], const operands &mine)
{
	product_of_halves<float_from_half>(what, c, mine);
}

void product_bf16(const char *what, float (&c)[4], const operands &mine)
{
	product_of_halves<float_from_bf16>(what, c, mine);
}

void panel_row(uint32_t descriptor, uint32_t row, float (&x)[16])
{
	for (uint32_t chunk = 0; chunk < 2; chunk++) {
		const uint32_t at = (descriptor << 4) + row / 8 * 1024 + row % 8 * 128 + chunk * 16;
		uint16_t from[8];

		memcpy(from, memory_at(at ^ (at >> 7 & 7) << 4, 16, 16), sizeof(from));
		for (uint32_t i = 0; i < 8; i++)
			x[chunk * 8 + i] = float_from_half(from[i]);
	}
}

void product_panel(float *c, uint32_t columns, const float (&a)[2][16], uint32_t b_at, bool add)
{
	const uint32_t t = lane() % 4;

	for (uint32_t n = 0; n < columns / 8; n++) {
		float *const to = c + 4 * n;
		double sum[4] = {to[0], to[1], to[2], to[3]};
		float b[2][16];

		for (uint32_t j = 0; j < 2; j++)
			panel_row(b_at, 8 * n + 2 * t + j, b[j]);
		for (uint32_t i = 0; i < 4; i++) {
			sum[i] = add ? sum[i] : 0;
			for (uint32_t k = 0; k < 16; k++)
				sum[i] += (double)a[i / 2][k] * b[i % 2][k];
			to[i] = (float)sum[i];
		}
	}
}

} // namespace cuda_cpu
