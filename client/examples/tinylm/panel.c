/* The arithmetic of panel.h in plain C with GCC's vector types: 8 rows by one 16-float panel is 8 accumulators, which AVX-512
 * holds in 8 registers. */
#include "panel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8 };

typedef float vector __attribute__((vector_size(PANEL_WIDTH * sizeof(float)), aligned(4), may_alias));

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* `rows` is a constant in every copy that is inlined, so that the accumulators stay in registers. */
static inline __attribute__((always_inline)) void tile_rows(const uint32_t rows, const float *x, size_t x_stride,
							    const float *w, size_t w_stride, size_t depth, float *y,
							    size_t y_stride, uint32_t width, bool add)
{
	vector sum[ROWS];

	for (uint32_t r = 0; r < rows; r++)
		sum[r] = (vector){ 0 };
	for (size_t k = 0; k < depth; k++) {
		vector column = *(const vector *)(w + k * w_stride);

#pragma GCC unroll 8
		for (uint32_t r = 0; r < rows; r++)
			sum[r] += x[r * x_stride + k] * column;
	}
	for (uint32_t r = 0; r < rows; r++) {
		float *to = y + r * y_stride;

		for (uint32_t i = 0; i < width; i++)
			to[i] = add ? to[i] + sum[r][i] : sum[r][i];
	}
}

static inline __attribute__((always_inline)) void tile_any(uint32_t rows, const float *x, size_t x_stride, const float *w,
							   size_t w_stride, size_t depth, float *y, size_t y_stride,
							   uint32_t width, bool add)
{
	while (rows >= ROWS) {
		tile_rows(ROWS, x, x_stride, w, w_stride, depth, y, y_stride, width, add);
		x += ROWS * x_stride;
		y += ROWS * y_stride;
		rows -= ROWS;
	}
	for (; rows > 0; rows--, x += x_stride, y += y_stride)
		tile_rows(1, x, x_stride, w, w_stride, depth, y, y_stride, width, add);
}

PANEL_CLONES void panel_tile(uint32_t rows, const float *x, size_t x_stride, const float *w, size_t w_stride, size_t depth,
			     float *y, size_t y_stride)
{
	tile_any(rows, x, x_stride, w, w_stride, depth, y, y_stride, PANEL_WIDTH, false);
}

PANEL_CLONES void panel_multiply(const struct panel_matrix *m, uint32_t first_out, uint32_t outs, uint32_t rows,
				 const float *x, size_t x_stride, float *y, size_t y_stride, bool add)
{
	for (uint32_t at = 0; at < outs; at += PANEL_WIDTH) {
		const float *w = m->w + (size_t)(first_out + at) * m->in;

		if (outs - at >= PANEL_WIDTH)
			tile_any(rows, x, x_stride, w, PANEL_WIDTH, m->in, y + at, y_stride, PANEL_WIDTH, add);
		else
			tile_any(rows, x, x_stride, w, PANEL_WIDTH, m->in, y + at, y_stride, outs - at, add);
	}
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
