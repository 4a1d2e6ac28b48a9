/* Which vector instructions the code may use. The files *_avx512.c and *_avx2.c are compiled for machines that have
 * them, and are called only where this says so; each of them has a portable path beside it.
 */
#ifndef TERRACE_KERNELS_MACHINE_H
#define TERRACE_KERNELS_MACHINE_H

enum kv_machine {
	KV_MACHINE_PLAIN = 0,
	KV_MACHINE_AVX2 = 1,   /* AVX2, FMA, F16C */
	KV_MACHINE_AVX512 = 2, /* AVX-512 F, BW, DQ and VL besides */
	KV_MACHINE_VNNI = 3,   /* AVX-512 VNNI besides */
};

/* The most that this machine has, and not more than kv_machine_limit's. Any thread. */
enum kv_machine kv_machine(void);

/* For tests: from now on at most `most`. Not while other threads use the kernels. */
void kv_machine_limit(enum kv_machine most);

#endif
