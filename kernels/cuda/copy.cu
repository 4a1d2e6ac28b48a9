/* Copies of lists of blocks (see cuda_kernels.h), by bulk copies through shared memory. A CTA is one warp, which holds
 * no data in registers and leaves the multiprocessor's issue slots to others. A list is cut into pieces; CTA c takes
 * pieces c, c + grid, ... The warp's lanes look up the addresses of its next 32 pieces at once. Lane 0 keeps a ring of
 * stages busy: piece i + STAGES - LAG is loaded while piece i is written. The same code serves memory of the device and
 * pinned host memory mapped into it.
 *
 * Where there are no bulk copies, a warp takes a piece through its registers, 4 KiB at a time, and a CTA has 16 warps.
 *
 * A list in parts is copied part by part, without a pause between them. A CTA that has written all its pieces of a part
 * counts itself. The CTA that counts last writes the number of complete parts to a word that others wait for. One CTA
 * at a time writes the word, so that it only rises; a CTA that comes meanwhile leaves its number to that one.
 */
#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/copy_pairs.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

namespace
{

constexpr uint32_t PIECE_BYTES = 8192, STAGES = 12;
constexpr uint32_t COPY_CTAS = 2; /* a multiprocessor holds two: 197 KB or, without bulk copies, 32 warps */
constexpr uint32_t BULK_THREADS = 32, BULK_SHARED = STAGES * PIECE_BYTES + STAGES * 8, PLAIN_THREADS = 512;

struct copy_args {
	const uint64_t *from, *to;
	uint32_t stride;        /* numbers from one address in them to the next */
	const uint32_t *tokens; /* NULL: whole blocks */
	uint64_t pieces, part_pieces; /* of the whole list; of a part of it */
	uint64_t block_bytes;   /* of a part of a block */
	uint32_t parts;
	uint32_t *counts;       /* the number of CTAs that want to write the word, the number of parts written, and for
				 * each part the CTAs that have copied theirs; NULL: no word is written */
	uint32_t *word, base;
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
	const uint64_t part = i / a.part_pieces, in_part = i % a.part_pieces, offset = part * a.block_bytes;
	const uint32_t block = (uint32_t)(in_part / a.block_pieces), in_block = (uint32_t)(in_part % a.block_pieces);
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
	p.from += offset + at;
	p.to += offset + at;
	return p;
}

/* A part of which one of `units` has written its pieces. */
DEVICE void part_written(const copy_args &a, uint32_t part, uint32_t units)
{
	uint32_t *waiting = a.counts, *told = a.counts + 1, *written = a.counts + KV_COPY_COUNTS, seen;

	__threadfence();
	if (atomicAdd(written + part, 1u) + 1 < units || atomicAdd(waiting, 1u) != 0)
		return;
	do {
		seen = atomicAdd(waiting, 0u);
		__threadfence();
		const uint32_t before = *(volatile uint32_t *)told;
		uint32_t now = before;

		while (now < a.parts && atomicAdd(written + now, 0u) == units)
			now++;
		__threadfence_system();
		if (now > before)
			*(volatile uint32_t *)a.word = a.base + now;
		*(volatile uint32_t *)told = now;
		__threadfence_system();
	} while (atomicAdd(waiting, 0u - seen) != seen);
}

/* One of `units` has written its pieces before number `next` of the list; `told` of the parts it has said. */
DEVICE uint32_t parts_written(const copy_args &a, uint64_t next, uint32_t told, uint32_t units)
{
	for (; told < a.parts && (told + 1) * a.part_pieces <= next; told++)
		part_written(a, told, units);
	return told;
}

#if TERRACE_CUDA_BULK
constexpr uint32_t LAG = 4;  /* stores that may still read their stage */
constexpr uint32_t OPEN = 8; /* stores that may not have been written, where parts are told of */

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

DEVICE void copy_pieces(const copy_args &a)
{
	DYNAMIC_SHARED(uint8_t, ring, 128);
	const uint32_t lane = threadIdx.x, data = shared_address(ring), barriers = data + STAGES * PIECE_BYTES;
	const uint64_t count = a.pieces > blockIdx.x ? (a.pieces - 1 - blockIdx.x) / gridDim.x + 1 : 0;
	piece_walk loads, stores;
	uint32_t told = 0;

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
				bulk_wait_read<LAG - 1>();
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
				bulk_close_group();
				if (a.counts)
					bulk_wait_written<OPEN>();
				if (a.counts && j >= OPEN)
					told = parts_written(a, blockIdx.x + (j - OPEN + 1) * gridDim.x, told, gridDim.x);
			}
		}
		__syncwarp();
	}
	if (lane == 0) {
		bulk_wait_all();
		if (a.counts)
			parts_written(a, blockIdx.x + count * gridDim.x, told, gridDim.x);
	}
}
#else
DEVICE void copy_pieces(const copy_args &a)
{
	constexpr uint32_t WARPS = PLAIN_THREADS / 32, AT_ONCE = 8; /* 16-byte vectors of a lane */
	const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * WARPS;
	uint64_t i = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32;
	uint32_t told = 0;

	for (; i < a.pieces; i += warps) {
		const copy_piece p = piece_of(a, i);
		const uint4 *from = (const uint4 *)p.from;
		uint4 *to = (uint4 *)p.to, held[AT_ONCE];

		for (uint32_t at = lane; at < p.bytes / 16; at += 32 * AT_ONCE) {
#pragma unroll
			for (uint32_t j = 0; j < AT_ONCE; j++)
				if (at + 32 * j < p.bytes / 16)
					held[j] = from[at + 32 * j];
#pragma unroll
			for (uint32_t j = 0; j < AT_ONCE; j++)
				if (at + 32 * j < p.bytes / 16)
					to[at + 32 * j] = held[j];
		}
		__syncwarp();
		if (a.counts && lane == 0)
			told = parts_written(a, i + warps, told, warps);
	}
	if (a.counts && lane == 0)
		parts_written(a, i, told, warps);
}
#endif

