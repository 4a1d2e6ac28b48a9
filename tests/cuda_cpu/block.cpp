#include "tests/cuda_cpu/block.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>

#include "tests/cuda_cpu/context.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_cpu
{

thread *now;

namespace
{

constexpr uint32_t FIRST_ADDRESS = 1024;

struct warp {
	uint32_t ready = 0, left = 0; /* lanes that can go on; that have left the kernel */
	unsigned count = 0, arrived = 0;
	const char *what = nullptr; /* what those that have arrived wait for */
};

struct named_barrier {
	unsigned arrived = 0, expected = 0;
	std::vector<unsigned> waiting;
};

/* As it stands in 8 bytes of shared memory. */
struct transaction_barrier {
	uint32_t phase : 1, count : 15, pending : 16;
	int32_t bytes; /* expected, less what has come */
};

struct barrier_copy {
	late_copy copy;
	uint32_t barrier;
};

struct block {
	std::vector<thread> threads;
	std::vector<warp> warps;
	named_barrier barriers[NAMED_BARRIERS];
	std::vector<unsigned> at_transaction; /* threads */
	std::vector<barrier_copy> copies;     /* asked for, in order */
	unsigned left = 0, current = 0;       /* threads that have left; the running one's warp */
	bool restless = false;                /* warps take turns; else one runs as far as it can before the next begins */
	uint8_t *shared = nullptr;
	uint32_t shared_bytes = 0;
	const std::function<void()> *kernel = nullptr;
	context outside;
};

block running;
uint64_t order; /* of everything that has none */

uint32_t draw(uint32_t below)
{
	order ^= order << 13;
	order ^= order >> 7;
	order ^= order << 17;
	return (uint32_t)(order >> 20) % below;
}

unsigned index_of(const thread *t)
{
	return (unsigned)(t - running.threads.data());
}

void make_ready(unsigned index)
{
	running.warps[index / LANES].ready |= 1u << index % LANES;
	running.threads[index].at = nullptr;
}

/* Completes the phase of a barrier that has all it waits for. */
void look_at(transaction_barrier *b)
{
	if (b->pending > 0 || b->bytes != 0)
		return;
	b->phase ^= 1;
	b->pending = b->count;
	for (unsigned i : running.at_transaction)
		make_ready(i);
	running.at_transaction.clear();
}

transaction_barrier *barrier_at(uint32_t address)
{
	return (transaction_barrier *)memory_at(address, 8, 8);
}

/* Nobody can go on: the oldest copy is done at last. */
bool do_late_copy()
{
	if (running.copies.empty() || running.at_transaction.empty())
		return false;
	const barrier_copy c = running.copies.front();

	running.copies.erase(running.copies.begin());
	memcpy(c.copy.to, c.copy.from, c.copy.bytes);
	barrier_at(c.barrier)->bytes -= (int32_t)c.copy.bytes;
	look_at(barrier_at(c.barrier));
	return true;
}

[[noreturn]] void stuck()
{
	unsigned shown = 0;

	fprintf(stderr, "no thread of block %u %u %u can go on:\n", blockIdx.x, blockIdx.y, blockIdx.z);
	for (const thread &t : running.threads)
		if (t.at && shown++ < 40)
			fprintf(stderr, "  thread %u waits at %s\n", t.index.x, t.at);
	abort();
}

/* A thread that can go on: of the same warp, mostly; NULL if all have left. */
thread *next_thread()
{
	for (;;) {
		const unsigned n = (unsigned)running.warps.size();

		if (!running.warps[running.current].ready || (running.restless && draw(16) == 0)) {
			const unsigned from = draw(n);
			unsigned i = 0;

			while (i < n && !running.warps[(from + i) % n].ready)
				i++;
			if (i == n) {
				if (running.left == running.threads.size())
					return nullptr;
				if (!do_late_copy())
					stuck();
				continue;
			}
			running.current = (from + i) % n;
		}
		warp &w = running.warps[running.current];
		const unsigned turn = draw(LANES);
		const uint32_t turned = turn ? w.ready >> turn | w.ready << (LANES - turn) : w.ready;
		const unsigned lane = ((unsigned)__builtin_ctz(turned) + turn) % LANES;

		w.ready &= ~(1u << lane);
		return &running.threads[running.current * LANES + lane];
	}
}

/* The running thread gives way, until somebody makes it ready. */
void give_way(const char *what)
{
	thread *const self = now;

	self->at = what;
	thread *const next = next_thread();

	if (next == self) {
		self->at = nullptr;
		return;
	}
	now = next;
	context_switch(self->left, next ? next->left : &running.outside);
	threadIdx = self->index;
}

/* The barrier of all threads, once one has come or left. */
void look_at_block_barrier()
{
	named_barrier &b = running.barriers[0];

	if (b.arrived == 0 || b.expected != 0 || b.arrived + running.left < running.threads.size())
		return;
	for (unsigned i : b.waiting)
		make_ready(i);
	b = {};
}

void thread_main()
{
	threadIdx = now->index;
	(*running.kernel)();

	warp &w = running.warps[running.current];

	w.left |= 1u << lane();
	if (w.arrived > 0)
		fail("leaves while other lanes of its warp wait at %s", w.what);
	running.left++;
	look_at_block_barrier();
	now->at = nullptr;
	thread *const self = now, *const next = next_thread();

	now = next;
	context_leave(self->left, next ? next->left : &running.outside);
}

void run_block(unsigned threads)
{
	static std::vector<std::unique_ptr<context>> contexts; /* with their stacks, kept */

	while (contexts.size() < threads)
		contexts.emplace_back(new context);
	running.threads.resize(threads);
	running.warps.assign((threads + LANES - 1) / LANES, warp());
	running.left = running.current = 0;
	running.copies.clear();
	running.outside = context();
	running.restless = draw(2) != 0;
	for (unsigned i = 0; i < threads; i++) {
		thread &t = running.threads[i];

		t.index = {i, 0, 0};
		t.left = contexts[i].get();
		t.meetings = 0;
		t.loads.clear();
		t.stores.clear();
		t.products.clear();
		context_begin(t.left, thread_main);
		running.warps[i / LANES].count++;
		make_ready(i);
	}
	memset(running.shared, 0xff, running.shared_bytes);
	now = next_thread();
	context_switch(&running.outside, now->left);
}

} // namespace

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "block %u %u %u, thread %u ", blockIdx.x, blockIdx.y, blockIdx.z, now ? now->index.x : 0);
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	abort();
}

