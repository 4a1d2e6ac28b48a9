/* The table of store/device.h for NVIDIA GPUs, by CUDA's driver. device_memory.cu has memory and streams;
 * device_copy.cu the lists of copies; device_issue.cu the ways in which a list is given to the GPU; device_sums.cu the
 * lists of checksums; device_span.cu the places of memory. All is inside libterrace_cuda, but kv_cuda_device_ops is
 * exported, by plugin.cu as terrace_device_ops.
 */
#ifndef TERRACE_KERNELS_CUDA_DEVICE_MEMORY_H
#define TERRACE_KERNELS_CUDA_DEVICE_MEMORY_H

#include <atomic>
#include <pthread.h>
#include <time.h>

#include "kernels/cuda/copy_pairs.h"
#include "kernels/cuda/device_span.h"
#include "kernels/cuda/driver.h"
#include "store/device.h"

enum {
	DEVICE_WAYS = DEVICE_ACROSS + 1,
	DEVICE_CLOSE_WAIT_S = 10,
	DEVICE_LISTS_MAX = 8,     /* of one way, that the GPU has begun or may begin */
	DEVICE_STAGED_PAIRS = 16384, /* longer lists are the copy engines', */
	DEVICE_STAGED_COUNTS = 1024, /* and those of more parts than this */
	DEVICE_BATCH = 256,         /* copies of a call: the GPU begins with them when all have been put in, some 0.8 us
				     * each */
	DEVICE_PITCH_MAX = 0x7fffffff, /* of rows */
	/* From so many bytes a call on the copy engines are asked; else a kernel. */
	DEVICE_ENGINE_BYTES = 256 << 10,
};

struct device_region {
	struct device_region *next;
	enum { REGION_RANGE, REGION_MADE, REGION_IMPORTED, REGION_HOST } kind;
	uint64_t at, bytes;       /* of host memory the CPU's address, */
	uint64_t address;         /* and the GPU's */
	CUmemGenericAllocationHandle handle;
	uint32_t reached_by;      /* what is made here: other GPUs whose work may touch it, a bit each by their
				   * numbers */
};

/* A list that the GPU has. */
struct device_batch {
	struct device_copy *list;
	CUevent ended;
	CUevent first, last;      /* of a kernel's list, with their times, which cost the engines' lists too much */
	enum status failed;       /* it could not all be begun; told when what was begun has ended */
	struct device_pair *host_pairs; /* a list for the kernel, pinned, its counts behind it, and where the GPU has
					 * them; NULL until wanted */
	CUdeviceptr pairs;
	bool by_kernel;
	uint64_t expected_us, bytes; /* when it should end */
};

/* Pairs of a list at equal distances. */
struct device_run {
	uint64_t from, to, from_step, to_step;
	uint32_t rows;
};

/* Lists of one direction. The fields that put a list into the stream belong to the thread that has set `issuing`: the
 * lane's thread, or a thread that brings a short list while there is no other list. */
struct device_lane {
	struct device *device;
	enum device_way way;
	pthread_t thread;
	pthread_cond_t more;
	bool started;
	/* Under the device's mutex, but for the flights themselves: */
	bool issuing;
	bool failing;             /* a list has failed, and its end is untold: no other is begun, which would pass it */
	struct device_copy *first, **last; /* the queue */
	CUstream stream;
	CUstream beside, ahead;   /* engines beside the kernel; pairs for it, while the list before is copied. None
				   * across */
	CUevent forked, joined, staged; /* what of the streams must wait for another */
	struct device_batch batches[DEVICE_LISTS_MAX];
	uint32_t oldest, count;   /* flights in use */
	uint64_t rest_until_us;   /* the kernel has waited for its turns: nothing goes by it, */
	uint64_t doubt_until_us;  /* and for longer no list for which a stream waits part by part, unless another list
				   * shows that the kernel gets its turns */
	uint64_t rest_us;         /* how long it rested last, while this was so each time */
	uint64_t starved_until_us; /* the queue waits for memory of the driver's, until then; 0: it does not */

