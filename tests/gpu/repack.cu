/* int4_pth between blocks and pages on the GPU: the bytes are the CPU's (kernels/repack.h), into blocks and back into
 * pages, and none beside is touched; pages of any strides, of either sign, that begin anywhere; lists of whole atoms
 * and of tokens from anywhere, some skipped. `repack small` is for compute-sanitizer, `repack large` for lists that
 * fill the device. */
#include "tests/gpu/gpu.h"

enum { LAYERS = 2, LAYER = 1, BLOCK_TOKENS = 32, PARTS = 4 };

enum list { OF_ATOMS, OF_PIECES, OF_TOKENS, SHIFTED, LISTS };
static const char *const list_name[LISTS] = {"atoms", "pieces", "tokens", "shifted"};

/* How pages are laid out. */
enum pages { AS_VLLM, PADDED, HEADS_FIRST, OF_SIDES, APART, MIRRORED, ANYHOW, PAGES };
static const char *const pages_name[PAGES] = {"as vLLM's", "padded",   "heads first", "a side each",
					      "apart",     "mirrored", "anyhow"};

/* Which of its parts an array of pages has, and the order of its dims from the outermost on: 0 pages, 1 tokens, 2
 * heads. */
struct array_shape {
	std::vector<int> parts, order = {0, 1, 2};
	bool backwards[3] = {false, false, false};
	uint32_t gap = 0, lead = 0, multiple = 1; /* strides are multiples */
};

struct rig {
	struct kv_layout layout;
	struct kv_geometry geometry;
	uint32_t page_tokens, page_count;
	size_t page_bytes = 0;             /* of all arrays */
	struct kv_pages_side side[2] = {}; /* offsets as addresses */
	std::vector<int64_t> slots, page_slots;
	uint32_t blocks;
};

static uint32_t part_bytes(const rig &g, int part)
{
	return part % 2 ? 4 : (part < 2 ? g.layout.head_dim_k : g.layout.head_dim_v) / 2;
}

static void place_part(rig *g, int part, size_t at, const int64_t (&stride)[3])
{
	struct kv_pages_side *s = &g->side[part / 2];

	if (part % 2) {
		s->scales = (uint8_t *)at;
		s->scale_page = stride[0];
		s->scale_token = stride[1];
		s->scale_head = stride[2];
	} else {
		s->codes = (uint8_t *)at;
		s->code_page = stride[0];
		s->code_token = stride[1];
		s->code_head = stride[2];
	}
}

static void add_array(rig *g, const array_shape &a)
{
	const int64_t count[3] = {g->page_count, g->page_tokens, g->layout.heads};
	int64_t cell = a.gap, stride[3], step;
	size_t at = g->page_bytes + a.lead;

	for (int part : a.parts)
		cell += part_bytes(*g, part);
	step = cell;
	for (int i = 2; i >= 0; i--) {
		stride[a.order[i]] = step;
		step = (step * count[a.order[i]] + a.multiple - 1) / a.multiple * a.multiple;
	}
	g->page_bytes = at + step + a.gap;
	for (int i = 0; i < 3; i++)
		if (a.backwards[i]) {
			at += (count[i] - 1) * stride[i];
			stride[i] = -stride[i];
		}
	for (int part : a.parts) {
		place_part(g, part, at, stride);
		at += part_bytes(*g, part);
	}
}

static void shuffle(std::vector<int> &v, random_source &r)
{
	for (size_t i = v.size(); i > 1; i--)
		std::swap(v[i - 1], v[r.next() % i]);
}

/* Some of the parts together, in any order and any direction. */
static void add_anyhow(rig *g, random_source &r)
{
	std::vector<int> parts = {0, 1, 2, 3};

	shuffle(parts, r);
	while (!parts.empty()) {
		array_shape a;
		const size_t n = 1 + r.next() % parts.size();

		a.parts.assign(parts.end() - n, parts.end());
		parts.resize(parts.size() - n);
		shuffle(a.order, r);
		for (bool &b : a.backwards)
			b = r.next() % 2;
		a.gap = r.next() % 2 ? (uint32_t)(r.next() % 21) : 0;
		a.lead = (uint32_t)(r.next() % 33);
		add_array(g, a);
	}
}

