/* Copies of lists of blocks (see cuda_kernels.h), by bulk copies through shared memory: one warp a CTA, which holds
 * no data in registers and leaves the multiprocessor's issue slots to others. A list is cut into pieces; CTA c
 * takes pieces c, c + grid, ... The warp's lanes look up the addresses of its next 32 pieces at once; lane 0 keeps
 * a ring of stages busy: piece i + STAGES - LAG is asked for while piece i is written. The same for memory of the
 * device and for pinned host memory mapped into it.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/device_memory.h"

namespace
{

constexpr uint32_t PIECE_BYTES = 8192, STAGES = 12, LAG = 4; /* stores that may still read their stage */
constexpr uint32_t COPY_CTAS = 2;                            /* a multiprocessor holds two: 197 KB */
constexpr uint32_t COPY_SHARED = STAGES * PIECE_BYTES + STAGES * 8;

struct copy_args {
	const uint64_t *from, *to;
	uint32_t stride;        /* numbers from one address in them to the next */
	uint64_t offset;        /* of what is copied in each block */
	const uint32_t *tokens; /* NULL: whole blocks */
	uint64_t pieces;        /* of the whole list */
	uint64_t block_bytes;
	uint32_t block_pieces, chunk_pieces; /* pieces of a block, of a chunk */
	uint32_t block_tokens, chunk_bytes, atom_bytes;
};

struct copy_piece {
	uint64_t from, to;
	uint32_t bytes; /* 0: nothing to do */
};

/* Piece i of the list. With a token count a block's pieces are those of its chunks, each cut at the last atom that
 * the tokens need. */
DEVICE copy_piece piece_of(const copy_args &a, uint64_t i)
{
	const uint32_t block = (uint32_t)(i / a.block_pieces), in_block = (uint32_t)(i % a.block_pieces);
	uint64_t at = (uint64_t)in_block * PIECE_BYTES, end = a.block_bytes;
	copy_piece p = {a.from[(uint64_t)block * a.stride], a.to[(uint64_t)block * a.stride], 0};

	if (a.tokens) {
		const uint32_t n = min(a.tokens[block], a.block_tokens);
		const uint64_t chunk = (uint64_t)(in_block / a.chunk_pieces) * a.chunk_bytes;

		at = chunk + (uint64_t)(in_block % a.chunk_pieces) * PIECE_BYTES;
		end = chunk + (uint64_t)((n + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS) * a.atom_bytes;
	}
	if (p.from && p.to && at < end)
		p.bytes = (uint32_t)min(end - at, (uint64_t)PIECE_BYTES);
	p.from += a.offset + at;
	p.to += a.offset + at;
	return p;
}

DEVICE void bulk_store(uint64_t to, uint32_t from, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
		     "r"(bytes)
		     : "memory");
}

DEVICE copy_piece piece_from_lane(const copy_piece &mine, uint32_t lane)
{
	return {__shfl_sync(ALL_LANES, mine.from, lane), __shfl_sync(ALL_LANES, mine.to, lane),
		__shfl_sync(ALL_LANES, mine.bytes, lane)};
}

/* The pieces of this CTA as the whole warp walks them, 32 looked up at a time. */
struct piece_walk {
	copy_piece mine;
	uint64_t next; /* of the list */

	DEVICE copy_piece step(const copy_args &a, uint32_t lane, uint64_t k)
	{
		if (k % 32 == 0) {
			const uint64_t i = blockIdx.x + (k + lane) * gridDim.x;

			mine = i < a.pieces ? piece_of(a, i) : copy_piece{0, 0, 0};
		}
		return piece_from_lane(mine, (uint32_t)(k % 32));
	}
};

