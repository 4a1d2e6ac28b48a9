/* Contexts with stacks of their own, and going from one to another. */
#ifndef TERRACE_TESTS_CUDA_CPU_CONTEXT_H
#define TERRACE_TESTS_CUDA_CPU_CONTEXT_H

#include <stddef.h>

namespace cuda_cpu
{

struct context {
	void *at = nullptr;    /* the stack pointer it was left with */
	void *stack = nullptr; /* kept until the end of the program; NULL: the program's own */
	size_t bytes = 0;
	void *fake = nullptr; /* AddressSanitizer's */
};

/* `main` will run from the beginning; it ends with context_leave. */
void context_begin(context *c, void (*main)());

/* Leaves one, goes on with the other. */
void context_switch(context *from, context *to);

/* Leaves one for good. */
[[noreturn]] void context_leave(context *from, context *to);

} // namespace cuda_cpu

#endif
