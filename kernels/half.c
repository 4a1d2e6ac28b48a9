/* The scalar conversions of kernels/codec.h; half.h has the arithmetic. */
#include "kernels/half.h"

#include "kernels/codec.h"

size_t kv_dtype_bytes(enum kv_dtype t)
{
	return t == KV_DTYPE_F32 ? 4 : t == KV_DTYPE_E4M3 ? 1 : 2;
}

uint16_t kv_half_from(float f)
{
	return half_from_float(f);
}

float kv_half_to(uint16_t h)
{
	return float_from_half(h);
}

uint16_t kv_bf16_from(float f)
{
	return bf16_from_float(f);
}

float kv_bf16_to(uint16_t h)
{
	return float_from_bf16(h);
}

uint8_t kv_e4m3_from(float f)
{
	return e4m3_from_float(f);
}

float kv_e4m3_to(uint8_t b)
{
	return float_from_e4m3(b);
}
