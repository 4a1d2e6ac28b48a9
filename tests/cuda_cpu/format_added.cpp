/* One format more in the table (TERRACE_TEST_FORMAT, as in tests/kernels/format_added.c): what device code is told of formats is what the table says,
 * and no launcher takes the new one for another: calls are refused, and nothing is written.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/format.cuh"

static bool ok = true;

static void check(bool good, const char *what, int f)
{
	if (!good)
		printf("BAD  format %d: %s\n", f, what);
	ok = ok && good;
}

static void facts()
{
	for (int f = 0; f < KV_FORMAT_COUNT; f++) {
		const struct kv_format_info *info = kv_format_info((enum kv_format)f);

		check(format_bits(f) == info->code_bits && format_scale_bytes(f) == info->scale_bytes, "sizes are not the table's", f);
		check(format_rotated(f) == info->rotated && format_codes(f) == info->codes, "kinds are not the table's", f);
		check(format_integer(f) == (info->codes == KV_CODES_ZERO_POINT || info->codes == KV_CODES_CODEBOOK), "integer codes", f);
	}
	check(!format_rotated(KV_TEST_FORMAT) && !format_integer(KV_TEST_FORMAT), "counts as rotated or integer codes", KV_TEST_FORMAT);
	for (int f : {-1, (int)KV_FORMAT_COUNT, 1000})
		check(format_bits(f) == 0 && !format_rotated(f) && !format_integer(f), "is none, and has codes", f);
}

static struct kv_layout layout_of(enum kv_format k, enum kv_format v)
{
	struct kv_layout l = {};

	l.layers = l.heads = l.total_heads = 1;
	l.head_dim_k = l.head_dim_v = 128;
	l.block_tokens = 16;
	l.k_format = k;
	l.v_format = v;
	l.rotation_version = l.codebook_version = l.layout_version = 1;
	return l;
}

/* Few tokens, and as many as whole atoms are done with, into and out of blocks of the new format. */
static void codec(uint32_t tokens)
{
	static uint8_t blocks[16 * 1024] __attribute__((aligned(64)));
	static uint16_t vectors[512 * 128];
	static int64_t slots[512];
	static uint64_t table[64];
	const struct kv_layout l = layout_of(KV_TEST_FORMAT, KV_TEST_FORMAT);
	struct kv_geometry g;
	struct kv_cuda_codec c = {};
	bool untouched = true;

	kv_geometry_of(&l, &g);
	memset(blocks, 0x5a, sizeof(blocks));
	memset(vectors, 0x33, sizeof(vectors));
	for (uint32_t i = 0; i < tokens; i++)
		slots[i] = i % 64;
	for (uint32_t i = 0; i < 4; i++)
		table[i] = (uint64_t)(uintptr_t)(blocks + i * g.block_bytes);
	c.layout = &l;
	c.geometry = &g;
	c.tokens = tokens;
	c.slots = slots;
	c.blocks = table;
	c.block_count = 4;
	c.dtype = KV_DTYPE_F16;
	c.k = c.v = vectors;
	c.k_stride = c.v_stride = 128;
	check(kv_cuda_encode(&c, nullptr) == STATUS_UNSUPPORTED, "encode is not refused", KV_TEST_FORMAT);
	check(kv_cuda_decode(&c, nullptr) == STATUS_UNSUPPORTED, "decode is not refused", KV_TEST_FORMAT);
	struct kv_cuda_repack r = {};

	r.layout = &l;
	r.geometry = &g;
	r.tokens = tokens;
	r.slots = r.page_slots = slots;
	r.blocks = table;
	r.block_count = 4;
	r.page_tokens = 16;
	r.page_count = 4;
	r.side[KV_SIDE_K].codes = r.side[KV_SIDE_K].scales = (uint8_t *)vectors;
	check(kv_cuda_repack_from_pages(&r, nullptr) == STATUS_UNSUPPORTED, "repack is not refused", KV_TEST_FORMAT);
	check(kv_cuda_repack_to_pages(&r, nullptr) == STATUS_UNSUPPORTED, "repack is not refused", KV_TEST_FORMAT);
	for (uint8_t byte : blocks)
		untouched = untouched && byte == 0x5a;
	for (uint16_t half : vectors)
		untouched = untouched && half == 0x3333;
	check(untouched, "something was written", KV_TEST_FORMAT);
}

static void attention(enum kv_format k, enum kv_format v)
{
	const struct kv_layout l = layout_of(k, v);
	struct kv_geometry g;
	struct kv_cuda_attend a = {};
	struct kv_cuda_extend e = {};
	size_t bytes;

	kv_geometry_of(&l, &g);
	a.layout = e.layout = &l;
	a.geometry = e.geometry = &g;
	a.sequences = e.sequences = 1;
	a.queries = e.total_queries = 1;
	a.q_heads = e.q_heads = 1;
	a.blocks_stride = e.blocks_stride = 1;
	e.own_dtype = KV_DTYPE_F16;
	e.k_stride = e.v_stride = 128;
	check(!kv_cuda_attend_supported(k, v), "attention says that it is supported", KV_TEST_FORMAT);
	check(kv_cuda_attend_workspace(&a, &bytes) == STATUS_UNSUPPORTED, "attend is not refused", KV_TEST_FORMAT);
	check(kv_cuda_extend_workspace(&e, &bytes) == STATUS_UNSUPPORTED, "extend is not refused", KV_TEST_FORMAT);
}

int main()
{
	facts();
	codec(3);
	codec(512);
	for (int f = KV_F16; f < KV_FORMAT_COUNT; f++) {
		attention(KV_TEST_FORMAT, (enum kv_format)f);
		attention((enum kv_format)f, KV_TEST_FORMAT);
	}
	printf("format_added: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
