/* CRC-32C of pieces of device memory (see sums.h and store/device.h).
 *
 * A CRC is linear: a word that ends d bytes before the end of its part contributes word * x^(32 + 8d), modulo the
 * polynomial, and the sum is the exclusive or of all contributions and of a term that depends on the length alone. So a
 * part is cut, from its end, into pieces of SUM_PIECE_BYTES, a warp each, which add what they have to the part's sum in
 * memory by one atomic operation; no step waits for another, and none is longer for a longer part.
 *
 * Inside a piece the warp reads rows of 512 bytes, lane i the 16 bytes at 16 i. Each of the lane's four words has a sum
 * of its own, which is multiplied by x^4096 from row to row. That product is looked up by halves of bytes: 8 tables of
 * 16 words, in shared memory once for each lane, so that no two lanes ever want the same bank. Two look-ups a byte are
 * what bounds the kernel: at most 3.6 TB/s on 132 multiprocessors at 1.7 GHz, about what an H100's memory gives. At
 * the end the lane's four sums, then the warp's lanes, are brought to the end of the piece, and the piece to the end
 * of the part, by products with powers that the host has computed.
 *
 * Zeroes in front of a part add nothing to these sums, and a power of x has an inverse: so bytes before a part's begin
 * and behind its end are taken as zeroes, which makes every load a whole one, and the product with x^(-8 n) takes n
 * zeroes at the end back.
 */
#include "kernels/cuda/sums.h"
#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

namespace
{

constexpr uint32_t POLYNOMIAL = 0x82f63b78u; /* Castagnoli's; the highest power is the lowest bit */
constexpr uint32_t ONE = 1u << 31;
constexpr uint32_t VECTOR_BYTES = 16, ROW_BYTES = 32 * VECTOR_BYTES, ROWS_AT_ONCE = 4; /* that are asked for */
constexpr uint32_t SUM_PIECE_BYTES = 64 * ROW_BYTES;
constexpr uint32_t SUM_THREADS = 256, SUM_WARPS = SUM_THREADS / 32, SUM_CTAS = 8; /* of a multiprocessor */
constexpr uint32_t NIBBLES = 8, VALUES = 16, TABLE_BYTES = VALUES * 32 * 4; /* of one nibble, for all lanes */
constexpr uint32_t SUM_SHARED = TABLE_BYTES + NIBBLES * TABLE_BYTES + NIBBLES * VALUES * 4; /* the first aligns it */
constexpr uint32_t POWERS = 64, LEVELS = 3;

struct sum_tables {
	uint32_t row[NIBBLES][VALUES];   /* nibble n of value v times x^(8 ROW_BYTES) */
	uint32_t word[NIBBLES][VALUES];  /* the same times x^32 */
	uint32_t lane[32];               /* from a lane's last word in the last row to the end of the piece */
	uint32_t power[LEVELS][POWERS];  /* x^(8 SUM_PIECE_BYTES POWERS^level i) */
	uint32_t back[VECTOR_BYTES];     /* x^(-8 n) */
};

struct sum_args {
	const uint64_t *at;
	uint32_t *sums;
	uint64_t part_bytes, pieces;     /* pieces of the whole list */
	uint32_t parts, part_pieces;
	uint32_t length_term;
	sum_tables tables;
};

/* ---- on the host ------------------------------------------------------------------------------------------------- */

uint32_t host_times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; a; a <<= 1) {
		product ^= a & ONE ? b : 0;
		b = b & 1 ? (b >> 1) ^ POLYNOMIAL : b >> 1;
	}
	return product;
}

/* x^(8 bytes) */
uint32_t host_power(uint64_t bytes)
{
	uint32_t result = ONE, square = 1u << 23;

	for (; bytes; bytes >>= 1) {
		if (bytes & 1)
			result = host_times(result, square);
		square = host_times(square, square);
	}
	return result;
}

void host_nibbles(uint32_t (*table)[VALUES], uint32_t factor)
{
	for (uint32_t n = 0; n < NIBBLES; n++)
		for (uint32_t v = 0; v < VALUES; v++)
			table[n][v] = host_times(v << (4 * n), factor);
}

