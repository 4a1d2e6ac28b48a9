#include "tests/gpu/attend_world.h"

#include <algorithm>

std::vector<uint8_t> elements_of(enum kv_dtype t, std::vector<float> &x)
{
	std::vector<uint8_t> bytes(x.size() * kv_dtype_bytes(t));

	for (size_t i = 0; i < x.size(); i++) {
		if (t == KV_DTYPE_F32) {
			memcpy(&bytes[4 * i], &x[i], 4);
		} else {
			uint16_t h = t == KV_DTYPE_F16 ? kv_half_from(x[i]) : kv_bf16_from(x[i]);

			memcpy(&bytes[2 * i], &h, 2);
			x[i] = t == KV_DTYPE_F16 ? kv_half_to(h) : kv_bf16_to(h);
		}
	}
	return bytes;
}

std::vector<float> floats_of(enum kv_dtype t, const std::vector<uint8_t> &bytes)
{
	std::vector<float> x(bytes.size() / kv_dtype_bytes(t));

	for (size_t i = 0; i < x.size(); i++) {
		uint16_t h;

		if (t == KV_DTYPE_E4M3) {
			x[i] = kv_e4m3_to(bytes[i]);
			continue;
		}
		memcpy(&h, &bytes[2 * i], 2);
		if (t == KV_DTYPE_F32)
			memcpy(&x[i], &bytes[4 * i], 4);
		else
			x[i] = t == KV_DTYPE_F16 ? kv_half_to(h) : kv_bf16_to(h);
	}
	return x;
}

/* One vector of the case's kind of data. `query` is what growing and sunk keys lie along. */
static void make_vector(const test_case &c, enum kv_side side, uint32_t token, uint32_t tokens,
			const float *query, random_source &r, std::vector<float> &x)
{
	float size = 1, along = 0, offset = 0;

	if (c.data == WIDE)
		size = exp2f((float)(r.next() % 22) - 18);
	if (c.data == SHARP && side == KV_SIDE_K)
		size = 6;
	if (c.data == GROWING && side == KV_SIDE_K)
		along = 3.0f * (float)token / (float)tokens;
	if (c.data == SINK) {
		along = side == KV_SIDE_K && token == 3 ? 1.2f : 0;
		offset = side == KV_SIDE_V ? 0.5f : 0;
	}
	for (uint32_t i = 0; i < x.size(); i++)
		x[i] = c.data == ZEROS && side == KV_SIDE_V
			       ? 0
			       : size * (r.bell() + offset) + (along > 0 ? along * query[i] : 0);
}

void world::fill_head(std::vector<uint8_t> &host, const std::vector<uint32_t> &blocks, uint32_t sequence,
		      uint32_t head, random_source &r)
{
	const uint32_t tokens = c.tokens[sequence];
	const float *query = &q[((size_t)sequence * c.queries * c.heads + head) * c.group * c.d.k];

	for (int side = 0; side < 2; side++) {
		const uint32_t d = side ? c.d.v : c.d.k;
		std::vector<float> x(d);
		std::vector<float> &out =
			side ? v[sequence * c.heads + head] : k[sequence * c.heads + head];

		out.resize((size_t)tokens * d);
		for (uint32_t i = 0; i < tokens; i++) {
			uint8_t *block = &host[blocks[i / c.block_tokens] * geometry.block_bytes];

			make_vector(c, (enum kv_side)side, i, tokens, query, r, x);
			kv_encode(&layout, &geometry, block, LAYER, head, (enum kv_side)side,
				  i % c.block_tokens, 1, x.data(), KV_DTYPE_F32, d);
			kv_decode(&layout, &geometry, block, LAYER, head, (enum kv_side)side,
				  i % c.block_tokens, 1, false, &out[(size_t)i * d], KV_DTYPE_F32, d);
		}
	}
}

template <class T> static std::unique_ptr<device_array<T>> on_device(const std::vector<T> &v)
{
	return std::unique_ptr<device_array<T>>(new device_array<T>(v));
}

/* Sinks of about the size of a row's sum, slopes as of 8 heads, trees that mask about a third; ranges: one
 * that no query is in, one that holds the last queries and reaches past the end, and none. */
