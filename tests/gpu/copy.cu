/* Copies of blocks on the GPU: what is asked for arrives and nothing else is touched, whole blocks and first tokens,
 * within the device and to and from mapped host memory, replayed from a graph while the lists change; lists of pairs in parts,
 * which the kernel tells of. `copy small` is for compute-sanitizer. */
#include "kernels/cuda/copy_pairs.h"
#include "tests/gpu/gpu.h"

enum { SKIP_EVERY = 5 };

struct lists {
	std::vector<uint64_t> from, to; /* offsets; UINT64_MAX: skipped */
	std::vector<uint32_t> tokens;
};

/* A permutation of the blocks, some of them skipped. */
static lists make_lists(uint32_t count, uint64_t bytes, uint32_t block_tokens, random_source &r)
{
	lists l;
	std::vector<uint64_t> order(count);

	for (uint32_t i = 0; i < count; i++)
		order[i] = i * bytes;
	for (uint32_t i = count; i > 1; i--)
		std::swap(order[i - 1], order[r.next() % i]);
	for (uint32_t i = 0; i < count; i++) {
		const bool skip = i % SKIP_EVERY == 3;

		l.from.push_back(skip && r.next() % 2 ? UINT64_MAX : (uint64_t)(r.next() % count) * bytes);
		l.to.push_back(skip && l.from[i] != UINT64_MAX ? UINT64_MAX : order[i]);
		l.tokens.push_back((uint32_t)(r.next() % (block_tokens + 3)));
	}
	return l;
}

static std::vector<uint64_t> addresses(const std::vector<uint64_t> &offsets, const region &base)
{
	std::vector<uint64_t> a;

	for (uint64_t o : offsets)
		a.push_back(o == UINT64_MAX ? 0 : (uint64_t)(uintptr_t)base.device + o);
	return a;
}