sum_tables host_tables_make()
{
	sum_tables t = {};
	uint64_t bytes = SUM_PIECE_BYTES;

	host_nibbles(t.row, host_power(ROW_BYTES));
	host_nibbles(t.word, host_power(4));
	for (uint32_t i = 0; i < 32; i++)
		t.lane[i] = host_power(ROW_BYTES - VECTOR_BYTES * i - (VECTOR_BYTES - 4));
	for (uint32_t level = 0; level < LEVELS; level++, bytes *= POWERS)
		for (uint32_t i = 0; i < POWERS; i++)
			t.power[level][i] = host_power(bytes * i);
	t.back[0] = ONE;
	for (uint32_t n = 1; n < VECTOR_BYTES; n++) {
		uint32_t x = t.back[n - 1];

		for (int bit = 0; bit < 8; bit++)
			x = x & ONE ? ((x ^ POLYNOMIAL) << 1) | 1 : x << 1;
		t.back[n] = x;
	}
	return t;
}

const sum_tables &host_tables()
{
	static const sum_tables made = host_tables_make();

	return made;
}

/* ---- on the device ----------------------------------------------------------------------------------------------- */

DEVICE uint32_t sum_times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

#pragma unroll 8
	for (int i = 0; i < 32; i++) {
		product ^= b & (0u - (a >> 31));
		a <<= 1;
		b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1)));
	}
	return product;
}

/* The product of nibble n of x in the lane's column of table n; `column`, whose bits 7 to 10 are 0, is that of
 * table 0. */
template <int n> DEVICE uint32_t row_of_nibble(uint32_t x, uint32_t column)
{
	const uint32_t at = n < 2 ? x << (7 - 4 * n) : x >> (n < 2 ? 0 : 4 * n - 7);

	return load_shared_4(((at & (TABLE_BYTES - 128)) | column) + n * TABLE_BYTES);
}

/* x times x^(8 ROW_BYTES) */
DEVICE uint32_t next_row(uint32_t x, uint32_t column)
{
	return row_of_nibble<0>(x, column) ^ row_of_nibble<1>(x, column) ^ row_of_nibble<2>(x, column) ^
	       row_of_nibble<3>(x, column) ^ row_of_nibble<4>(x, column) ^ row_of_nibble<5>(x, column) ^
	       row_of_nibble<6>(x, column) ^ row_of_nibble<7>(x, column);
}

/* x times x^32; `table` is an address in shared memory. */
DEVICE uint32_t next_word(uint32_t x, uint32_t table)
{
	uint32_t product = 0;

#pragma unroll
	for (uint32_t n = 0; n < NIBBLES; n++)
		product ^= load_shared_4(table + (n * VALUES + (x >> (4 * n) & (VALUES - 1))) * 4);
	return product;
}

/* Words of a vector from byte `from` on, up to byte `to`. */
DEVICE uint32_t bytes_of(uint32_t word, int from, int to)
{
	word = from >= 4 ? 0 : from > 0 ? word & (~0u << (8 * from)) : word;
	return to <= 0 ? 0 : to < 4 ? word & ((1u << (8 * to)) - 1) : word;
}

/* A piece, in bytes from its first row on. */
struct sum_piece {
	const uint8_t *base;
	uint32_t rows;
	uint32_t first;      /* the first vector of which anything is the part's, */
	int head;            /* and how many of its first bytes are not */
	uint32_t last;       /* the last vector, if not all of its bytes are the part's; else nowhere */
	int tail;            /* how many are */
};

DEVICE uint4 vector_of(const sum_piece &p, uint32_t at)
{
	uint4 v = make_uint4(0, 0, 0, 0);

	if (at < p.first)
		return v;
	v = __ldcg((const uint4 *)(p.base + at));
	if (at == p.first && p.head)
		v = make_uint4(bytes_of(v.x, p.head, 4), bytes_of(v.y, p.head - 4, 4), bytes_of(v.z, p.head - 8, 4),
			       bytes_of(v.w, p.head - 12, 4));
	if (at == p.last)
		v = make_uint4(bytes_of(v.x, 0, p.tail), bytes_of(v.y, 0, p.tail - 4), bytes_of(v.z, 0, p.tail - 8),
			       bytes_of(v.w, 0, p.tail - 12));
	return v;
}

