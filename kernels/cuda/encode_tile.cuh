/* Encoding by tiles (encode_tile.cu) and by atoms (encode_atom.cu), for encode.cu. */
#ifndef TERRACE_KERNELS_CUDA_ENCODE_TILE_CUH
#define TERRACE_KERNELS_CUDA_ENCODE_TILE_CUH

#include "kernels/cuda/codec.cuh"

/* Enqueues the launch; false, with nothing done, if tiles do not suit it. */
bool encode_tiles(uint32_t d, enum kv_format f, const codec_work &w);

/* Enqueues the launch for rotated formats of head dim 128; encode_tiles has asked whether the call suits. */
bool encode_atoms(enum kv_format f, const codec_work &w);

#endif