__global__ void __launch_bounds__(TERRACE_CUDA_BULK ? BULK_THREADS : PLAIN_THREADS) copy_kernel(const copy_args a)
{
	copy_pieces(a);
}

enum status fill_shape(const struct kv_cuda_copy *c, copy_args *a)
{
	if (c->block_bytes == 0 || c->block_bytes % 16)
		return STATUS_INVALID;
	a->block_bytes = c->block_bytes;
	a->block_pieces = (uint32_t)((c->block_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
	if (!c->tokens)
		return STATUS_OK;
	if (!layout_sound(c->layout, c->geometry) || c->geometry->block_bytes != c->block_bytes)
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

/* That the kernel may be launched so. */
static enum status prepare(bool *plain)
{
	const enum status code = code_is_portable(plain);

	if (code != STATUS_OK || *plain)
		return code;
	return cudaFuncSetAttribute(copy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BULK_SHARED) == cudaSuccess ? STATUS_OK : STATUS_INTERNAL;
}

/* With at most so many CTAs; 0: as many as fill the device. */
static enum status launch(const copy_args &a, uint32_t ctas, cudaStream_t stream)
{
	uint64_t grid = ctas ? ctas : device_ctas(), needed = a.pieces;
	bool plain;
	const enum status prepared = prepare(&plain);

	if (grid == 0)
		return STATUS_INTERNAL;
	if (prepared != STATUS_OK)
		return prepared;
	if (plain)
		needed = (a.pieces - 1) / (PLAIN_THREADS / 32) + 1;
	grid = grid < needed ? grid : needed;
	launch_kernel(copy_kernel, (uint32_t)grid, plain ? PLAIN_THREADS : BULK_THREADS, plain ? 0 : BULK_SHARED, stream, a);
	return launched();
}

extern "C" enum status kv_cuda_copy(const struct kv_cuda_copy *c, cudaStream_t stream)
{
	copy_args a = {};

	if (c->count == 0)
		return STATUS_OK;
	if (!c->from || !c->to || !aligned_to(8, {c->from, c->to}) || !aligned_to(4, {c->tokens}) || fill_shape(c, &a) != STATUS_OK)
		return STATUS_INVALID;
	a.from = c->from;
	a.to = c->to;
	a.stride = 1;
	a.parts = 1;
	a.pieces = a.part_pieces = (uint64_t)c->count * a.block_pieces;
	return launch(a, c->ctas, stream);
}

extern "C" enum status kv_cuda_copy_pairs(const struct kv_cuda_pairs *c, cudaStream_t stream)
{
	copy_args a = {};

	if (c->count == 0 || c->parts == 0 || c->part_bytes == 0 || c->part_bytes % 16)
		return STATUS_INVALID;
	a.from = &c->pairs->from;
	a.to = &c->pairs->to;
	a.stride = sizeof *c->pairs / sizeof c->pairs->from;
	a.parts = c->parts;
	a.block_bytes = c->part_bytes;
	a.block_pieces = (uint32_t)((c->part_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
	a.part_pieces = (uint64_t)c->count * a.block_pieces;
	a.pieces = c->parts * a.part_pieces;
	a.counts = c->counts;
	a.word = c->word;
	a.base = c->base;
	cudaGetLastError(); /* of an earlier call, which is no refusal of this one */
	const enum status status = launch(a, c->ctas, stream);

	if (status != STATUS_OK)
		cudaGetLastError(); /* clears the error, so that it is not taken for the next list's */
	return status;
}

extern "C" enum status kv_cuda_copy_load(const char **why)
{
	cudaFuncAttributes attributes;
	bool plain;
	enum status status = prepare(&plain);

	if (status == STATUS_OK && cudaFuncGetAttributes(&attributes, copy_kernel) != cudaSuccess)
		status = STATUS_INTERNAL;
	const cudaError_t said = status != STATUS_OK ? cudaGetLastError() : cudaSuccess; /* taken, as above */

	if (status != STATUS_OK)
		*why = said != cudaSuccess ? cudaGetErrorString(said) : "CUDA has no code for the GPU, or no memory there for it";
	return status;
}
