/* See machine.h. */
#include "kernels/machine.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { UNKNOWN = -1 };

static atomic_int known = UNKNOWN, limit = KV_MACHINE_VNNI;

static enum kv_machine look(void)
{
#if defined(__x86_64__)
	unsigned a, b, c, d;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C) || !__builtin_cpu_supports("avx2") ||
	    !__builtin_cpu_supports("fma"))
		return KV_MACHINE_PLAIN;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		return __builtin_cpu_supports("avx512vnni") ? KV_MACHINE_VNNI : KV_MACHINE_AVX512;
	return KV_MACHINE_AVX2;
#else
	return KV_MACHINE_PLAIN;
#endif
}

enum kv_machine kv_machine(void)
{
	int has = atomic_load_explicit(&known, memory_order_relaxed),
	    most = atomic_load_explicit(&limit, memory_order_relaxed);

	if (has == UNKNOWN) {
		has = (int)look();
		atomic_store_explicit(&known, has, memory_order_relaxed);
	}
	return (enum kv_machine)(has < most ? has : most);
}

void kv_machine_limit(enum kv_machine most)
{
	atomic_store_explicit(&limit, (int)most, memory_order_relaxed);
}
