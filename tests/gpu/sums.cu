/* Checksums of device memory against the CRC-32C that the CPU computes, byte by byte: parts of one byte to several MiB,
 * which begin and end anywhere, many in one launch, and nothing that lies beside a part in its sum. `sums small` is for
 * compute-sanitizer. */
#include "kernels/cuda/sums.h"
#include "tests/gpu/gpu.h"

static uint32_t crc32c(const uint8_t *at, uint64_t bytes)
{
	static uint32_t table[256];
	uint32_t r = UINT32_MAX;

	for (uint32_t i = 0; !table[255] && i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] & 1 ? (table[i] >> 1) ^ 0x82f63b78u : table[i] >> 1;
	}
	for (uint64_t i = 0; i < bytes; i++)
		r = (r >> 8) ^ table[(r ^ at[i]) & 255];
	return ~r;
}

/* Places in an order of chance, the last one at the end of what is allocated, with bytes of chance around them. */
static bool run_case(uint32_t count, uint32_t parts, uint64_t part_bytes)
{
	const uint64_t stride = (parts * part_bytes + 15) / 16 * 16 + 32, bytes = count * stride;
	random_source r(count + parts + part_bytes);
	region memory(bytes, false);
	std::vector<uint8_t> data(bytes);
	std::vector<uint64_t> at;
	struct kv_cuda_sums s = {};
	size_t wrong = 0;

	for (uint8_t &b : data)
		b = (uint8_t)r.next();
	memory.set(data);
	for (uint32_t i = 0; i < count; i++)
		at.push_back((uint64_t)(uintptr_t)memory.device + i * stride + (i + 1 == count ? 32 : 16));
	for (uint32_t i = count; i > 1; i--)
		std::swap(at[i - 1], at[r.next() % i]);
	device_array<uint64_t> list(at);
	device_array<uint32_t> sums(std::vector<uint32_t>(count * parts + 1, 0));

	s.at = list.data;
	s.count = count;
	s.parts = parts;
	s.part_bytes = part_bytes;
	s.sums = sums.data;
	bool ok = kv_cuda_sums(&s, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	const std::vector<uint32_t> got = sums.get();

	for (uint32_t i = 0; i < count * parts; i++)
		wrong += got[i] != crc32c(&data[at[i / parts] - (uint64_t)(uintptr_t)memory.device + i % parts * part_bytes], part_bytes);
	ok = ok && wrong == 0 && got[count * parts] == 0;
	printf("%-4s sums of %u x %u parts of %llu bytes: %zu wrong\n", ok ? "ok" : "BAD", count, parts, (unsigned long long)part_bytes,
	       wrong);
	return ok;
}

static bool refuses()
{
	struct kv_cuda_sums sound = {};
	bool ok = true;

	sound.at = (const uint64_t *)16;
	sound.sums = (uint32_t *)16;
	sound.count = sound.parts = 1;
	sound.part_bytes = 1;
	for (int i = 0; i < 8; i++) {
		struct kv_cuda_sums s = sound;

		s.count = i == 0 ? 0 : i == 1 ? DEVICE_SUMS_MAX + 1 : 1;
		s.parts = i == 2 ? 0 : i == 3 ? DEVICE_SUMS_MAX + 1 : 1;
		s.part_bytes = i == 4 ? 0 : i == 5 ? DEVICE_SUMS_PART_MAX + 1 : 1;
		s.at = i == 6 ? NULL : (const uint64_t *)16;
		s.sums = i == 7 ? NULL : (uint32_t *)16;
		ok = kv_cuda_sums(&s, nullptr) == STATUS_INVALID && ok;
	}
	return ok;
}

int main(int argc, char **argv)
{
	const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
	bool ok = refuses();

	for (uint64_t bytes : {1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 511, 512, 513, 544, 2047, 2048, 2049, 4096, 17408})
		ok = run_case(small ? 3 : 17, small ? 3 : 9, bytes) && ok;
	for (uint64_t bytes : {32768 - 16, 32768 - 1, 32768, 32768 + 1, 3 * 32768 + 5, 65 * 32768 + 7})
		ok = run_case(1, small ? 1 : 3, bytes) && ok;
	if (!small) {
		ok = run_case(128, 32, 17408) && ok;
		ok = run_case(1000, 16, 544) && ok;
		ok = run_case(DEVICE_SUMS_MAX, 1, 37) && ok;
		ok = run_case(2, 2, ((uint64_t)8 << 20) - 3) && ok;
		ok = run_case(1, 1, ((uint64_t)150 << 20) + 13) && ok; /* the third level of powers */
	}
	printf("sums: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
