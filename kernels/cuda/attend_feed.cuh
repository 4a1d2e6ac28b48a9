/* How packed blocks get into shared memory: a ring of copies for each warp. The copies are bulk copies by one lane that
 * complete on a barrier for each stage or, where the device has none, copies of 16 bytes by every lane.
 *
 * A bulk copy is fast if source and destination have the same distance from a multiple of 128 bytes. The length of an
 * atom is a multiple of 64, mostly not of 128. So a stage's atoms begin where they would if blocks began at multiples
 * of 128. (If blocks do not, the copies are only slower.)
 */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_FEED_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_FEED_CUH

#include "kernels/cuda/attend_shape.cuh"

/* A warp's atoms on their way into its ring. Lane i knows the addresses of atoms i, i + 32, ... of the
 * run. A stage is refilled as soon as it has been read, so that the next one to be read is always the one
 * that was filled first. */
template <class S> struct feed {
	static constexpr uint32_t ADDRESS_STEPS = 32 / S::STEP; /* whose addresses the lanes hold */

	const attend_args *args;
	uint32_t atoms, lane;
	uint32_t run; /* of a run, a lane each: the address of the sequence's table of blocks, `head_at`, its first
		       * atom */
	uint32_t ring, at, second; /* shared addresses of the ring and of the stage to be read next; from a
				    * stage's first atom to its second */
	uint32_t barrier, parity;  /* of the stage to be read next */
	uint64_t address, address_next; /* 0 where there is no atom */
	bool whole;        /* a step's atoms are in one block */

	/* The ring is empty; once a kernel. */
	DEVICE void init(uint8_t *shared)
	{
		lane = threadIdx.x % 32;
		ring = at = shared_address(shared) + threadIdx.x / 32 * S::STAGES * S::STAGE;
		barrier = shared_address(shared) + S::SIZES.barriers_at + threadIdx.x / 32 * S::STAGES * 8;
		parity = second = 0;
#if TERRACE_CUDA_BULK
		if (lane == 0) {
			for (uint32_t i = 0; i < S::STAGES; i++)
				barrier_init(barrier + i * 8);
			barrier_init_fence();
		}
		__syncwarp();
#endif
	}

	DEVICE uint64_t address_of(uint32_t i, const uint64_t *table, uint64_t head_at, uint32_t first_atom) const
	{
		if (i >= atoms)
			return 0;
		uint32_t atom = first_atom + i, block = __umulhi(atom, args->block_magic);

		block = args->block_atoms == 1 ? atom : block;
		return table[block] + head_at + (atom - block * args->block_atoms) * S::ATOM;
	}

	/* The address of atom i, by what the lanes know of the run; the whole warp calls it. */
	DEVICE uint64_t address_of(uint32_t i) const
	{
		const uint64_t table = __shfl_sync(ALL_LANES, run, 0) | (uint64_t)__shfl_sync(ALL_LANES, run, 1) << 32,
			       head_at = __shfl_sync(ALL_LANES, run, 2) | (uint64_t)__shfl_sync(ALL_LANES, run, 3) << 32;

		return address_of(i, (const uint64_t *)(uintptr_t)table, head_at, first());
	}

	DEVICE uint32_t first() const
	{
		return __shfl_sync(ALL_LANES, run, 4);
	}

	/* Copies the n atoms of step `step` to a stage. */
	DEVICE void copy(uint32_t to, uint32_t on, uint32_t step, uint32_t n)
	{
#if TERRACE_CUDA_BULK
		const uint32_t owner = step % ADDRESS_STEPS * S::STEP;
		const uint64_t from = __shfl_sync(ALL_LANES, address, owner),
			       other = __shfl_sync(ALL_LANES, address, owner + S::STEP - 1);

		if (elected()) {
			barrier_expect(on, n * S::ATOM);
			if (whole) {
				bulk_load(to, from, n * S::ATOM, on);
			} else {
				bulk_load(to, from, S::ATOM, on);
				if (n > 1)
					bulk_load(to + second, other, S::ATOM, on);
			}
		}
#else
		(void)on;
		for (uint32_t i = 0; i < n; i++) {
			const uint64_t atom = __shfl_sync(ALL_LANES, address, step % ADDRESS_STEPS * S::STEP + i);

			for (uint32_t byte = lane * 16; byte < S::ATOM; byte += 512)
				async_load_16(to + i * second + byte, atom + byte);
		}
#endif
	}

	/* Starts loading step `step`, if there is one, into a stage. Steps are started in order. */
	DEVICE void start(uint32_t step, uint32_t to, uint32_t on)
	{
		if (step * S::STEP < atoms) {
			if (step % ADDRESS_STEPS == 0 && step > 0) {
				address = address_next;
				address_next = address_of(step * S::STEP + 32 + lane);
				__syncwarp(); /* a branch, not predicated instructions in every step */
			}
			copy(to, on, step, min(S::STEP, atoms - step * S::STEP));
		}
#if !TERRACE_CUDA_BULK
		async_close_group(); /* one a step, an empty one too, so that they can be counted */
#endif
	}

	/* A new run; its first stage is loaded, the others by fill(). */
	DEVICE void begin(const attend_args &a, const segment &s, uint32_t first_atom, uint32_t n)
	{
		const uint64_t *table = a.blocks + (size_t)s.sequence * a.blocks_stride;
		const uint64_t head_at = a.layer_at + (uint64_t)s.head * a.chunk_bytes,
			       of_lane = lane < 2 ? (uint64_t)(uintptr_t)table : lane < 4 ? head_at : first_atom;

		args = &a;
		run = (uint32_t)(lane < 4 && lane % 2 ? of_lane >> 32 : of_lane);
		atoms = n;
		/* A step begins at an even atom then. */
		whole = S::STEP == 1 || a.block_atoms % S::STEP == 0;
		second = whole ? S::ATOM : S::ATOM_STRIDE;
		address = address_of(lane, table, head_at, first_atom);
		address_next = address_of(32 + lane, table, head_at, first_atom);
		at -= ring % 128; /* the ring is empty */
		ring -= ring % 128;
		if (S::ATOM % 128 == 64) {
			at += head_at % 128 / 64 * 64;
			ring += head_at % 128 / 64 * 64;
		}
		start(0, at, barrier);
	}

	DEVICE void fill()
	{
		uint32_t to = at, on = barrier;

		for (uint32_t i = 1; i < S::STAGES; i++) {
			next(&to, &on);
			start(i, to, on);
		}
	}

	/* From a stage and its barrier to those after them; true if these are the first again. */
	DEVICE bool next(uint32_t *stage, uint32_t *on) const
	{
		const bool last = *stage == ring + (S::STAGES - 1) * S::STAGE;

		*stage = last ? ring : *stage + S::STAGE;
		*on += last ? -(S::STAGES - 1) * 8 : 8;
		return last;
	}

	/* Waits for the oldest step and returns its shared address. */
	DEVICE uint32_t wait() const
	{
#if TERRACE_CUDA_BULK
		barrier_wait(barrier, parity);
#else
		async_wait<S::STAGES - 1>();
		__syncwarp();
#endif
		return at;
	}

	/* Every lane is done with the oldest step: its place goes to the step after those in the ring. */
	DEVICE void release(uint32_t step)
	{
		const uint32_t to = at, on = barrier;

		__syncwarp();
		for (uint32_t i = 0; i < S::STEP && lane == 0; i++)
			forget_shared(to + i * second, S::ATOM);
		if (next(&at, &barrier))
			parity ^= 1;
		start(step + S::STAGES, to, on);
	}
};

#endif
