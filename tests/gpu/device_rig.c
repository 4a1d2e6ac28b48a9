/* See device_rig.h. */
#include "tests/gpu/device_rig.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { DEVICE_TO_DEVICE = 3 }; /* enum cudaMemcpyKind */

const struct device_ops *rig_load(const char **words)
{
	void *library = dlopen("libterrace_cuda.so.0", RTLD_NOW | RTLD_LOCAL);
	const struct device_ops *(*get)(void) = NULL, *ops;

	if (!library) {
		*words = dlerror();
		return NULL;
	}
	*(void **)&get = dlsym(library, DEVICE_OPS_SYMBOL);
	CHECK(get);
	ops = get();
	CHECK(ops->version == DEVICE_OPS_VERSION && ops->bytes == sizeof(*ops));
	*words = "no GPU";
	return ops->count() > 0 ? ops : NULL;
}

void *rig_memory(uint64_t bytes, int *fd)
{
	int made = memfd_create("device-rig", MFD_CLOEXEC);
	void *memory;

	CHECK(made >= 0 && ftruncate(made, (off_t)bytes) == 0);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
	CHECK(memory != MAP_FAILED);
	if (fd)
		*fd = made;
	else
		close(made);
	return memory;
}

void rig_open(struct device_rig *r, const struct device_ops *ops, uint64_t bytes)
{
	memset(r, 0, sizeof(*r));
	r->ops = ops;
	EXPECT(ops->open(0, &r->device, &why), STATUS_OK);
	EXPECT(ops->info(r->device, &r->info, &why), STATUS_OK);
	r->bytes = bytes ? bytes : 2 * r->info.granularity;
	EXPECT(ops->range_reserve(r->device, 4 * r->bytes, &r->range, &why), STATUS_OK);
	EXPECT(ops->extent_make(r->device, r->range, r->bytes, &r->extent, &r->fd, &why), STATUS_OK);
	r->host = rig_memory(r->bytes + RIG_WORDS_BYTES, NULL);
	EXPECT(ops->host_register(r->device, r->host, r->bytes + RIG_WORDS_BYTES, true, &r->host_address, &why), STATUS_OK);
	r->words = (_Atomic uint32_t *)(r->host + r->bytes);
	r->words_address = r->host_address + r->bytes;
}

void rig_close(struct device_rig *r)
{
	r->ops->host_unregister(r->device, r->host);
	r->ops->extent_drop(r->device, &r->extent);
	r->ops->range_free(r->device, r->range, 4 * r->bytes);
	r->ops->close(r->device);
	munmap(r->host, r->bytes + RIG_WORDS_BYTES);
	close(r->fd);
}

static void ended(struct device_copy *list, enum status s)
{
	struct rig_copy *c = list->arg;

	c->status = s;
	sem_post(&c->ended);
}

enum status rig_try(struct device_rig *r, struct rig_copy *c)
{
	const char *why;

	c->list.done = ended;
	c->list.arg = c;
	CHECK(sem_init(&c->ended, 0, 0) == 0);
	return r->ops->copy(r->device, &c->list, &why);
}

void rig_begin(struct device_rig *r, struct rig_copy *c)
{
	CHECK(rig_try(r, c) == STATUS_OK);
}

enum status rig_end(struct rig_copy *c)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += RIG_WAIT_S;
	CHECK(sem_timedwait(&c->ended, &until) == 0);
	sem_destroy(&c->ended);
	return c->status;
}

enum status rig_copy_one(struct device_rig *r, enum device_way way, uint64_t from, uint64_t to, uint64_t bytes)
{
	struct device_pair pair = { from, to };
	struct rig_copy c = { .list = { .pairs = &pair, .count = 1, .parts = 1, .part_bytes = bytes, .way = way } };

	rig_begin(r, &c);
	return rig_end(&c);
}

/* xorshift64* */
uint64_t rig_random(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1du;
}

void rig_fill(void *memory, uint64_t bytes)
{
	uint64_t *words = memory;

	for (uint64_t i = 0; i < bytes / 8; i++)
		words[i] = rig_random();
}

/* ---- CUDA's runtime ---------------------------------------------------------------------------------------------- */

static struct {
	int (*create)(void **stream);
	int (*synchronize)(void *stream);
	int (*destroy)(void *stream);
	int (*copy)(void *to, const void *from, size_t bytes, int kind, void *stream);
} runtime;

static void load_runtime(void)
{
	static const char *const names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so" };
	void *library = NULL;

	if (runtime.create)
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !library; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	*(void **)&runtime.create = dlsym(library, "cudaStreamCreate");
	*(void **)&runtime.synchronize = dlsym(library, "cudaStreamSynchronize");
	*(void **)&runtime.destroy = dlsym(library, "cudaStreamDestroy");
	*(void **)&runtime.copy = dlsym(library, "cudaMemcpyAsync");
	CHECK(runtime.create && runtime.synchronize && runtime.destroy && runtime.copy);
}

void *rig_stream(void)
{
	void *stream = NULL;

	load_runtime();
	CHECK(runtime.create(&stream) == 0);
	return stream;
}

void rig_stream_end(void *stream)
{
	CHECK(runtime.destroy(stream) == 0);
}

void rig_stream_wait(void *stream)
{
	CHECK(runtime.synchronize(stream) == 0);
}

void rig_stream_copy(void *stream, uint64_t to, uint64_t from, uint64_t bytes)
{
	CHECK(runtime.copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, DEVICE_TO_DEVICE, stream) == 0);
}
