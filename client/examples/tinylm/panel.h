/* Dense float arithmetic: everything in the engine that is worth being fast on a CPU.
 *
 * A weight matrix is kept in *panels* of 16 outputs, so that one vector load serves 16 of them and the inner loop is a
 * broadcast and a multiply-add a row of input. Each output is summed over the inputs in order, whatever the number of rows:
 * the result for a token does not depend, to the last bit, on which tokens are computed with it. That is why a prompt
 * prefilled behind a reused prefix continues exactly as one prefilled from the start. */
#ifndef TINYLM_PANEL_H
#define TINYLM_PANEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions marked so are compiled for AVX-512, AVX2 and the baseline, and chosen when the program is loaded; sanitizers
 * and clang cannot take such an ifunc and get the baseline. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && !defined(TERRACE_SANITIZED)
#define PANEL_WIDE
#define PANEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PANEL_CLONES
#endif

enum { PANEL_WIDTH = 16 };

struct panel_matrix {
	uint32_t in, out;
	float *w; /* [ceil(out / 16)][in][16]; the outputs past `out` are 0 */
};

/* Packs a row-major [out][in] bfloat16 matrix (little-endian, of any alignment). False: out of memory. */
bool panel_matrix_init(struct panel_matrix *m, uint32_t out, uint32_t in, const void *bf16);
void panel_matrix_fini(struct panel_matrix *m);

/* y[rows][m->out] = x[rows][m->in] . W^T, or += with add. Rows are x_stride and y_stride floats apart. Only the outputs
 * first_out .. first_out + outs - 1 are computed; first_out is a multiple of 16. */
void panel_multiply(const struct panel_matrix *m, uint32_t first_out, uint32_t outs, uint32_t rows, const float *x,
		    size_t x_stride, float *y, size_t y_stride, bool add);

/* The tile that panel_multiply is made of, for matrices laid out elsewhere: y[rows][16] = sum over k < depth of
 * x[r * x_stride + k] * w[k * w_stride + 0..15]. rows is at most 8. */
void panel_tile(uint32_t rows, const float *x, size_t x_stride, const float *w, size_t w_stride, size_t depth, float *y,
		size_t y_stride);

/* y[n] = x[n] / sqrt(mean(x^2) + eps) * weight[n]. */
void panel_rms_norm(const float *x, const float *weight, uint32_t n, float eps, float *y);

/* g[n] = silu(g[n]) * u[n]. */
void panel_swiglu(float *g, const float *u, size_t n);

/* Softmax in place over the first `valid` of n scores; the rest becomes 0. valid > 0. */
void panel_softmax(float *s, size_t valid, size_t n);

/* ln(sum exp(x[n])), summed in double. */
double panel_log_sum_exp(const float *x, size_t n);

#endif