static void add_pages(rig *g, enum pages p, uint32_t lead, random_source &r)
{
	array_shape a;

	a.lead = 16 + lead;
	if (p == ANYHOW)
		return add_anyhow(g, r);
	if (p == PADDED)
		a.multiple = 64;
	if (p == HEADS_FIRST)
		a.order = {0, 2, 1};
	for (int first = 0, n = p == APART || p == MIRRORED ? 1
				: p == OF_SIDES             ? 2
							    : PARTS;
	     first < PARTS; first += n) {
		a.parts.clear();
		for (int part = first; part < first + n; part++)
			a.parts.push_back(part);
		for (bool &b : a.backwards) /* the next array begins where this one's first head ends */
			b = p == MIRRORED && first % 2 == 0;
		add_array(g, a);
		a.lead = p == MIRRORED ? 0 : a.lead;
	}
}

/* Atoms in any order with pages in any order, the tokens of each in order; or pieces that begin anywhere in theirs; or
 * single tokens; or one run of tokens that begins within an atom. Of what is no list of atoms about every tenth token
 * is skipped, on either side, some by numbers that are too large. */
static void make_list(rig *g, uint32_t tokens, enum list kind, random_source &r)
{
	const uint32_t places = g->blocks * BLOCK_TOKENS, step = kind == OF_TOKENS ? 1 : KV_ATOM_TOKENS;
	std::vector<int> groups(places / step), pages(g->page_count * g->page_tokens / step);

	for (size_t i = 0; i < groups.size(); i++)
		groups[i] = (int)i;
	for (size_t i = 0; i < pages.size(); i++)
		pages[i] = (int)i;
	if (kind != SHIFTED) {
		shuffle(groups, r);
		shuffle(pages, r);
	}
	for (uint32_t i = 0; g->slots.size() < tokens; i++)
		for (uint32_t t = kind == OF_PIECES           ? (uint32_t)(r.next() % 9)
				  : kind == SHIFTED && i == 0 ? 5
							      : 0;
		     t < step && g->slots.size() < tokens; t++) {
			g->slots.push_back((int64_t)groups[i] * step + t);
			g->page_slots.push_back((int64_t)pages[i] * step + t);
		}
	for (uint32_t i = 0; i < tokens && (kind == OF_PIECES || kind == OF_TOKENS); i++) {
		if (r.next() % 20 == 0)
			g->slots[i] = r.next() % 2 ? -1 : (int64_t)places + (int64_t)(r.next() % 1000);
		if (r.next() % 20 == 0)
			g->page_slots[i] =
				r.next() % 2 ? -5
					     : (int64_t)g->page_count * g->page_tokens + (int64_t)(r.next() % 1000);
	}
}

static rig make_rig(uint32_t dk, uint32_t dv, uint32_t heads, uint32_t tokens, enum list kind, enum pages p,
		    uint32_t page_tokens, random_source &r)
{
	rig g;

	g.layout = layout_of(KV_INT4_PTH, dk, LAYERS, heads, BLOCK_TOKENS);
	g.layout.head_dim_v = dv;
	g.layout.rotation_version = kv_rotation_version(dk, dv);
	kv_geometry_of(&g.layout, &g.geometry);
	g.page_tokens = page_tokens;
	g.blocks = 2 * tokens / BLOCK_TOKENS + 2;
	g.page_count = (g.blocks * BLOCK_TOKENS - 1) / page_tokens + 1;
	add_pages(&g, p, kind == OF_ATOMS ? 0 : (uint32_t)(r.next() % 16), r);
	g.page_bytes += 64;
	make_list(&g, tokens, kind, r);
	return g;
}

static struct kv_pages_side side_at(const rig &g, int side, uint8_t *base)
{
	struct kv_pages_side s = g.side[side];

	s.codes = base + (size_t)s.codes;
	s.scales = base + (size_t)s.scales;
	return s;
}