__global__ void __launch_bounds__(32) copy_kernel(const copy_args a)
{
	extern __shared__ __align__(128) uint8_t ring[];
	const uint32_t lane = threadIdx.x, data = shared_address(ring), barriers = data + STAGES * PIECE_BYTES;
	const uint64_t count = a.pieces > blockIdx.x ? (a.pieces - 1 - blockIdx.x) / gridDim.x + 1 : 0;
	piece_walk loads, stores;

	if (lane == 0) {
		for (uint32_t s = 0; s < STAGES; s++)
			barrier_init(barriers + 8 * s);
		barrier_init_fence();
	}
	__syncwarp();
	for (uint64_t k = 0; k < count + STAGES - LAG; k++) {
		if (k < count) {
			const copy_piece p = loads.step(a, lane, k);
			const uint32_t s = (uint32_t)(k % STAGES);

			if (lane == 0) {
				/* the stage's last store was LAG steps ago, and every step closes a group */
				asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LAG - 1) : "memory");
				barrier_expect(barriers + 8 * s, p.bytes);
				if (p.bytes)
					bulk_load(data + s * PIECE_BYTES, p.from, p.bytes, barriers + 8 * s);
			}
		}
		if (k >= STAGES - LAG) {
			const uint64_t j = k - (STAGES - LAG);
			const copy_piece p = stores.step(a, lane, j);
			const uint32_t s = (uint32_t)(j % STAGES);

			if (lane == 0) {
				barrier_wait(barriers + 8 * s, (uint32_t)(j / STAGES % 2));
				if (p.bytes)
					bulk_store(p.to, data + s * PIECE_BYTES, p.bytes);
				asm volatile("cp.async.bulk.commit_group;" ::: "memory");
			}
		}
		__syncwarp();
	}
	if (lane == 0)
		asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

enum status fill_shape(const struct kv_cuda_copy *c, copy_args *a)
{
	if (c->block_bytes == 0 || c->block_bytes % 16)
		return STATUS_INVALID;
	a->block_bytes = c->block_bytes;
	a->block_pieces = (uint32_t)((c->block_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
	if (!c->tokens)
		return STATUS_OK;
	if (!c->layout || !c->geometry || c->geometry->block_bytes != c->block_bytes)
		return STATUS_INVALID;
	a->tokens = c->tokens;
	a->block_tokens = c->layout->block_tokens;
	a->chunk_bytes = c->geometry->chunk_bytes;
	a->atom_bytes = c->geometry->atom_bytes;
	a->chunk_pieces = (a->chunk_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
	a->block_pieces = a->chunk_pieces * c->layout->layers * c->layout->heads;
	return STATUS_OK;
}

/* CTAs that fill the device; 0 if CUDA does not say. */
uint32_t device_ctas()
{
	int device = 0, sms = 0;

	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
		return 0;
	return COPY_CTAS * (uint32_t)sms;
}

} // namespace

/* With at most so many CTAs; 0: as many as fill the device. */
static enum status launch(const copy_args &a, uint32_t ctas, cudaStream_t stream)
{
	uint64_t grid = ctas ? ctas : device_ctas();

	if (grid == 0 || cudaFuncSetAttribute(copy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
					      COPY_SHARED) != cudaSuccess)
		return STATUS_INTERNAL;
	grid = grid < a.pieces ? grid : a.pieces;
	copy_kernel<<<(uint32_t)grid, 32, COPY_SHARED, stream>>>(a);
	return cudaGetLastError() == cudaSuccess ? STATUS_OK : STATUS_INTERNAL;
}

extern "C" enum status kv_cuda_copy(const struct kv_cuda_copy *c, cudaStream_t stream)
{
	copy_args a = {};

	if (c->count == 0)
		return STATUS_OK;
	if (!c->from || !c->to || fill_shape(c, &a) != STATUS_OK)
		return STATUS_INVALID;
	a.from = c->from;
	a.to = c->to;
	a.stride = 1;
	a.pieces = (uint64_t)c->count * a.block_pieces;
	return launch(a, c->ctas, stream);
}

extern "C" enum status kv_cuda_copy_pairs(const struct device_pair *pairs, uint32_t count, uint64_t offset, uint64_t bytes, uint32_t ctas,
					  cudaStream_t stream)
{
	copy_args a = {};

	if (count == 0 || bytes == 0 || bytes % 16 || offset % 16)
		return STATUS_INVALID;
	a.from = &pairs->from;
	a.to = &pairs->to;
	a.stride = sizeof *pairs / sizeof pairs->from;
	a.offset = offset;
	a.block_bytes = bytes;
	a.block_pieces = (uint32_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
	a.pieces = (uint64_t)count * a.block_pieces;
	return launch(a, ctas, stream);
}
