#include "tests/gpu/extend_refusals.h"

#include "tests/gpu/gpu.h"

namespace
{

/* A call that is refused for its workspace alone, and what makes it another one. */
struct refusal {
	const char *what;
	enum status status;
	void (*spoil)(struct kv_cuda_extend &, struct kv_layout &, struct kv_geometry &);
};

#define SPOIL(what) [](struct kv_cuda_extend & e, struct kv_layout & l, struct kv_geometry & g) { (void)e; (void)l; (void)g; what; }

const refusal refusals[] = {
	{"nothing", STATUS_EXHAUSTED, SPOIL((void)0)},
	{"no layout", STATUS_INVALID, SPOIL(e.layout = nullptr)},
	{"no heads", STATUS_INVALID, SPOIL(l.heads = 0)},
	{"no atoms", STATUS_INVALID, SPOIL(g.atoms = 0)},
	{"7 heads over 2", STATUS_INVALID, SPOIL(e.q_heads = 7)},
	{"4097 sequences", STATUS_INVALID, SPOIL(e.sequences = 4097)},
	{"2^28 rows", STATUS_INVALID, SPOIL(e.total_queries = 1u << 25)},
	{"a scale without end", STATUS_INVALID, SPOIL(e.scale = INFINITY)},
	{"a cap without end", STATUS_INVALID, SPOIL(e.features.softcap = INFINITY)},
	{"the greatest cap", STATUS_EXHAUSTED, SPOIL(e.features.softcap = 3.4e38f)},
	{"a tree without a stride", STATUS_INVALID, SPOIL(e.features.tree_bias = (const float *)e.q)},
	{"ranges that are not there", STATUS_INVALID, SPOIL(e.features.ranges_max = 1)},
	{"V of another format", STATUS_UNSUPPORTED, SPOIL(l.v_format = KV_FP8)},
	{"new tokens of float32", STATUS_INVALID, SPOIL(e.own_dtype = KV_DTYPE_F32)},
	{"queries of E4M3", STATUS_INVALID, SPOIL(e.q_dtype = KV_DTYPE_E4M3)},
	{"outputs of no type", STATUS_INVALID, SPOIL(e.out_dtype = (enum kv_dtype)4)},
	{"a stride of no eights", STATUS_INVALID, SPOIL(e.k_stride = 260)},
	{"a stride less than a token", STATUS_INVALID, SPOIL(e.v_stride = 248)},
	{"one token's stride", STATUS_EXHAUSTED, SPOIL((e.total_queries = 1, e.v_stride = 0))},
	{"no lengths", STATUS_INVALID, SPOIL(e.prefix_tokens = nullptr)},
	{"no blocks for prefixes", STATUS_INVALID, SPOIL(e.blocks = nullptr)},
	{"no blocks and no room for any", STATUS_EXHAUSTED, SPOIL((e.blocks = nullptr, e.blocks_stride = 0))},
	{"keys out of line", STATUS_INVALID, SPOIL(e.k = (const uint8_t *)e.k + 8)},
	{"queries out of line", STATUS_INVALID, SPOIL(e.q = (const uint8_t *)e.q + 8)},
	{"a workspace out of line", STATUS_INVALID, SPOIL(e.workspace = (uint8_t *)e.workspace + 128)},
	{"layer 1 of 1", STATUS_INVALID, SPOIL(e.layer = 1)},
};

bool refused(const refusal &r, struct kv_cuda_extend e)
{
	struct kv_layout l = *e.layout;
	struct kv_geometry g = *e.geometry;
	size_t bytes = 7;

	e.layout = &l;
	e.geometry = &g;
	r.spoil(e, l, g);
	const enum status run = kv_cuda_extend_run(&e, nullptr), shape = kv_cuda_extend_workspace(&e, &bytes);
	const bool ok = run == r.status && (shape == STATUS_OK ? bytes > 256 : shape == run && bytes == 7) &&
			(run != STATUS_EXHAUSTED || shape == STATUS_OK);

	if (!ok)
		printf("BAD  %s: run %d, workspace %d\n", r.what, run, shape);
	return ok;
}

} // namespace

bool run_extend_refusals()
{
	struct kv_layout l = layout_of(KV_TQ4, 128, 1, 2, 16);
	struct kv_geometry g;
	struct kv_cuda_extend good = {};
	device_array<uint8_t> some(256);
	bool ok = true;

	kv_geometry_of(&l, &g);
	good.layout = &l;
	good.geometry = &g;
	good.sequences = 1;
	good.total_queries = 5;
	good.q_heads = 8;
	good.scale = 1;
	good.own_dtype = KV_DTYPE_F16;
	good.k_stride = good.v_stride = 256;
	good.q = good.k = good.v = good.out = good.workspace = some.data;
	good.blocks = (const uint64_t *)some.data;
	good.blocks_stride = 1;
	good.query_starts = good.prefix_tokens = (const uint32_t *)some.data;
	good.workspace_bytes = 256;
	for (const refusal &r : refusals)
		ok = refused(r, good) && ok;
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}