/* The CPU's, which takes no numbers that are too large. */
static void on_cpu(const rig &g, void (*run)(const struct kv_repack *), std::vector<uint8_t> &blocks,
		   std::vector<uint8_t> &pages, int sides)
{
	std::vector<int64_t> slots = g.slots;
	std::vector<void *> table(g.blocks);
	struct kv_repack k = {};

	for (size_t i = 0; i < slots.size(); i++)
		if (slots[i] >= (int64_t)g.blocks * BLOCK_TOKENS ||
		    g.page_slots[i] >= (int64_t)g.page_count * g.page_tokens)
			slots[i] = -1;
	for (uint32_t i = 0; i < g.blocks; i++)
		table[i] = blocks.data() + i * g.geometry.block_bytes;
	k.layout = &g.layout;
	k.geometry = &g.geometry;
	k.layer = LAYER;
	k.tokens = (uint32_t)slots.size();
	k.slots = slots.data();
	k.page_slots = g.page_slots.data();
	k.blocks = table.data();
	k.page_tokens = g.page_tokens;
	for (int s = 0; s < 2; s++)
		if (sides >> s & 1)
			k.side[s] = side_at(g, s, pages.data());
	run(&k);
}

static size_t differing(const std::vector<uint8_t> &a, const std::vector<uint8_t> &b)
{
	size_t n = a.size() == b.size() ? 0 : SIZE_MAX;

	for (size_t i = 0; i < a.size() && n != SIZE_MAX; i++)
		n += a[i] != b[i];
	return n;
}

