/* See driver_kernel.h. The declarations below are those of cuda.h. */
#include "tests/gpu/driver_kernel.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { NON_BLOCKING = 1, PORTABLE_MAPPED = 3 }; /* CU_STREAM_NON_BLOCKING; CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP */

static struct {
	int (*init)(unsigned int flags);
	int (*device)(int *device, int ordinal);
	int (*retain)(void **context, int device);
	int (*push)(void *context);
	int (*pop)(void **context);
	int (*load)(void **module, const void *image);
	int (*function)(void **function, void *module, const char *name);
	int (*stream)(void **stream, unsigned int flags);
	int (*allocate)(uint64_t *address, size_t bytes);
	int (*upload)(uint64_t to, const void *from, size_t bytes);
	int (*pin)(void *memory, size_t bytes, unsigned int flags);
	int (*pinned)(uint64_t *address, void *memory, unsigned int flags);
	int (*launch)(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
		      unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **arguments, void **extra);
	int (*words)(int error, const char **text);
} cuda;

static const struct {
	const char *name;
	void *function; /* a pointer to it in `cuda` */
} symbols[] = {
	{ "cuInit", &cuda.init },
	{ "cuDeviceGet", &cuda.device },
	{ "cuDevicePrimaryCtxRetain", &cuda.retain },
	{ "cuCtxPushCurrent_v2", &cuda.push },
	{ "cuCtxPopCurrent_v2", &cuda.pop },
	{ "cuModuleLoadData", &cuda.load },
	{ "cuModuleGetFunction", &cuda.function },
	{ "cuStreamCreate", &cuda.stream },
	{ "cuMemAlloc_v2", &cuda.allocate },
	{ "cuMemcpyHtoD_v2", &cuda.upload },
	{ "cuMemHostRegister_v2", &cuda.pin },
	{ "cuMemHostGetDevicePointer_v2", &cuda.pinned },
	{ "cuLaunchKernel", &cuda.launch },
	{ "cuGetErrorString", &cuda.words },
};

static const char *load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return "no libcuda.so.1";
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *function = dlsym(library, symbols[i].name);

		if (!function)
			return symbols[i].name;
		memcpy(symbols[i].function, &function, sizeof(function));
	}
	return NULL;
}

static const char *said(int error, const char *what)
{
	static _Thread_local char words[200];
	const char *text = "unknown error";

	if (!error)
		return NULL;
	cuda.words(error, &text);
	snprintf(words, sizeof(words), "%s: %s (%d)", what, text, error);
	return words;
}

/* What a call said that ran in the context. */
static const char *leave(int error, const char *what)
{
	void *popped;

	cuda.pop(&popped);
	return said(error, what);
}

const char *driver_kernel_open(struct driver_kernel *k, int ordinal, const char *text, const char *name)
{
	const char *wrong = load_driver();
	void *module;
	int error;

	if (wrong)
		return wrong;
	error = cuda.init(0);
	if (!error)
		error = cuda.device(&k->device, ordinal);
	if (!error)
		error = cuda.retain(&k->context, k->device);
	if (!error)
		error = cuda.push(k->context);
	if (error)
		return said(error, "no context");
	error = cuda.load(&module, text);
	if (error)
		return leave(error, "the text");
	error = cuda.function(&k->function, module, name);
	if (!error)
		error = cuda.stream(&k->stream, NON_BLOCKING);
	return leave(error, "the kernel");
}

const char *driver_kernel_copy(struct driver_kernel *k, const void *from, size_t bytes, uint64_t *address)
{
	int error = cuda.push(k->context);

	if (error)
		return said(error, "no context");
	error = cuda.allocate(address, bytes);
	if (!error)
		error = cuda.upload(*address, from, bytes);
	return leave(error, "memory");
}

const char *driver_kernel_see(struct driver_kernel *k, void *memory, size_t bytes, uint64_t *address)
{
	int error = cuda.push(k->context);

	if (error)
		return said(error, "no context");
	error = cuda.pin(memory, bytes, PORTABLE_MAPPED);
	if (!error)
		error = cuda.pinned(address, memory, 0);
	return leave(error, "host memory");
}

const char *driver_kernel_launch(struct driver_kernel *k, uint32_t blocks, uint32_t threads, void **arguments)
{
	int error = cuda.push(k->context);

	if (error)
		return said(error, "no context");
	return leave(cuda.launch(k->function, blocks, 1, 1, threads, 1, 1, 0, k->stream, arguments, NULL), "the launch");
}
