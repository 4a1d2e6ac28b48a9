/* codec_lanes.h for AVX2; an empty file where there can be none. */
#if defined(__x86_64__)

#include "kernels/lanes_avx2.h"

#include "kernels/codec_lanes_body.h"

const struct kv_codec_lanes kv_codec_lanes_avx2 = {.quantise = quantise, .dequantise = dequantise};

#else

typedef int nothing_here;

#endif
