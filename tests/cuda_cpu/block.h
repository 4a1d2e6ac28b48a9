/* A block of CUDA threads on one CPU thread: each is a context with a stack of its own that runs until it waits for others. Which one goes
 * on is drawn from a seed (CUDA_CPU_SEED), so that what depends on an order that nothing enforces does not always get the same one.
 *
 * What a GPU leaves undefined ends the program with a sentence: lanes of a warp at different instructions, a lane that left while
 * others wait for it, a block that cannot go on, shared memory out of bounds or out of line.
 */
#ifndef TERRACE_TESTS_CUDA_CPU_BLOCK_H
#define TERRACE_TESTS_CUDA_CPU_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <vector>

struct uint3 {
	unsigned x, y, z;
};

struct dim3 {
	unsigned x, y, z;

	constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
	{
	}
};

/* The running thread's. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace cuda_cpu
{

constexpr unsigned LANES = 32, GIVEN_BYTES = 64, NAMED_BARRIERS = 16;

/* A copy between memory and shared memory that was asked for. */
struct late_copy {
	uint8_t *to;
	const uint8_t *from;
	uint32_t bytes;
};

struct context; /* where a thread was left */

struct thread {
	uint3 index; /* threadIdx */
	context *left;
	const char *at; /* what it waits for; NULL: nothing */
	unsigned meetings;
	unsigned char given[2][GIVEN_BYTES]; /* to the warp's last two meetings */
	/* Copies asked for, by groups; the last group is open. */
	std::vector<std::vector<late_copy>> loads, stores;
	std::vector<std::function<void()>> products; /* late ones */
};

extern thread *now; /* the running one */

/* Runs every block of a grid; one launch at a time in the process. */
void run_grid(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()> &kernel);

/* Ends the program with the running thread's place and a sentence. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The warp: waits for all its lanes. */
void meet(const char *what, const void *given, size_t bytes);

inline unsigned lane()
{
	return threadIdx.x % LANES;
}

/* Barrier `id` of the block: of all threads that have not left (threads == 0), or of so many; `wait` or not. */
void block_barrier(unsigned id, unsigned threads, bool wait);

/* The launch's shared memory. Addresses begin at 1024, as where a GPU keeps a KiB for itself. */
void *shared_memory();
uint32_t address_of(const void *p);
void *memory_at(uint32_t address, uint32_t bytes, uint32_t alignment);

/* Transaction barriers; a copy is done when somebody waits for it and nobody can go on, as late as can be. */
void barrier_begin(uint32_t barrier, uint32_t count);
void barrier_arrive(uint32_t barrier, uint32_t bytes);
void barrier_wait(uint32_t barrier, uint32_t parity);
void copy_for_barrier(const late_copy &copy, uint32_t barrier);

/* What a lane gives of a type, and what others gave; good until the lane's next meeting but one. */
template <class T> struct exchange {
	const thread *warp;
	unsigned meeting;

	exchange(const char *what, const T &mine)
	{
		static_assert(sizeof(T) <= GIVEN_BYTES, "room for what a lane gives");
		meet(what, &mine, sizeof(T));
		warp = now - lane();
		meeting = (now->meetings - 1) % 2;
	}
	T operator[](unsigned of) const
	{
		T x;

		memcpy(&x, warp[of].given[meeting], sizeof(T));
		return x;
	}
};

} // namespace cuda_cpu

#endif