/* Random pages to blocks, and from there to pages of other bytes. `sides`: bits, K and V. */
static bool run_case(uint32_t dk, uint32_t dv, uint32_t heads, uint32_t tokens, enum list kind, enum pages p,
		     uint32_t page_tokens, int sides = 3)
{
	random_source r(dk * 1000003 + dv * 1009 + heads * 31 + tokens * 7 + kind * 5 + p);
	const rig g = make_rig(dk, dv, heads, tokens, kind, p, page_tokens, r);
	std::vector<uint8_t> blocks(g.blocks * g.geometry.block_bytes, 0xa5), pages(g.page_bytes), others;
	std::vector<uint64_t> table(g.blocks);

	for (uint8_t &b : pages)
		b = (uint8_t)r.next();
	others = pages;
	for (uint8_t &b : others)
		b = (uint8_t)~b;
	device_array<uint8_t> blocks_device(blocks), pages_device(pages);
	device_array<int64_t> slots(g.slots), page_slots(g.page_slots);
	struct kv_cuda_repack c = {};

	for (uint32_t i = 0; i < g.blocks; i++)
		table[i] = (uint64_t)(uintptr_t)blocks_device.data + i * g.geometry.block_bytes;
	device_array<uint64_t> table_device(table);
	c.layout = &g.layout;
	c.geometry = &g.geometry;
	c.layer = LAYER;
	c.tokens = tokens;
	c.slots = slots.data;
	c.page_slots = page_slots.data;
	c.blocks = table_device.data;
	c.block_count = g.blocks;
	c.page_tokens = g.page_tokens;
	c.page_count = g.page_count;
	for (int s = 0; s < 2; s++)
		if (sides >> s & 1)
			c.side[s] = side_at(g, s, pages_device.data);
	bool ok = kv_cuda_repack_from_pages(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	on_cpu(g, kv_repack_from_pages, blocks, pages, sides);
	const size_t in_blocks = differing(blocks_device.get(), blocks), read = differing(pages_device.get(), pages);

	pages_device.set(others);
	ok = kv_cuda_repack_to_pages(&c, nullptr) == STATUS_OK && ok;
	CUDA(cudaDeviceSynchronize());
	on_cpu(g, kv_repack_to_pages, blocks, others, sides);
	const size_t in_pages = differing(pages_device.get(), others), kept = differing(blocks_device.get(), blocks);

	ok = ok && !in_blocks && !read && !in_pages && !kept;
	printf("%-4s d %3u, %3u, %u heads, %5u tokens, %-7s, pages of %2u %-11s%s: %zu bytes of blocks differ, %zu of "
	       "pages\n",
	       ok ? "ok" : "BAD", dk, dv, heads, tokens, list_name[kind], page_tokens, pages_name[p],
	       sides == 1   ? ", K"
	       : sides == 2 ? ", V"
			    : "",
	       in_blocks + kept, in_pages + read);
	fflush(stdout);
	return ok;
}

static bool refuses()
{
	struct kv_layout l = layout_of(KV_INT4_PTH, 128, 2, 2, 16), other = l;
	struct kv_geometry g;
	device_array<uint8_t> some(256);
	struct kv_cuda_repack good = {}, c;
	const auto both = [&](enum status s) {
		return kv_cuda_repack_from_pages(&c, nullptr) == s && kv_cuda_repack_to_pages(&c, nullptr) == s;
	};
	const auto refused = [&] {
		const bool invalid = both(STATUS_INVALID);

		c = good;
		return invalid;
	};

	kv_geometry_of(&l, &g);
	good.layout = &l;
	good.geometry = &g;
	good.tokens = 2;
	good.slots = good.page_slots = (const int64_t *)some.data; /* each is -1 */
	good.blocks = (const uint64_t *)some.data;
	good.page_tokens = 16;
	good.side[KV_SIDE_K].codes = good.side[KV_SIDE_K].scales = some.data;
	c = good;
	bool ok = both(STATUS_OK);

	c.layer = 2;
	ok = refused() && ok;
	c.slots = nullptr;
	ok = refused() && ok;
	c.page_slots = (const int64_t *)(some.data + 4);
	ok = refused() && ok;
	c.blocks = nullptr;
	ok = refused() && ok;
	c.page_tokens = 0;
	ok = refused() && ok;
	c.side[KV_SIDE_K].codes = nullptr;
	ok = refused() && ok;
	c.side[KV_SIDE_K].scales = nullptr;
	ok = refused() && ok;
	c.tokens = UINT32_MAX;
	ok = refused() && ok;
	other.heads = 0;
	c.layout = &other;
	ok = refused() && ok;
	other = l;
	other.k_format = KV_TQ4;
	c.layout = &other;
	ok = both(STATUS_UNSUPPORTED) && ok;
	c = good;
	c.tokens = 0;
	c.slots = c.page_slots = nullptr;
	c.page_tokens = 0;
	ok = both(STATUS_OK) && ok;
	CUDA(cudaDeviceSynchronize());
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}

int main(int argc, char **argv)
{
	constexpr uint32_t MANY_TOKENS = 16400; /* for which a CTA takes eight heads */
	const bool small = argc > 1 && strcmp(argv[1], "small") == 0, large = argc > 1 && strcmp(argv[1], "large") == 0;
	const uint32_t dims[] = {64, 80, 96, 112, 128, 192, 256, 512}, count = sizeof(dims) / sizeof(*dims);
	bool ok = refuses();

	for (uint32_t i = 0; i < count; i++)
		for (int p = AS_VLLM; p < PAGES; p++) {
			const uint32_t d = dims[i], other = dims[(i * 3 + 1) % count];
			const uint32_t tokens = large ? 2000 : small ? 37 : 333;

			if ((small || large) && (i + p) % 2 == 1)
				continue;
			ok = run_case(d, d, (large ? 7 : 4) + (i + p) % 5, large ? MANY_TOKENS : tokens, OF_ATOMS,
				      (enum pages)p, 16) &&
			     ok;
			ok = run_case(d, other, 1 + (i + p) % 6, tokens, OF_PIECES, (enum pages)p, 48) && ok;
			ok = run_case(other, d, 1 + (i * 3 + p) % 9, small ? 20 : tokens, OF_TOKENS, (enum pages)p,
				      7 + i) &&
			     ok;
		}
	for (int sides = 1; sides < 3; sides++)
		for (int p = AS_VLLM; p < PAGES; p++)
			ok = run_case(128, 64, 5, 50, sides == 1 ? OF_PIECES : SHIFTED, (enum pages)p, 16, sides) && ok;
	for (uint32_t i = 0; i < (small ? 10u : 60u); i++)
		ok = run_case(dims[i % count], dims[i * 5 % count], 1 + i % 7, 20 + i, (enum list)(i % LISTS), ANYHOW,
			      1 + i) &&
		     ok;
	printf("repack: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