/* What the lane's words of the piece add to it, at its end. */
DEVICE uint32_t lane_sum(const sum_args &a, const sum_piece &p, uint32_t column, uint32_t words)
{
	const uint32_t lane = threadIdx.x % 32;
	uint4 sum = make_uint4(0, 0, 0, 0), row[ROWS_AT_ONCE];

	for (uint32_t r = 0; r < p.rows; r += ROWS_AT_ONCE) {
#pragma unroll
		for (uint32_t k = 0; k < ROWS_AT_ONCE; k++)
			row[k] = vector_of(p, (r + k) * ROW_BYTES + lane * VECTOR_BYTES);
#pragma unroll
		for (uint32_t k = 0; k < ROWS_AT_ONCE; k++) {
			sum.x = next_row(sum.x, column) ^ row[k].x;
			sum.y = next_row(sum.y, column) ^ row[k].y;
			sum.z = next_row(sum.z, column) ^ row[k].z;
			sum.w = next_row(sum.w, column) ^ row[k].w;
		}
	}
	sum.y ^= next_word(sum.x, words);
	sum.z ^= next_word(sum.y, words);
	sum.w ^= next_word(sum.z, words);
	return sum_times(sum.w, a.tables.lane[lane]);
}

/* Piece q of a part, counted from its end; pieces are cut at multiples of a vector. False: nothing of the part is in
 * it. */
