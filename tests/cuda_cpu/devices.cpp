/* What becomes of calls on devices that will not do: of an old kind, without code in the build, with less shared memory than the kernels
 * want, or that refuse a launch. The device is what CUDA_CPU_* say at each call. */
#include <functional>
#include <string>

#include "tests/gpu/gpu.h"

/* The environment of the device, as long as this lives. Each is a device of its own, for good ones are remembered. */
struct device {
	std::vector<std::string> names;

	device(const char *number, std::vector<std::pair<const char *, const char *>> more)
	{
		more.emplace_back("CUDA_CPU_DEVICE", number);
		for (const auto &m : more) {
			setenv(m.first, m.second, 1);
			names.push_back(m.first);
		}
	}
	~device()
	{
		for (const std::string &n : names)
			unsetenv(n.c_str());
	}
};

/* A small sound call of each kind; nothing comes of attention, whose workspaces are too small. */
struct calls {
	struct kv_layout layout = layout_of(KV_TQ4, 128, 1, 2, 16);
	struct kv_geometry geometry;
	device_array<uint8_t> some{8192};
	struct kv_cuda_attend attend = {};
	struct kv_cuda_extend extend = {};
	struct kv_cuda_codec codec = {};
	struct kv_cuda_merge merge = {};
	struct kv_cuda_copy copy = {};
	struct kv_layout int4 = layout_of(KV_INT4_PTH, 128, 1, 2, 16);
	struct kv_geometry int4_geometry;
	struct kv_cuda_repack repack = {};

	calls()
	{
		kv_geometry_of(&layout, &geometry);
		attend.layout = extend.layout = codec.layout = &layout;
		attend.geometry = extend.geometry = codec.geometry = &geometry;
		attend.sequences = extend.sequences = attend.queries = extend.total_queries = 1;
		attend.q_heads = extend.q_heads = 8;
		attend.scale = extend.scale = 1;
		attend.q = extend.q = extend.k = extend.v = some.data;
		attend.out = attend.workspace = extend.out = extend.workspace = some.data;
		attend.blocks = extend.blocks = (const uint64_t *)some.data;
		attend.kv_tokens = extend.query_starts = extend.prefix_tokens = (const uint32_t *)some.data;
		extend.own_dtype = KV_DTYPE_F16;
		codec.tokens = 1;
		codec.slots = (const int64_t *)some.data; /* -1 */
		codec.blocks = (const uint64_t *)some.data;
		codec.k = codec.v = some.data;
		merge.parts = 1;
		merge.rows = 1;
		merge.d = 8;
		merge.out[0] = some.data;
		merge.lse[0] = (const float *)(some.data + 64);
		merge.merged = some.data + 128;
		copy.count = 1;
		copy.from = copy.to = (const uint64_t *)(some.data + 4096); /* zeroes: skipped */
		copy.block_bytes = 16;
		CUDA(cudaMemset(some.data + 4096, 0, 4096));
		kv_geometry_of(&int4, &int4_geometry);
		repack.layout = &int4;
		repack.geometry = &int4_geometry;
		repack.tokens = repack.page_tokens = 1;
		repack.slots = repack.page_slots = codec.slots;
		repack.blocks = codec.blocks;
		repack.side[KV_SIDE_K].codes = repack.side[KV_SIDE_K].scales = some.data;
	}
	enum status attends() const
	{
		size_t bytes;

		return kv_cuda_attend_workspace(&attend, &bytes);
	}
	enum status extends() const
	{
		size_t bytes;

		return kv_cuda_extend_workspace(&extend, &bytes);
	}
	/* All that launch answer so. */
	bool launches(enum status s) const
	{
		for (const std::function<enum status()> &call : std::initializer_list<std::function<enum status()>>{
			     [&] { return kv_cuda_encode(&codec, nullptr); }, [&] { return kv_cuda_decode(&codec, nullptr); },
			     [&] { return kv_cuda_repack_from_pages(&repack, nullptr); },
			     [&] { return kv_cuda_repack_to_pages(&repack, nullptr); },
			     [&] { return kv_cuda_merge(&merge, nullptr); }, [&] { return kv_cuda_copy(&copy, nullptr); }})
			if (call() != s)
				return false;
		return true;
	}
};

static bool says(const char *words)
{
	const char *problem = kv_cuda_problem();

	return words ? problem && strstr(problem, words) : !problem;
}

static bool report(const char *what, bool ok)
{
	printf("%-4s %s\n", ok ? "ok" : "BAD", what);
	return ok;
}

