#include "tests/cuda_cpu/context.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "contexts are switched by instructions of x86-64"
#endif

/* Keeps what a call must keep, leaves the stack pointer at *left and takes up the other. */
extern "C" void cuda_cpu_switch(void **left, void *to);
asm(".text\n"
    ".globl cuda_cpu_switch\n"
    ".hidden cuda_cpu_switch\n"
    ".type cuda_cpu_switch, @function\n"
    "cuda_cpu_switch:\n"
    "	pushq %rbp\n"
    "	pushq %rbx\n"
    "	pushq %r12\n"
    "	pushq %r13\n"
    "	pushq %r14\n"
    "	pushq %r15\n"
    "	movq %rsp, (%rdi)\n"
    "	movq %rsi, %rsp\n"
    "	popq %r15\n"
    "	popq %r14\n"
    "	popq %r13\n"
    "	popq %r12\n"
    "	popq %rbx\n"
    "	popq %rbp\n"
    "	ret\n"
    ".size cuda_cpu_switch, . - cuda_cpu_switch\n");

namespace cuda_cpu
{

namespace
{

constexpr size_t STACK_BYTES = 256 * 1024, GUARD_BYTES = 4096;
constexpr int REGISTERS = 6;

context *previous; /* who switched to the running one */
void (*entry)();

/* AddressSanitizer is told of every change of stacks; the program's own stack it tells us. */
void going_to(context *from, context *to, bool for_good)
{
	previous = from;
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(for_good ? nullptr : &from->fake, to->stack, to->bytes);
#else
	(void)to;
	(void)for_good;
#endif
}

void arrived(void *fake)
{
#ifdef __SANITIZE_ADDRESS__
	const void *stack;
	size_t bytes;

	__sanitizer_finish_switch_fiber(fake, &stack, &bytes);
	if (!previous->stack) {
		previous->stack = (void *)stack;
		previous->bytes = bytes;
	}
#else
	(void)fake;
#endif
}

void first()
{
	arrived(nullptr);
	entry();
	abort(); /* it ends with context_leave */
}

} // namespace

void context_begin(context *c, void (*main)())
{
	if (!c->stack) {
		uint8_t *room = (uint8_t *)mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (room == MAP_FAILED || mprotect(room, GUARD_BYTES, PROT_NONE) != 0) {
			perror("a thread's stack");
			abort();
		}
		c->stack = room + GUARD_BYTES;
		c->bytes = STACK_BYTES;
	}
	entry = main;

	/* As if it had been left before its first instruction, at which a call's return address lies 8 bytes off a multiple of 16. */
	void **top = (void **)((uint8_t *)c->stack + STACK_BYTES) - 2;

	top[0] = (void *)first;
	for (int i = 1; i <= REGISTERS; i++)
		top[-i] = nullptr;
	c->at = top - REGISTERS;
}

void context_switch(context *from, context *to)
{
	going_to(from, to, false);
	cuda_cpu_switch(&from->at, to->at);
	arrived(from->fake);
}

void context_leave(context *from, context *to)
{
	going_to(from, to, true);
	cuda_cpu_switch(&from->at, to->at);
	abort(); /* nobody comes back */
}

} // namespace cuda_cpu
