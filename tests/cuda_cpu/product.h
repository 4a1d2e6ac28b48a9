/* Products of matrices, as the tensor cores make them: most of what the kernels compute, and so compiled for speed (product.cpp). */
#ifndef TERRACE_TESTS_CUDA_CPU_PRODUCT_H
#define TERRACE_TESTS_CUDA_CPU_PRODUCT_H

#include <stdint.h>

namespace cuda_cpu
{

/* What a lane gives to m16n8k*: operands A and B. */
struct operands {
	uint32_t a[4], b[2];
};

/* c[4] of a lane += sums over a row of A and a column of B. Word k of a row (of a column) is lane k % 4's, of those of the row (column), in
 * register 2 (k / 4) (k / 4); it has four 8-bit integers, the signed (s) or unsigned (u) ones of A and of B, or two halves. `what` names the
 * instruction. An integer sum that overflows ends the program. */
void product_us(const char *what, int32_t (&c)[4], const operands &mine);
void product_ss(const char *what, int32_t (&c)[4], const operands &mine);
void product_uu(const char *what, int32_t (&c)[4], const operands &mine);
void product_su(const char *what, int32_t (&c)[4], const operands &mine);
void product_f16(const char *what, float (&c)[4], const operands &mine);
void product_bf16(const char *what, float (&c)[4], const operands &mine);

/* Sixteen halves of row `row` of the matrix at a descriptor: rows of 128 bytes, whose 16-byte chunks are permuted by the row. */
void panel_row(uint32_t descriptor, uint32_t row, float (&x)[16]);

/* c[columns / 2] of a lane = (`add`: +=) its rows of A times that matrix: of 64 rows a warp has 16, of them the lane two, and of B's rows two
 * of every eight. */
void product_panel(float *c, uint32_t columns, const float (&a)[2][16], uint32_t b_at, bool add);

} // namespace cuda_cpu

#endif
