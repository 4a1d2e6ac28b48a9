/* A case of the attention tests made real: blocks from the CPU's encoder on the device, what they
 * decode to on the host, and attention over that in float64.
 */
#ifndef TERRACE_TESTS_GPU_ATTEND_WORLD_H
#define TERRACE_TESTS_GPU_ATTEND_WORLD_H

#include <memory>

#include "tests/gpu/gpu.h"

enum data { PLAIN, GROWING, WIDE, SINK, ZEROS, SHARP };

/* Features of a case; the world makes up the numbers. */
struct feature_set {
	uint32_t window;
	float softcap;
	bool sinks, alibi, alibi_sqrt, tree, ranges, out_scale;
};

struct test_case {
	enum kv_format k, v;
	case_dims d;
	uint32_t heads, group, queries, block_tokens;
	enum data data;
	enum kv_dtype q_dtype, out_dtype;
	std::vector<uint32_t> tokens;
	feature_set features;
	uint32_t layout_window;
	bool no_lse = false, scattered = false; /* blocks in several allocations, some of them on the host */
};

struct world {
	static constexpr uint32_t LAYERS = 2, LAYER = 1, RANGES = 3;

	const test_case c;
	struct kv_layout layout;
	struct kv_geometry geometry;
	std::vector<float> q, sinks, alibi, tree_bias;
	std::vector<int32_t> ranges;
	float out_scale;
	std::vector<std::vector<float>> k, v; /* [sequence * heads + head][token][dim], decoded */
	std::vector<uint64_t> table;
	uint32_t stride;
	std::vector<std::unique_ptr<region>> regions; /* of `region_blocks` blocks each */
	uint32_t region_blocks;
	std::unique_ptr<device_array<uint8_t>> q_device;
	std::unique_ptr<device_array<uint64_t>> table_device;
	std::unique_ptr<device_array<uint32_t>> tokens_device;
	std::unique_ptr<device_array<float>> sinks_device, alibi_device, tree_device, out_scale_device;
	std::unique_ptr<device_array<int32_t>> ranges_device;

	/* What no token fills is 0xff, which as a scale or a 16-bit code is a NaN; entries of the table
	 * that no query needs are no addresses. */
	explicit world(const test_case &c);

	/* Everything but out, lse and workspace. */
	void shape(struct kv_cuda_attend *a) const;

	/* The largest relative error of a row against float64, and the largest error of a logarithm, if there are any. */
	double check(const std::vector<float> &out, const std::vector<float> &lse, double *lse_error) const;

      private:
	uint32_t window() const;
	bool visible(uint32_t sequence, int64_t p, int64_t j) const;
	void make_features(random_source &r);
	void fill_head(std::vector<uint8_t> &host, const std::vector<uint32_t> &blocks, uint32_t sequence,
		       uint32_t head, random_source &r);
	void fill_table(std::vector<uint8_t> &host, random_source &r);
	void make_regions(uint32_t blocks);
	void fill_regions(const std::vector<uint8_t> &host);
	void reference_row(size_t row, std::vector<double> &out, double *lse) const;
};

/* Elements as bytes of a type, x rounded to it; and back. */
std::vector<uint8_t> elements_of(enum kv_dtype t, std::vector<float> &x);
std::vector<float> floats_of(enum kv_dtype t, const std::vector<uint8_t> &bytes);

#endif