void world::make_features(random_source &r)
{
	const uint32_t sequences = (uint32_t)c.tokens.size(), q_heads = c.heads * c.group;

	for (uint32_t h = 0; h < q_heads; h++) {
		sinks.push_back(h % 5 == 4 ? -INFINITY : 6 + r.bell());
		alibi.push_back(c.features.alibi_sqrt ? 0.2f : exp2f(-(float)(h % 8) - 1));
	}
	for (uint32_t i = 0; i < sequences * c.queries * c.queries; i++)
		tree_bias.push_back(i % (c.queries + 1) != 0 && r.next() % 3 == 0 ? -INFINITY : r.bell());
	for (uint32_t s = 0; s < sequences; s++) {
		const int32_t n = (int32_t)c.tokens[s];

		ranges.insert(ranges.end(), {n / 8, n / 4, n - n / 3 - 1, n + 5, 1, 0});
	}
	out_scale = 0.003f;
	sinks_device = on_device(sinks);
	alibi_device = on_device(alibi);
	tree_device = on_device(tree_bias);
	ranges_device = on_device(ranges);
	out_scale_device = on_device(std::vector<float>{out_scale});
}

/* Blocks in random order. */
void world::fill_table(std::vector<uint8_t> &host, random_source &r)
{
	std::vector<uint32_t> order(host.size() / geometry.block_bytes);

	for (uint32_t i = 0; i < order.size(); i++)
		order[i] = i;
	for (uint32_t i = (uint32_t)order.size(); i > 1; i--)
		std::swap(order[i - 1], order[r.next() % i]);
	for (uint32_t s = 0, next = 0; s < c.tokens.size(); s++) {
		const uint32_t count = (c.tokens[s] + c.block_tokens - 1) / c.block_tokens;
		std::vector<uint32_t> mine(order.begin() + next, order.begin() + next + count);
		uint32_t first = 0; /* token that a query sees */

		next += count;
		while (first < c.tokens[s]) {
			bool seen = false;

			for (uint32_t i = 0; i < c.queries; i++)
				seen = seen || visible(s, (int64_t)c.tokens[s] - c.queries + i, first);
			if (seen)
				break;
			first++;
		}
		first /= c.block_tokens;
		for (uint32_t i = first; i < count; i++)
			table[(size_t)s * stride + i] = (uint64_t)(uintptr_t)regions[mine[i] / region_blocks]->device +
							mine[i] % region_blocks * geometry.block_bytes;
		for (uint32_t head = 0; head < c.heads; head++)
			fill_head(host, mine, s, head, r);
	}
}

/* A case without any block has a region all the same. */
void world::make_regions(uint32_t blocks)
{
	region_blocks = std::max(1u, c.scattered ? (blocks + 3) / 4 : blocks);
	for (uint32_t at = 0; at == 0 || at < blocks; at += region_blocks)
		regions.emplace_back(new region(region_blocks * geometry.block_bytes, c.scattered && at / region_blocks % 2));
}

void world::fill_regions(const std::vector<uint8_t> &host)
{
	const size_t each = region_blocks * geometry.block_bytes;
	std::vector<uint8_t> all(host);

	all.resize(regions.size() * each, 0xff);
	for (size_t i = 0; i < regions.size(); i++)
		regions[i]->set(&all[i * each]);
}

world::world(const test_case &tc) : c(tc)
{
	random_source r(c.d.k * 131 + c.heads * 17 + c.group + c.tokens[0]);
	const uint32_t sequences = (uint32_t)c.tokens.size();
	uint32_t blocks = 0;

	layout = layout_of(c.k, c.v, c.d, LAYERS, c.heads, c.block_tokens);
	layout.window = c.layout_window;
	if (kv_layout_problem(&layout)) {
		fprintf(stderr, "%s\n", kv_layout_problem(&layout));
		exit(1);
	}
	kv_geometry_of(&layout, &geometry);
	stride = 1;
	for (uint32_t t : c.tokens) {
		uint32_t n = (t + c.block_tokens - 1) / c.block_tokens;

		blocks += n;
		stride = std::max(stride, n + 1);
	}
	q.resize((size_t)sequences * c.queries * c.heads * c.group * c.d.k);
	for (float &x : q)
		x = r.bell();
	q_device = on_device(elements_of(c.q_dtype, q));
	k.resize(sequences * c.heads);
	v.resize(sequences * c.heads);
	make_features(r);

	std::vector<uint8_t> host(blocks * geometry.block_bytes, 0xff);

	make_regions(blocks);
	table.assign((size_t)sequences * stride, 0xdead0000beef0000);
	fill_table(host, r);
	fill_regions(host);
	table_device = on_device(table);
	tokens_device = on_device(c.tokens);
}