static bool run_good(const calls &c)
{
	const device d("1", {});
	bool ok = says(nullptr) && says(nullptr) && c.attends() == STATUS_OK && c.extends() == STATUS_OK && c.launches(STATUS_OK);

	return report("a device that will do", ok && cudaGetLastError() == cudaSuccess);
}

static bool run_old(const calls &c)
{
	const device d("2", {{"CUDA_CPU_CAPABILITY", "75"}});

	return report("compute capability 7.5", says("7.5: 8.0 is the least") && c.extends() == STATUS_UNSUPPORTED);
}

static bool run_without_code(const calls &c)
{
	const device d("3", {{"CUDA_CPU_CAPABILITY", "80"}, {"CUDA_CPU_NO_CODE", "1"}});
	bool ok = says("8.0: this build has no code for it") && c.attends() == STATUS_UNSUPPORTED && c.extends() == STATUS_UNSUPPORTED;

	ok = ok && kv_cuda_attend_plan(&c.attend, nullptr) == STATUS_UNSUPPORTED && c.launches(STATUS_UNSUPPORTED);
	return report("a device that the build has no code for", ok && cudaGetLastError() == cudaSuccess);
}

/* Engines have filled it before the code was loaded: no reason to think that there is none. */
static bool run_full(const calls &c)
{
	bool ok = true;
	{
		const device d("6", {{"CUDA_CPU_FULL", "1"}});

		ok = says(nullptr) && c.attends() == STATUS_INTERNAL && cudaGetLastError() == cudaErrorMemoryAllocation;
		ok = ok && c.extends() == STATUS_INTERNAL && cudaGetLastError() == cudaErrorMemoryAllocation;
	}
	const device d("6", {});

	return report("a device that was full", ok && c.attends() == STATUS_OK && c.extends() == STATUS_OK && c.launches(STATUS_OK));
}

/* Less than attention wants, and enough for the others: a device of compute capability 12.0 beside one of 9.0 to 11.0, or one that there
 * is not beside one of 8.6. */
static bool run_little_shared_memory(const calls &c)
{
	const device d("4", {{"CUDA_CPU_SHARED_KIB", __CUDA_ARCH__ >= 900 ? "99" : "48"}});
	bool ok = says(nullptr) && c.attends() == STATUS_UNSUPPORTED && c.launches(STATUS_OK);

	ok = ok && kv_cuda_attend_plan(&c.attend, nullptr) == STATUS_UNSUPPORTED && kv_cuda_attend_run(&c.attend, nullptr) == STATUS_UNSUPPORTED;
	return report("a device with little shared memory", ok);
}

/* A device of compute capability 12.0 has 99 KiB: code for 9.0, made for it from PTX, leaves it without attention; code of its own, or for 8.0,
 * is portable, as before 9.0. One of 10.0 runs code for 9.0. */
static bool run_generations(const calls &c)
{
	static const struct {
		const char *number, *capability, *shared_kib, *ptx;
		enum status attends;
	} rows[] = {
		{"7", "100", "227", "90", STATUS_OK},
		{"8", "120", "99", "90", __CUDA_ARCH__ >= 900 ? STATUS_UNSUPPORTED : STATUS_OK},
		{"9", "120", "99", "120", STATUS_OK},
		{"10", "121", "99", "80", STATUS_OK},
	};
	bool ok = true;

	for (const auto &r : rows) {
		const device d(r.number, {{"CUDA_CPU_CAPABILITY", r.capability}, {"CUDA_CPU_SHARED_KIB", r.shared_kib}, {"CUDA_CPU_PTX", r.ptx}});

		ok = says(nullptr) && c.attends() == r.attends && c.extends() == STATUS_OK && ok;
	}
	return report("devices of compute capability 10.0 and 12.0", ok && cudaGetLastError() == cudaSuccess);
}

/* CUDA's words must still be there for whoever asks. */
static bool run_refused_launches(const calls &c)
{
	const device d("5", {{"CUDA_CPU_REFUSE", "1"}});
	bool ok = true;

	for (int i = 0; i < 2; i++) {
		ok = ok && kv_cuda_merge(&c.merge, nullptr) == STATUS_INTERNAL;
		ok = ok && cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess;
	}
	ok = ok && kv_cuda_encode(&c.codec, nullptr) == STATUS_INTERNAL && cudaGetLastError() == cudaErrorInvalidValue;
	return report("a device that refuses launches", ok);
}

int main()
{
	const calls c;
	bool ok = run_good(c);

	ok = run_old(c) && ok;
	ok = run_without_code(c) && ok;
	ok = run_full(c) && ok;
	ok = run_little_shared_memory(c) && ok;
	ok = run_generations(c) && ok;
	ok = run_refused_launches(c) && ok;
	printf("devices: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
