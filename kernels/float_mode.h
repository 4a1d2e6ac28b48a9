/* Replaces the calling thread's mode of floating-point arithmetic for the length of a call.
 *
 * The mode says how results are rounded, whether subnormal numbers count as zero (on x86 the bits FTZ and DAZ of
 * MXCSR), and which exceptions raise a signal. An engine's thread may have any mode: torch.set_flush_denormal and
 * libraries built with -ffast-math set FTZ and DAZ, and a new thread inherits the mode of the thread that started it.
 * The code of this folder is exact only in the default mode: it rounds into fp8 by adding a subnormal number to a
 * normal one, and reads fp16 scales by way of subnormal ones. So every public function that computes with floats calls
 * kv_float_mode_enter first, before it reads a float, and kv_float_mode_leave last.
 *
 * Both are barriers for the compiler: memory accesses between them are not moved across them. The work must be in a
 * function of its own that takes its floats by address, so that no float is computed in registers before the mode is
 * set.
 */
#ifndef TERRACE_KERNELS_FLOAT_MODE_H
#define TERRACE_KERNELS_FLOAT_MODE_H

#if defined(__x86_64__)

#include <stdint.h>

/* The caller's MXCSR, with the flags of the exceptions that its own arithmetic has raised. */
struct kv_float_mode {
	uint32_t mxcsr;
};

enum { KV_MXCSR_DEFAULT = 0x1f80 }; /* all exceptions masked, to nearest even, no FTZ, no DAZ, no flags */

/* Sets the default mode; returns the caller's. */
static inline struct kv_float_mode kv_float_mode_enter(void)
{
	const uint32_t usual = KV_MXCSR_DEFAULT;
	struct kv_float_mode caller;

	__asm__ volatile("stmxcsr %0" : "=m"(caller.mxcsr) : : "memory");
	__asm__ volatile("ldmxcsr %0" : : "m"(usual) : "memory");
	return caller;
}

/* Sets the caller's mode again, flags included: the call leaves no trace in it. */
static inline void kv_float_mode_leave(struct kv_float_mode caller)
{
	__asm__ volatile("ldmxcsr %0" : : "m"(caller.mxcsr) : "memory");
}

#else

#include <fenv.h>

struct kv_float_mode {
	fenv_t environment;
};

static inline struct kv_float_mode kv_float_mode_enter(void)
{
	struct kv_float_mode caller;

	fegetenv(&caller.environment);
	fesetenv(FE_DFL_ENV);
	__asm__ volatile("" : : : "memory");
	return caller;
}

static inline void kv_float_mode_leave(struct kv_float_mode caller)
{
	__asm__ volatile("" : : : "memory");
	fesetenv(&caller.environment);
}

#endif
#endif