DEVICE bool sum_piece_of(uint64_t begin, uint64_t end, uint32_t q, sum_piece *p)
{
	const uint64_t ceiling = (end + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES;
	const uint64_t floor = begin / VECTOR_BYTES * VECTOR_BYTES;
	const uint64_t high = ceiling - (uint64_t)q * SUM_PIECE_BYTES;

	if (ceiling - floor <= (uint64_t)q * SUM_PIECE_BYTES)
		return false;
	const uint32_t bytes = (uint32_t)min(high - floor, (uint64_t)SUM_PIECE_BYTES);

	p->rows = (bytes + ROW_BYTES * ROWS_AT_ONCE - 1) / (ROW_BYTES * ROWS_AT_ONCE) * ROWS_AT_ONCE;
	p->base = (const uint8_t *)(high - p->rows * ROW_BYTES);
	p->first = p->rows * ROW_BYTES - bytes;
	p->head = high - bytes < begin ? (int)(begin - floor) : 0;
	p->last = q == 0 && end < ceiling ? p->rows * ROW_BYTES - VECTOR_BYTES : ~0u;
	p->tail = (int)(VECTOR_BYTES - (ceiling - end));
	return true;
}

/* From the end of piece q to the end of its part. */
DEVICE uint32_t piece_sum(const sum_args &a, uint32_t sum, uint32_t q, uint64_t end)
{
	const uint32_t behind = (uint32_t)(0 - end) % VECTOR_BYTES;

	for (uint32_t level = 0; level < LEVELS; level++, q /= POWERS)
		if (q % POWERS)
			sum = sum_times(sum, a.tables.power[level][q % POWERS]);
	return behind ? sum_times(sum, a.tables.back[behind]) : sum;
}

DEVICE uint32_t xor_of_lanes(uint32_t sum)
{
	for (uint32_t bits = 16; bits; bits /= 2)
		sum ^= __shfl_xor_sync(ALL_LANES, sum, bits);
	return sum;
}

__global__ void __launch_bounds__(SUM_THREADS) sums_kernel(const sum_args a)
{
	DYNAMIC_SHARED(uint8_t, sum_shared, 128);
	const uint32_t room = (TABLE_BYTES - shared_address(sum_shared) % TABLE_BYTES) % TABLE_BYTES;
	uint32_t *const rows = (uint32_t *)(sum_shared + room), *const word = rows + NIBBLES * VALUES * 32;
	const uint32_t column = shared_address(rows) + threadIdx.x % 32 * 4, words = shared_address(word);

	for (uint32_t i = threadIdx.x; i < NIBBLES * VALUES * 32; i += SUM_THREADS)
		rows[i] = a.tables.row[i / 32 / VALUES][i / 32 % VALUES];
	for (uint32_t i = threadIdx.x; i < NIBBLES * VALUES; i += SUM_THREADS)
		word[i] = a.tables.word[i / VALUES][i % VALUES];
	__syncthreads();
	uint64_t i = (uint64_t)blockIdx.x * SUM_WARPS + threadIdx.x / 32;

	for (; i < a.pieces; i += (uint64_t)gridDim.x * SUM_WARPS) {
		const uint32_t part = (uint32_t)(i / a.part_pieces), q = (uint32_t)(i % a.part_pieces);
		const uint64_t begin = a.at[part / a.parts] + part % a.parts * a.part_bytes, end = begin + a.part_bytes;
		uint32_t sum = 0;
		sum_piece p;

		if (sum_piece_of(begin, end, q, &p))
			sum = piece_sum(a, xor_of_lanes(lane_sum(a, p, column, words)), q, end);
		if (q == 0)
			sum ^= a.length_term;
		if (threadIdx.x % 32 == 0)
			atomicXor(a.sums + part, sum);
	}
}

enum status sums_problem(const struct kv_cuda_sums *s)
{
	if (!s->count || !s->parts || s->parts > DEVICE_SUMS_MAX || s->count > DEVICE_SUMS_MAX / s->parts)
		return STATUS_INVALID;
	if (!s->part_bytes || s->part_bytes > DEVICE_SUMS_PART_MAX || !s->at || !s->sums)
		return STATUS_INVALID;
	return aligned_to(8, {s->at}) && aligned_to(4, {s->sums}) ? STATUS_OK : STATUS_INVALID;
}

/* CTAs that fill the device; 0 if CUDA does not say. */
uint32_t sum_ctas()
{
	int device = 0, sms = 0;

	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
		return 0;
	return SUM_CTAS * (uint32_t)sms;
}

enum status sums_launch(const struct kv_cuda_sums *s, cudaStream_t stream)
{
	uint64_t grid = sum_ctas(), needed;
	sum_args a = {};
	bool plain;
	const enum status code = code_is_portable(&plain);

	if (code != STATUS_OK || !grid)
		return code != STATUS_OK ? code : STATUS_INTERNAL;
	a.at = s->at;
	a.sums = s->sums;
	a.part_bytes = s->part_bytes;
	a.parts = s->parts;
	/* A part may begin and end inside of vectors. */
	a.part_pieces = (uint32_t)((s->part_bytes + 2 * (VECTOR_BYTES - 1) + SUM_PIECE_BYTES - 1) / SUM_PIECE_BYTES);
	a.pieces = (uint64_t)s->count * s->parts * a.part_pieces;
	a.length_term = host_times(~0u, host_power(s->part_bytes)) ^ ~0u;
	a.tables = host_tables();
	needed = (a.pieces + SUM_WARPS - 1) / SUM_WARPS;
	grid = grid < needed ? grid : needed;
	launch_kernel(sums_kernel, (uint32_t)grid, SUM_THREADS, SUM_SHARED, stream, a);
	return launched();
}

} // namespace

extern "C" enum status kv_cuda_sums(const struct kv_cuda_sums *s, cudaStream_t stream)
{
	if (sums_problem(s) != STATUS_OK)
		return STATUS_INVALID;
	cudaGetLastError(); /* of an earlier call, which is no refusal of this one */
	const enum status status = sums_launch(s, stream);

	if (status != STATUS_OK)
		cudaGetLastError(); /* the next list is not to be blamed for it */
	return status;
}

extern "C" enum status kv_cuda_sums_load(const char **why)
{
	cudaFuncAttributes attributes;
	bool plain;
	enum status status = code_is_portable(&plain);

	if (status == STATUS_OK && cudaFuncGetAttributes(&attributes, sums_kernel) != cudaSuccess)
		status = STATUS_INTERNAL;
	const cudaError_t said = status != STATUS_OK ? cudaGetLastError() : cudaSuccess;

	if (status != STATUS_OK)
		*why = said != cudaSuccess ? cudaGetErrorString(said)
					   : "CUDA has no code of sums for the GPU, or no memory there for it";
	return status;
}
