/* attend_lanes.h for AVX-512; an empty file where there can be none. */
#if defined(__x86_64__)

#include "kernels/codebook.h"
#include "kernels/lanes_avx512.h"

#include "kernels/attend_lanes_body.h"

const struct kv_lane_code kv_lane_code_avx512 = {
	.queries = kv_lane_queries, .score = score, .soften = soften, .weigh = weigh};

#else

typedef int nothing_here;

#endif
