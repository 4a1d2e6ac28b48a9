/* How packed blocks get into shared memory: a ring of bulk copies a warp. */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_FEED_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_FEED_CUH

#include "kernels/cuda/attend_shape.cuh"

/* A warp's atoms on their way into its ring. Lane i knows the addresses of atoms i, i + 32, ... of the
 * run. */
template <class S> struct feed {
	const attend_args *args;
	const uint64_t *table; /* the sequence's blocks */
	uint64_t head_at;
	uint32_t first, atoms, lane;
	uint32_t data, barriers; /* shared addresses of the ring */
	uint32_t put, take, parity;
	uint64_t address, address_next;

	DEVICE uint64_t address_of(uint32_t i) const
	{
		if (i >= atoms)
			return 0;
		uint32_t atom = first + i, block = __umulhi(atom, args->block_magic);

		block = args->block_atoms == 1 ? atom : block;
		return table[block] + head_at + (atom - block * args->block_atoms) * S::ATOM;
	}

	/* Starts loading step `step`, if there is one. Steps are started in order. */
	DEVICE void start(uint32_t step)
	{
		if (step * STEP_ATOMS >= atoms)
			return;
		if (step > 0 && step % (32 / STEP_ATOMS) == 0) {
			address = address_next;
			address_next = address_of(step * STEP_ATOMS + 32 + lane);
		}
		uint32_t n = min(STEP_ATOMS, atoms - step * STEP_ATOMS);
		uint64_t from = __shfl_sync(ALL_LANES, address, (step * STEP_ATOMS + lane) % 32);

		if (lane == 0)
			barrier_expect(barriers + put * 8, n * S::ATOM);
		__syncwarp();
		if (args->block_atoms % STEP_ATOMS ==
		    0) { /* a step begins at an even atom, so both are in one block */
			if (lane == 0)
				bulk_load(data + put * STEP_ATOMS * S::ATOM, from, n * S::ATOM,
					  barriers + put * 8);
		} else if (lane < n) {
			bulk_load(data + (put * STEP_ATOMS + lane) * S::ATOM, from, S::ATOM,
				  barriers + put * 8);
		}
		put = put + 1 == S::STAGES ? 0 : put + 1;
	}

	/* A new run: fills the ring. */
	DEVICE void begin(const attend_args &a, const segment &s, uint32_t first_atom, uint32_t n)
	{
		args = &a;
		table = a.blocks + (size_t)s.sequence * a.blocks_stride;
		head_at = a.layer_at + (uint64_t)s.head * a.chunk_bytes;
		first = first_atom;
		atoms = n;
		address = address_of(lane);
		address_next = address_of(32 + lane);
		for (uint32_t i = 0; i < S::STAGES; i++)
			start(i);
	}

	/* Waits for the oldest step and returns its shared address. */
	DEVICE uint32_t wait() const
	{
		barrier_wait(barriers + take * 8, parity);
		return data + take * STEP_ATOMS * S::ATOM;
	}

	/* Every lane is done with the oldest step: its place goes to the step after those in the ring. */
	DEVICE void release(uint32_t step)
	{
		__syncwarp();
		if (++take == S::STAGES) {
			take = 0;
			parity ^= 1;
		}
		start(step + S::STAGES);
	}
};

#endif