void world::shape(struct kv_cuda_attend *a) const
{
	*a = {};
	a->layout = &layout;
	a->geometry = &geometry;
	a->layer = LAYER;
	a->sequences = (uint32_t)c.tokens.size();
	a->queries = c.queries;
	a->q_heads = c.heads * c.group;
	a->scale = 1.0f / sqrtf((float)c.d.k);
	a->q = q_device->data;
	a->q_dtype = c.q_dtype;
	a->blocks = table_device->data;
	a->blocks_stride = stride;
	a->kv_tokens = tokens_device->data;
	a->out_dtype = c.out_dtype;
	a->features.window = c.features.window;
	a->features.softcap = c.features.softcap;
	a->features.sinks = c.features.sinks ? sinks_device->data : nullptr;
	a->features.alibi = c.features.alibi ? alibi_device->data : nullptr;
	a->features.alibi_sqrt = c.features.alibi_sqrt;
	a->features.tree_bias = c.features.tree ? tree_device->data : nullptr;
	a->features.ranges = c.features.ranges ? ranges_device->data : nullptr;
	a->features.ranges_max = c.features.ranges ? RANGES : 0;
	a->features.out_scale = c.features.out_scale ? out_scale_device->data : nullptr;
}

uint32_t world::window() const
{
	const uint32_t a = c.features.window, b = c.layout_window;

	return !a ? b : !b ? a : std::min(a, b);
}

bool world::visible(uint32_t sequence, int64_t p, int64_t j) const
{
	if (j <= p && (window() == 0 || p - j < window()))
		return true;
	for (uint32_t i = 0; c.features.ranges && i < RANGES; i++) {
		const int32_t *range = &ranges[2 * (sequence * RANGES + i)];

		if (range[0] <= p && p <= range[1] && range[0] <= j && j <= range[1])
			return true;
	}
	return false;
}

void world::reference_row(size_t row, std::vector<double> &out, double *lse) const
{
	const uint32_t q_heads = c.heads * c.group, q_head = row % q_heads, query = row / q_heads % c.queries;
	const uint32_t sequence = (uint32_t)(row / q_heads / c.queries), tokens = c.tokens[sequence];
	const float *keys = k[sequence * c.heads + q_head / c.group].data(),
		    *values = v[sequence * c.heads + q_head / c.group].data();
	const int64_t p = (int64_t)tokens - c.queries + query;
	std::vector<double> s(tokens, -INFINITY);
	double top = c.features.sinks ? sinks[q_head] : -INFINITY, total = 0;

	out.assign(c.d.v, 0);
	*lse = -INFINITY;
	for (int64_t j = 0; j < tokens; j++) {
		double dot = 0;

		if (!visible(sequence, p, j))
			continue;
		for (uint32_t i = 0; i < c.d.k; i++)
			dot += (double)q[row * c.d.k + i] * keys[(size_t)j * c.d.k + i];
		s[j] = dot / sqrt((double)c.d.k);
		if (c.features.softcap > 0)
			s[j] = c.features.softcap * tanh(s[j] / c.features.softcap);
		if (c.features.alibi) {
			const double distance = fabs((double)(p - j));

			s[j] -= alibi[q_head] * (c.features.alibi_sqrt ? sqrt(distance) : distance);
		}
		if (c.features.tree && j >= (int64_t)tokens - c.queries)
			s[j] += tree_bias[(sequence * c.queries + query) * c.queries + j -
					  ((int64_t)tokens - c.queries)];
		top = std::max(top, s[j]);
	}
	if (top == -INFINITY)
		return;
	if (c.features.sinks)
		total = exp(sinks[q_head] - top);
	for (uint32_t j = 0; j < tokens; j++) {
		double weight = exp(s[j] - top);

		total += weight;
		for (uint32_t i = 0; i < c.d.v && weight > 0; i++)
			out[i] += weight * values[(size_t)j * c.d.v + i];
	}
	for (double &x : out)
		x /= total;
	*lse = top + log(total);
}

double world::check(const std::vector<float> &out, const std::vector<float> &lse, double *lse_error) const
{
	double worst = 0;
	std::vector<double> want;

	*lse_error = 0;
	for (size_t row = 0; row < out.size() / c.d.v; row++) {
		double lse_want, difference = 0, length = 0;

		reference_row(row, want, &lse_want);
		for (uint32_t i = 0; i < c.d.v; i++) {
			double got = out[row * c.d.v + i];

			if (c.features.out_scale)
				got *= out_scale;
			difference += pow(got - want[i], 2);
			length += want[i] * want[i];
		}
		const double off = sqrt(difference);
		double error = !(difference >= 0) ? NAN : length > 0 ? off / sqrt(length) : off;
		double lse_off = c.no_lse ? 0
				 : lse_want == -INFINITY ? (lse[row] == -INFINITY ? 0 : INFINITY)
							 : fabs(lse[row] - lse_want);

		if (!(error <= worst) && !isnan(worst))
			worst = error;
		if (!(lse_off <= *lse_error) && !isnan(*lse_error))
			*lse_error = lse_off;
	}
	return worst;
}