static void expect(const lists &l, const struct kv_cuda_copy &c, const std::vector<uint8_t> &from,
		   std::vector<uint8_t> &to)
{
	for (uint32_t i = 0; i < c.count; i++) {
		if (l.from[i] == UINT64_MAX || l.to[i] == UINT64_MAX)
			continue;
		const uint64_t step = c.tokens ? c.geometry->chunk_bytes : c.block_bytes;
		uint64_t bytes = c.block_bytes;

		if (c.tokens) {
			uint32_t n = l.tokens[i] < c.layout->block_tokens ? l.tokens[i] : c.layout->block_tokens;

			bytes = (uint64_t)(n + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS * c.geometry->atom_bytes;
		}
		for (uint64_t at = 0; at < c.block_bytes; at += step)
			memcpy(&to[l.to[i] + at], &from[l.from[i] + at], bytes);
	}
}

static bool run_case(const char *name, uint32_t count, const struct kv_layout *layout, uint64_t bytes, bool partial,
		     bool from_host, bool to_host, uint32_t ctas)
{
	random_source r(count + bytes + partial);
	struct kv_geometry g;
	struct kv_cuda_copy c = {};
	region from(count * bytes, from_host), to(count * bytes, to_host);
	std::vector<uint8_t> data(count * bytes), want(count * bytes, 0x5a);
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	bool ok = true;

	kv_geometry_of(layout, &g);
	for (uint8_t &b : data)
		b = (uint8_t)r.next();
	from.set(data);
	to.set(want);
	device_array<uint64_t> from_list(count), to_list(count);
	device_array<uint32_t> tokens_list(count);

	c.count = count;
	c.from = from_list.data;
	c.to = to_list.data;
	c.block_bytes = bytes;
	c.tokens = partial ? tokens_list.data : NULL;
	c.layout = layout;
	c.geometry = &g;
	c.ctas = ctas;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	ok = kv_cuda_copy(&c, stream) == STATUS_OK;
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	size_t wrong = 0;

	for (int round = 0; round < 2; round++) {
		const lists l = make_lists(count, bytes, layout->block_tokens, r);

		from_list.set(addresses(l.from, from));
		to_list.set(addresses(l.to, to));
		tokens_list.set(l.tokens);
		expect(l, c, data, want);
		CUDA(cudaGraphLaunch(exec, stream));
		CUDA(cudaStreamSynchronize(stream));
		const std::vector<uint8_t> got = to.get();

		for (size_t i = 0; i < got.size(); i++)
			wrong += got[i] != want[i];
	}
	ok = ok && wrong == 0;
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	CUDA(cudaStreamDestroy(stream));
	printf("%-4s copy of %s: %4u of %7llu bytes%s, %s to %s, %u CTAs: %zu bytes wrong\n", ok ? "ok" : "BAD", name, count,
	       (unsigned long long)bytes, partial ? ", first tokens" : "", from_host ? "host" : "device",
	       to_host ? "host" : "device", ctas, wrong);
	return ok;
}

/* Blocks of `parts` parts between shuffled places; the word is to say in the end that all are there, and no other is written. */
static bool run_parts(uint32_t count, uint32_t parts, uint64_t bytes, bool from_host, bool to_host, uint32_t ctas)
{
	const uint64_t block = parts * bytes;
	const uint32_t base = UINT32_MAX - 1;
	random_source r(count + parts + bytes);
	region from(count * block, from_host), to(count * block, to_host), words(3 * sizeof(uint32_t), true);
	std::vector<uint8_t> data(count * block), want(count * block, 0x5a);
	std::vector<struct device_pair> list(count);
	const lists l = make_lists(count, block, 16, r);
	struct kv_cuda_pairs k = {};
	const uint32_t *word = (const uint32_t *)words.host;
	size_t wrong = 0;

	for (uint8_t &b : data)
		b = (uint8_t)r.next();
	from.set(data);
	to.set(want);
	words.set(std::vector<uint8_t>(3 * sizeof(uint32_t), 0x11));
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t at = l.from[i] == UINT64_MAX ? 0 : l.from[i], place = (uint64_t)i * block;

		list[i] = {(uint64_t)(uintptr_t)from.device + at, (uint64_t)(uintptr_t)to.device + place};
		memcpy(&want[place], &data[at], block);
	}
	device_array<struct device_pair> pairs(list);
	device_array<uint32_t> counts(std::vector<uint32_t>(KV_COPY_COUNTS + parts, 0));

	k.pairs = pairs.data;
	k.count = count;
	k.parts = parts;
	k.part_bytes = bytes;
	k.ctas = ctas;
	k.counts = counts.data;
	k.word = (uint32_t *)words.device + 1;
	k.base = base;
	bool ok = kv_cuda_copy_pairs(&k, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	const std::vector<uint8_t> got = to.get();

	for (size_t i = 0; i < got.size(); i++)
		wrong += got[i] != want[i];
	ok = ok && wrong == 0 && word[0] == 0x11111111 && word[1] == base + parts && word[2] == 0x11111111;
	printf("%-4s copy in parts: %4u of %u x %llu bytes, %s to %s, %u CTAs: %zu bytes wrong, told of %u\n", ok ? "ok" : "BAD", count, parts,
	       (unsigned long long)bytes, from_host ? "host" : "device", to_host ? "host" : "device", ctas, wrong, word[1] - base);
	return ok;
}

static bool refuses()
{
	struct kv_layout l = layout_of(KV_TQ4, 128, 1, 2, 16);
	struct kv_geometry g;
	struct kv_cuda_copy c = {};
	bool ok = kv_cuda_copy(&c, nullptr) == STATUS_OK; /* an empty list */

	kv_geometry_of(&l, &g);
	c.count = 1;
	ok = ok && kv_cuda_copy(&c, nullptr) == STATUS_INVALID;
	c.from = c.to = (const uint64_t *)16;
	c.block_bytes = 40;
	ok = ok && kv_cuda_copy(&c, nullptr) == STATUS_INVALID;
	c.block_bytes = 48;
	c.to = (const uint64_t *)20;
	ok = ok && kv_cuda_copy(&c, nullptr) == STATUS_INVALID;
	c.to = c.from;
	c.tokens = (const uint32_t *)16;
	ok = ok && kv_cuda_copy(&c, nullptr) == STATUS_INVALID; /* nobody says of what layout */
	c.layout = &l;
	c.geometry = &g;
	ok = ok && kv_cuda_copy(&c, nullptr) == STATUS_INVALID; /* blocks of 48 bytes are not of this one */
	c.block_bytes = g.block_bytes;
	l.heads = 0;
	return ok && kv_cuda_copy(&c, nullptr) == STATUS_INVALID;
}

int main(int argc, char **argv)
{
	const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
	bool ok = refuses();

	for (uint32_t block_tokens : {16u, 48u, 256u}) {
		const struct kv_layout l = layout_of(block_tokens == 48 ? KV_FP8 : KV_TQ4, 128, 3, 2, block_tokens);
		struct kv_geometry g;
		const uint32_t count = small ? 7 : 41;

		kv_geometry_of(&l, &g);
		for (int direction = 0; direction < 3; direction++) {
			const bool from_host = direction == 1, to_host = direction == 2;

			ok = run_case("blocks", count, &l, g.block_bytes, false, from_host, to_host, 0) && ok;
			ok = run_case("blocks", count, &l, g.block_bytes, true, from_host, to_host, 3) && ok;
			ok = run_case("pieces", small ? 9 : 5000, &l, 16, false, from_host, to_host, 0) && ok;
			ok = run_case("pieces", small ? 9 : 1000, &l, 4096 + 48, false, from_host, to_host, 1) && ok;
			ok = run_case("pieces", 3, &l, 8192 * 37 + 16, false, from_host, to_host, 2) && ok;
		}
	}
	for (int direction = 0; direction < 3; direction++) {
		const bool from_host = direction == 1, to_host = direction == 2;

		ok = run_parts(1, 1, 16, from_host, to_host, 4) && ok;
		ok = run_parts(3, 7, 8192 * 5 + 48, from_host, to_host, 4) && ok;
		ok = run_parts(small ? 9 : 300, 32, 4096, from_host, to_host, 8) && ok;
		ok = run_parts(small ? 5 : 64, small ? 4 : 80, 17408, from_host, to_host, 16) && ok;
	}
	printf("copy: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