void run_grid(dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()> &kernel)
{
	std::vector<uint64_t> blocks((uint64_t)grid.x * grid.y * grid.z);

	if (order == 0) {
		const char *seed = getenv("CUDA_CPU_SEED");

		order = (seed ? strtoull(seed, nullptr, 10) : 1) * 0x9e3779b97f4a7c15 | 1;
	}
	running.shared_bytes = (uint32_t)shared_bytes;
	if (posix_memalign((void **)&running.shared, 1024, shared_bytes ? shared_bytes : 1))
		abort();
	running.kernel = &kernel;
	gridDim = grid;
	blockDim = dim3(threads);
	for (uint64_t i = 0; i < blocks.size(); i++)
		blocks[i] = i;
	for (uint64_t i = blocks.size(); i > 1; i--)
		std::swap(blocks[i - 1], blocks[draw((uint32_t)i)]);
	for (uint64_t i : blocks) {
		blockIdx = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y)};
		run_block(threads);
	}
	now = nullptr;
	free(running.shared);
}

void meet(const char *what, const void *given, size_t bytes)
{
	warp &w = running.warps[index_of(now) / LANES];

	memcpy(now->given[now->meetings++ % 2], given, bytes);
	if (w.left || w.count < LANES)
		fail("at %s in a warp of which not all lanes are there", what);
	if (w.arrived > 0 && w.what != what && strcmp(w.what, what) != 0)
		fail("at %s while other lanes of its warp are at %s", what, w.what);
	w.what = what;
	if (++w.arrived < LANES) {
		give_way(what);
		return;
	}
	w.arrived = 0;
	w.ready = 0xffffffffu & ~(1u << lane());
	for (unsigned i = 0; i < LANES; i++)
		running.threads[index_of(now) / LANES * LANES + i].at = nullptr;
}

void block_barrier(unsigned id, unsigned threads, bool wait)
{
	named_barrier &b = running.barriers[id];
	static const char *const names[] = {"__syncthreads", "a named barrier"};

	if (b.arrived > 0 && b.expected != threads)
		fail("at barrier %u of %u threads, while others take it for %u", id, threads, b.expected);
	b.expected = threads;
	b.arrived++;
	if (wait)
		b.waiting.push_back(index_of(now));
	if (threads == 0) {
		look_at_block_barrier();
	} else if (b.arrived == threads) {
		for (unsigned i : b.waiting)
			make_ready(i);
		b = {};
	}
	if (wait)
		give_way(names[threads != 0]);
}

void *shared_memory()
{
	return running.shared;
}

uint32_t address_of(const void *p)
{
	const uint8_t *at = (const uint8_t *)p;

	if (at < running.shared || at > running.shared + running.shared_bytes)
		fail("takes for shared memory what is not the launch's");
	return (uint32_t)(at - running.shared) + FIRST_ADDRESS;
}

void *memory_at(uint32_t address, uint32_t bytes, uint32_t alignment)
{
	if (address < FIRST_ADDRESS || (uint64_t)address + bytes > (uint64_t)FIRST_ADDRESS + running.shared_bytes)
		fail("reaches %u bytes at %lld of %u bytes of shared memory", bytes, (long long)address - FIRST_ADDRESS,
		     running.shared_bytes);
	if (address % alignment)
		fail("reaches %u bytes at %u of shared memory, no multiple of %u", bytes, address - FIRST_ADDRESS, alignment);
	return running.shared + (address - FIRST_ADDRESS);
}

void barrier_begin(uint32_t barrier, uint32_t count)
{
	*barrier_at(barrier) = {0, count & 0x7fff, count & 0xffff, 0};
}

void barrier_arrive(uint32_t barrier, uint32_t bytes)
{
	transaction_barrier *b = barrier_at(barrier);

	if (b->pending == 0)
		fail("is one too many at the barrier at %u", barrier - FIRST_ADDRESS);
	b->pending = (b->pending - 1) & 0xffff;
	b->bytes += (int32_t)bytes;
	look_at(b);
}

void barrier_wait(uint32_t barrier, uint32_t parity)
{
	while (barrier_at(barrier)->phase == parity) {
		running.at_transaction.push_back(index_of(now));
		give_way("a transaction barrier");
	}
}

void copy_for_barrier(const late_copy &copy, uint32_t barrier)
{
	running.copies.push_back({copy, barrier});
}

} // namespace cuda_cpu
