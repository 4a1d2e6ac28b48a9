/* codec_lanes.h for AVX-512; an empty file where there can be none. */
#if defined(__x86_64__)

#include "kernels/lanes_avx512.h"

#include "kernels/codec_lanes_body.h"

const struct kv_codec_lanes kv_codec_lanes_avx512 = {.quantise = quantise, .dequantise = dequantise};

#else

typedef int nothing_here;

#endif
