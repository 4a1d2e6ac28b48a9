/* KV_CLONES, put before a hot plain-C function, makes gcc compile it three times (AVX-512, AVX2, baseline) and choose
 * one when the program is loaded: so one portable binary uses what the machine has. The choice is made by an ifunc.
 * Sanitizers and clang do not support that, so with them only the baseline is built. The results may differ in the last
 * bit of a float, where the wider versions fuse a multiply and an add. The codecs' results never differ, since their
 * files are built without contraction.
 */
#ifndef TERRACE_KERNELS_SIMD_H
#define TERRACE_KERNELS_SIMD_H

#include <features.h> /* defines __GLIBC__ */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && \
	!defined(TERRACE_SANITIZED)
#define KV_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KV_CLONES
#endif

/* For what a cloned function calls: it must become part of every clone. */
#define KV_INLINE static inline __attribute__((always_inline))

#endif
