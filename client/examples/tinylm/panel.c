/* The arithmetic of panel.h in plain C with GCC's vector types. A product is made of tiles of a few rows by one 16-float panel, whose sums stay
 * in registers: 8 rows in vectors of 16 floats with AVX-512, 4 in pairs of vectors of 8 with AVX2, 2 in fours of 4 elsewhere. (Vectors wider than a
 * machine's go through memory.) What is added to a sum, and in which order, is the same in all. */
#include "panel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef float vector __attribute__((vector_size(PANEL_WIDTH * sizeof(float)), aligned(4), may_alias));
typedef float vector_8 __attribute__((vector_size(8 * sizeof(float)), aligned(4), may_alias));
typedef float vector_4 __attribute__((vector_size(4 * sizeof(float)), aligned(4), may_alias));

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* y[rows][outs] (+)= x[rows][depth] * w, panels of [depth][PANEL_WIDTH] whose rows are w_stride apart, one after the other. */
struct product {
	const float *x, *w;
	float *y;
	size_t x_stride, w_stride, y_stride, depth;
	uint32_t rows, outs;
	bool add;
};

#ifdef __SANITIZE_ADDRESS__ /* is shown the ends of what a product reads and writes, and not every float of it again and again */
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))

static void look_at_ends(const struct product *p)
{
	const volatile float *x = p->x, *w = p->w, *y = p->y;
	const size_t panel = (p->outs - 1) / PANEL_WIDTH * PANEL_WIDTH * p->depth;

	if (p->rows == 0 || p->outs == 0 || p->depth == 0)
		return;
	(void)(x[0] + w[0] + y[0]);
	(void)(x[(p->rows - 1) * p->x_stride + p->depth - 1] + w[panel + (p->depth - 1) * p->w_stride + PANEL_WIDTH - 1]);
	(void)y[(p->rows - 1) * p->y_stride + p->outs - 1];
}
#else
#define UNCHECKED
#define look_at_ends(p) (void)(p)
#endif

/* multiply_NAME(). `rows` is a constant in every copy of the tile, so that the sums stay in registers. */
#define PRODUCTS(name, attributes, part, most)												\
	attributes static inline __attribute__((always_inline)) void tile_##name(const struct product *p, const uint32_t rows,		\
										 const float *x, const float *w, float *y,		\
										 uint32_t width)					\
	{																\
		enum { LANES = sizeof(part) / sizeof(float), PARTS = PANEL_WIDTH / LANES };						\
		const size_t x_stride = p->x_stride, w_stride = p->w_stride, depth = p->depth;						\
		part sum[most][PARTS];													\
																	\
		for (uint32_t r = 0; r < rows; r++)											\
			for (uint32_t i = 0; i < PARTS; i++)										\
				sum[r][i] = (part){ 0 };										\
		for (size_t k = 0; k < depth; k++) {											\
			const part *column = (const part *)(w + k * w_stride);								\
																	\
			_Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++)							\
				_Pragma("GCC unroll 4") for (uint32_t i = 0; i < PARTS; i++)						\
					sum[r][i] += x[r * x_stride + k] * column[i];							\
		}															\
		_Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; r++) {								\
			float *to = y + r * p->y_stride, total[PANEL_WIDTH];								\
																	\
			memcpy(total, sum[r], sizeof(total));										\
			for (uint32_t i = 0; i < width; i++)										\
				to[i] = p->add ? to[i] + total[i] : total[i];								\
		}															\
	}																\
																	\
	attributes static void multiply_##name(const struct product *p)									\
	{																\
		for (uint32_t at = 0; at < p->outs; at += PANEL_WIDTH) {								\
			const uint32_t width = p->outs - at < PANEL_WIDTH ? p->outs - at : PANEL_WIDTH;					\
			const float *w = p->w + (size_t)at * p->depth;									\
			uint32_t row = 0;												\
																	\
			for (; row + (most) <= p->rows; row += (most))									\
				tile_##name(p, most, p->x + row * p->x_stride, w, p->y + row * p->y_stride + at, width);		\
			for (; row < p->rows; row++)											\
				tile_##name(p, 1, p->x + row * p->x_stride, w, p->y + row * p->y_stride + at, width);			\
		}															\
	}

#ifdef PANEL_WIDE
PRODUCTS(16, __attribute__((target("arch=x86-64-v4"))), vector, 8)
PRODUCTS(8, __attribute__((target("arch=x86-64-v3"))), vector_8, 4)
#endif
#ifdef __SANITIZE_THREAD__ /* looks at a vector as a whole */
PRODUCTS(any, , vector, 8)
#else
PRODUCTS(any, UNCHECKED, vector_4, 2)
#endif

static void multiply(const struct product *p)
{
	look_at_ends(p);
#ifdef PANEL_WIDE
	if (__builtin_cpu_supports("x86-64-v4"))
		multiply_16(p);
	else if (__builtin_cpu_supports("x86-64-v3"))
		multiply_8(p);
	else
#endif
		multiply_any(p);
}