	/* The issuer's: */
	CUdeviceptr from[DEVICE_BATCH], to[DEVICE_BATCH]; /* a call */
	size_t sizes[DEVICE_BATCH];
	uint32_t gathered, gather_most; /* of it: how many now, and when it is made */
	CUstream into;            /* where it goes */
	struct device_pair *sorted;
	struct device_run *run;
	uint32_t runs, room;      /* of the list; of the two above */
	uint32_t looked;          /* of how many of its pairs these are the runs */
	const struct device_copy *found; /* whose runs they are; NULL: a list's that has been put in */
	bool by_kernel;           /* what is found */
	bool begun;               /* something of the list is in the stream */
	bool no_batch, no_rows;   /* the driver has refused one: copies go one by one */
	bool kernel_rests, kernel_doubted;

	/* The thread's: */
	bool gave_up;             /* it has seen the loss: the GPU has until lost_by for what it has begun */
	struct timespec lost_by;
};

struct device {
	struct device *next_open; /* of the process's, see device_memory.cu */
	const struct cuda_driver *driver;
	CUdevice number;
	CUcontext context;        /* the primary one */
	CUstream zeroing;         /* and asked whether the GPU still lives */
	uint64_t granularity;
	bool read_only_host, kernels; /* it has READ_ONLY host memory; the copy kernel runs on it */
	const char *no_kernel;    /* why it does not, where it should; NULL: it does, or is for others */
	uint64_t engine_bytes;    /* see DEVICE_ENGINE_BYTES */
	std::atomic<bool> lost;

	pthread_mutex_t mutex;    /* guards the rest */
	struct device_region *regions;
	struct device_spans spans; /* of the regions but for ranges: lists are looked up there */
	bool closing;
	struct timespec close_by;
	struct device_lane lanes[DEVICE_WAYS];
	void *ready_host;         /* next to nothing, pinned, and as much of the GPU's: see device_copy_ready. NULL, 0:
				   * no memory */
	CUdeviceptr ready_device;
	struct device_sums_lane *sums; /* device_sums.cu's; NULL until wanted */
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

/* The context of the GPU that made the memory at this address, if this process has it open and work of d cannot reach
 * it there; else NULL. */
CUcontext device_owner_afar(struct device *d, uint64_t address);

/* Where the device's work sees the memory at an address: a range or host memory that was registered whole; 0, 0:
 * nowhere. */
void device_place(struct device *d, uint64_t address, uint64_t *begin, uint64_t *end);

/* The extent with the address; 0, 0: none. */
void device_extent_place(struct device *d, uint64_t address, uint64_t *begin, uint64_t *end);

/* Puts a list into its lane's stream. OUT_OF_MEMORY, or what the driver says: of this l->begun tells whether something
 * of it was begun. */
CUresult device_list_issue(struct device_lane *l, struct device_batch *f, const struct device_copy *c);
/* About how many copies the driver would be asked for by device_list_issue, which then has less to look at. By the
 * issuer. */
uint64_t device_list_copies(struct device_lane *l, const struct device_copy *c);
void device_issue_free(struct device_lane *l);

/* The streams and events for lists, in the device's context. On a failure too they are device_copy_free's, which no
 * list may outlive. */
CUresult device_copy_open(struct device *d);
void device_copy_free(struct device *d);
enum status device_copy_begin(struct device *d, struct device_copy *c, const char **why);
void device_copy_ready(struct device *d, enum device_way way);
/* What lists of checksums need, before the first: what cannot be had is tried again with a list. In the device's
 * context. */
void device_sums_prepare(struct device *d);
enum status device_sums_begin(struct device *d, struct device_sums *s, const char **why);
/* The thread ends: lists that have begun are waited for. False: the GPU did not end them. */
bool device_sums_end(struct device *d);
/* In the device's context. No list may outlive it. */
void device_sums_free(struct device *d);
/* Threads end: lists that have begun are waited for. False: the GPU did not end them. */
bool device_copy_end(struct device *d);

#ifdef __cplusplus
extern "C" {
#endif

/* From which piece size on lists go by copy engines: 0 always, UINT64_MAX never, for measurements. Before the first
 * copy. */
void kv_cuda_device_engine_bytes(struct device *d, uint64_t bytes);

const struct device_ops *kv_cuda_device_ops(void);

#ifdef __cplusplus
}
#endif

#endif
