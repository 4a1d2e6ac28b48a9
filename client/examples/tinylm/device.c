/* CUDA's runtime by dlopen; see device.h. The few declarations below are those of cuda_runtime_api.h. */
#include "device.h"

#include "terrace.h"

#include <dlfcn.h>
#include <string.h>

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 }; /* enum cudaMemcpyKind */

static struct {
	int (*set_device)(int device);
	int (*stream_create)(void **stream);
	int (*stream_synchronize)(void *stream);
	int (*stream_destroy)(void *stream);
	int (*allocate)(void **memory, size_t bytes);
	int (*release)(void *memory);
	int (*copy)(void *to, const void *from, size_t bytes, int kind, void *stream);
	int (*fill)(void *memory, int value, size_t bytes, void *stream);
	const char *(*words)(int error);
} cuda;

static const struct {
	const char *name;
	void *function; /* a pointer to it in `cuda` */
} symbols[] = {
	{ "cudaSetDevice", &cuda.set_device },
	{ "cudaStreamCreate", &cuda.stream_create },
	{ "cudaStreamSynchronize", &cuda.stream_synchronize },
	{ "cudaStreamDestroy", &cuda.stream_destroy },
	{ "cudaMalloc", &cuda.allocate },
	{ "cudaFree", &cuda.release },
	{ "cudaMemcpyAsync", &cuda.copy },
	{ "cudaMemsetAsync", &cuda.fill },
	{ "cudaGetErrorString", &cuda.words },
};

static bool load_runtime(struct fault *fault)
{
	static const char *const names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so" };
	void *library = NULL;

	for (size_t i = 0; !library && i < sizeof(names) / sizeof(names[0]); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fault_set(fault, "no CUDA runtime: %.300s", dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *function = dlsym(library, symbols[i].name);

		if (!function) {
			dlclose(library);
			return fault_set(fault, "the CUDA runtime has no %s", symbols[i].name);
		}
		memcpy(symbols[i].function, &function, sizeof(function));
	}
	return true;
}

bool device_load(struct fault *fault)
{
	if (terrace_cuda_load(NULL) != TERRACE_OK)
		return fault_set(fault, "%.300s", terrace_error());
	return load_runtime(fault);
}

static bool done(int error, const char *what, struct fault *fault)
{
	return error == 0 || fault_set(fault, "CUDA: %s: %.300s", what, cuda.words(error));
}

bool device_use(int ordinal, struct fault *fault)
{
	return done(cuda.set_device(ordinal), "no such device", fault);
}

bool device_open(struct device *d, struct fault *fault)
{
	d->stream = NULL;
	return done(cuda.stream_create(&d->stream), "no stream", fault);
}

void device_close(struct device *d)
{
	if (d->stream) {
		cuda.stream_synchronize(d->stream);
		cuda.stream_destroy(d->stream);
	}
	d->stream = NULL;
}

void *device_alloc(struct device *d, size_t bytes, struct fault *fault)
{
	void *memory = NULL;

	if (!done(cuda.allocate(&memory, bytes), "no memory", fault))
		return NULL;
	if (done(cuda.fill(memory, 0, bytes, d->stream), "cannot clear memory", fault))
		return memory;
	cuda.release(memory);
	return NULL;
}

void device_free(void *memory)
{
	if (memory)
		cuda.release(memory);
}

bool device_put(struct device *d, void *to_device, const void *from, size_t bytes, struct fault *fault)
{
	return done(cuda.copy(to_device, from, bytes, HOST_TO_DEVICE, d->stream), "copy to the device", fault);
}

bool device_get(struct device *d, void *to, const void *from_device, size_t bytes, struct fault *fault)
{
	return done(cuda.copy(to, from_device, bytes, DEVICE_TO_HOST, d->stream), "copy from the device", fault);
}

bool device_wait(struct device *d, struct fault *fault)
{
	return done(cuda.stream_synchronize(d->stream), "a kernel or a copy failed", fault);
}