void panel_tile(uint32_t rows, const float *x, size_t x_stride, const float *w, size_t w_stride, size_t depth, float *y, size_t y_stride)
{
	multiply(&(struct product){ x, w, y, x_stride, w_stride, y_stride, depth, rows, PANEL_WIDTH, false });
}

void panel_multiply(const struct panel_matrix *m, uint32_t first_out, uint32_t outs, uint32_t rows, const float *x, size_t x_stride,
		    float *y, size_t y_stride, bool add)
{
	const float *w = m->w + (size_t)first_out * m->in;

	multiply(&(struct product){ x, w, y, x_stride, PANEL_WIDTH, y_stride, m->in, rows, outs, add });
}

static float from_bf16(const uint8_t *bytes)
{
	uint32_t bits = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 24;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

bool panel_matrix_init(struct panel_matrix *m, uint32_t out, uint32_t in, const void *bf16)
{
	size_t panels = ((size_t)out + PANEL_WIDTH - 1) / PANEL_WIDTH;
	const uint8_t *from = bf16;

	m->in = in;
	m->out = out;
	m->w = aligned_alloc(64, panels * PANEL_WIDTH * in * sizeof(float));
	if (!m->w)
		return false;
	memset(m->w, 0, panels * PANEL_WIDTH * in * sizeof(float));
	for (uint32_t o = 0; o < out; o++) {
		float *panel = m->w + (size_t)(o / PANEL_WIDTH) * PANEL_WIDTH * in + o % PANEL_WIDTH;

		for (uint32_t i = 0; i < in; i++)
			panel[(size_t)i * PANEL_WIDTH] = from_bf16(from + 2 * ((size_t)o * in + i));
	}
	return true;
}

void panel_matrix_fini(struct panel_matrix *m)
{
	free(m->w);
	m->w = NULL;
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

/* e^x to 2 ulp for x in [-87, 88], clamped outside: 2^n times a polynomial, in a form that compilers vectorise. */
static inline __attribute__((always_inline)) float exponential(float x)
{
	const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
	float n, f, p, power;
	uint32_t bits;

	x = x < -87.0f ? -87.0f : x;
	x = x > 88.0f ? 88.0f : x;
	n = x * 1.44269504f + round;
	memcpy(&bits, &n, sizeof(bits));
	n -= round;
	f = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
	p = 1.0f / 5040;
	p = p * f + 1.0f / 720;
	p = p * f + 1.0f / 120;
	p = p * f + 1.0f / 24;
	p = p * f + 1.0f / 6;
	p = p * f + 0.5f;
	p = p * f + 1.0f;
	p = p * f + 1.0f;
	bits = (bits + 127) << 23;
	memcpy(&power, &bits, sizeof(power));
	return p * power;
}

PANEL_CLONES void panel_rms_norm(const float *x, const float *weight, uint32_t n, float eps, float *y)
{
	vector sums = { 0 };
	float sum = 0, scale;

	for (uint32_t i = 0; i < n; i += PANEL_WIDTH) /* n is a multiple of 16 (config.c) */
		sums += *(const vector *)(x + i) * *(const vector *)(x + i);
	for (uint32_t i = 0; i < PANEL_WIDTH; i++)
		sum += sums[i];
	scale = 1.0f / sqrtf(sum / (float)n + eps);
	for (uint32_t i = 0; i < n; i++)
		y[i] = x[i] * scale * weight[i];
}

PANEL_CLONES void panel_swiglu(float *g, const float *u, size_t n)
{
	for (size_t i = 0; i < n; i++)
		g[i] = g[i] / (1.0f + exponential(-g[i])) * u[i];
}

PANEL_CLONES void panel_softmax(float *s, size_t valid, size_t n)
{
	float max = s[0], sum = 0;

	for (size_t i = 1; i < valid; i++)
		max = s[i] > max ? s[i] : max;
	for (size_t i = 0; i < valid; i++)
		s[i] = exponential(s[i] - max);
	for (size_t i = 0; i < valid; i++)
		sum += s[i];
	for (size_t i = 0; i < valid; i++)
		s[i] /= sum;
	for (size_t i = valid; i < n; i++)
		s[i] = 0;
}

PANEL_CLONES double panel_log_sum_exp(const float *x, size_t n)
{
	enum { LANES = 64 };
	float max = x[0];
	double sum = 0;

	for (size_t i = 1; i < n; i++)
		max = x[i] > max ? x[i] : max;
	for (size_t i = 0; i < n; i += LANES) {
		float part[LANES];
		size_t count = n - i < LANES ? n - i : LANES;

		for (size_t j = 0; j < count; j++)
			part[j] = exponential(x[i + j] - max);
		for (size_t j = 0; j < count; j++)
			sum += (double)part[j];
	}
	return (double)max + log(sum);
}
