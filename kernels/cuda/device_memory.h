/* The table of store/device.h for NVIDIA GPUs, by CUDA's driver: device_memory.cu has memory and streams, device_copy.cu the lists of
 * copies. Inside libterrace_cuda, but for kv_cuda_device_ops, which plugin.cu exports as terrace_device_ops.
 */
#ifndef TERRACE_KERNELS_CUDA_DEVICE_MEMORY_H
#define TERRACE_KERNELS_CUDA_DEVICE_MEMORY_H

#include <atomic>
#include <pthread.h>
#include <time.h>

#include "kernels/cuda/copy_pairs.h"
#include "kernels/cuda/driver.h"
#include "store/device.h"

enum {
	DEVICE_WAYS = DEVICE_ACROSS + 1,
	DEVICE_CLOSE_WAIT_S = 10,
	DEVICE_LISTS_MAX = 8,     /* of one way, that the GPU has begun or may begin */
	DEVICE_STAGED_PAIRS = 8192, /* longer lists are the copy engines' */
	/* From which pieces on the copy engines are asked, smaller ones by a kernel. A guess until tests/gpu/bench_device.cu has said. */
	DEVICE_ENGINE_BYTES = 256 << 10,
};

struct device_region {
	struct device_region *next;
	enum { REGION_RANGE, REGION_MADE, REGION_IMPORTED, REGION_HOST } kind;
	uint64_t at, bytes;       /* of host memory the CPU's address */
	CUmemGenericAllocationHandle handle;
};

/* A list that the GPU has. */
struct device_flight {
	struct device_copy *list;
	CUevent ended;
	enum status failed;       /* it could not all be begun; told when what was begun has ended */
	struct device_pair *host_pairs; /* DEVICE_STAGED_PAIRS, pinned, and where the GPU has them; NULL until they are wanted */
	CUdeviceptr pairs;
};

/* Lists of one way. The thread owns everything but the queue. */
struct device_lane {
	struct device *device;
	enum device_way way;
	pthread_t thread;
	pthread_cond_t more;
	bool started;
	struct device_copy *first, **last; /* the queue, under the device's mutex */
	CUstream stream;
	struct device_flight flights[DEVICE_LISTS_MAX];
	uint32_t oldest, count;   /* flights in use */
	CUdeviceptr *from, *to;   /* one batch */
	size_t *sizes;
	uint32_t batch_room;
	bool gave_up;             /* it has seen the loss: the GPU has until lost_by for what it has begun */
	struct timespec lost_by;
};

struct device {
	const struct cuda_driver *driver;
	CUdevice number;
	CUcontext context;        /* the primary one */
	CUstream zeroing;         /* and asked whether the GPU still lives */
	uint64_t granularity;
	bool read_only_host, kernels; /* it has READ_ONLY host memory; the copy kernel runs on it */
	uint64_t engine_bytes;    /* see DEVICE_ENGINE_BYTES */
	std::atomic<bool> lost, no_batch;

	pthread_mutex_t mutex;    /* guards the rest */
	struct device_region *regions;
	bool closing;
	struct timespec close_by;
	struct device_lane lanes[DEVICE_WAYS];
};

/* The device's context is current, and graph captures of others are not disturbed, as long as this lives. */
struct device_entered {
	const struct cuda_driver *driver;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult result;

	explicit device_entered(struct device *d);
	~device_entered();
};

/* Records a failure of the driver's: words for *why, and the loss of the device if it is one. */
enum status device_failed(struct device *d, CUresult r, const char *what, const char **why);

enum status device_copy_begin(struct device *d, struct device_copy *c, const char **why);
/* Threads end: lists that have begun are waited for. False: the GPU did not end them. */
bool device_copy_end(struct device *d);

#ifdef __cplusplus
extern "C" {
#endif

/* From which piece size on lists go by copy engines: 0 always, UINT64_MAX never, for measurements. Before the first copy. */
void kv_cuda_device_engine_bytes(struct device *d, uint64_t bytes);

const struct device_ops *kv_cuda_device_ops(void);

#ifdef __cplusplus
}
#endif

#endif
