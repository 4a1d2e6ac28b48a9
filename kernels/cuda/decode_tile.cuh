/* Decoding by tiles (decode_tile.cu) and by atoms (decode_atom.cu), for decode.cu. */
#ifndef TERRACE_KERNELS_CUDA_DECODE_TILE_CUH
#define TERRACE_KERNELS_CUDA_DECODE_TILE_CUH

#include "kernels/cuda/codec.cuh"

/* Enqueues the launch; false, with nothing done, if tiles do not suit it. */
bool decode_tiles(uint32_t d, enum kv_format f, const codec_work &w);

/* Enqueues the launch for rotated formats; decode_tiles has asked whether the call suits. */
bool decode_atoms(uint32_t d, enum kv_format f, const codec_work &w);

#endif
