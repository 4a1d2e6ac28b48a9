/* GPU memory, as the daemon and the client library use it: one table of functions for each kind of device. CUDA's table
 * comes with libterrace_cuda.so.0 (kernels/cuda/plugin.h). Tests have a device of host memory with the same table.
 *
 * Addresses are numbers. They are device addresses: of memory on the GPU, or of host memory that was registered with
 * it. The CPU never dereferences them. Sizes are bytes.
 *
 * Failures: a function returns an enum status and sets *why (never NULL) to a sentence, which is valid until the
 * thread's next call. INVALID: an argument is not allowed (a size, an alignment, a place that is taken or in no range,
 * memory that is not there). EXHAUSTED: the GPU or the driver has no memory. UNAVAILABLE: the GPU is lost (reset,
 * fallen off the bus, an error that persists). Then every later call on that device returns UNAVAILABLE, copies under
 * way end with it, and close() is all that is left to do. UNSUPPORTED: this GPU or driver cannot do it. INTERNAL: the
 * driver returned another error. Outputs are written only on OK.
 *
 * Threads: any. No function depends on the calling thread's current device or context or changes it, except the two
 * that take a stream: the stream is the caller's, and of the caller's context. Only close() waits for the device's own
 * work on the GPU, and extent_make() for its zeroes. extent_make() and host_register() are slow (for a GiB
 * milliseconds, and some tenths of a second). The driver may hold extent_drop() and host_unregister() until all streams
 * of the process are done; until they have returned it may hold any other call that it serves too, even lost(). After a
 * loss extent_drop(), range_free() and host_unregister() still forget what they are given.
 */
#ifndef TERRACE_STORE_DEVICE_H
#define TERRACE_STORE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

#define DEVICE_OPS_VERSION 6
#define DEVICE_OPS_SYMBOL "terrace_device_ops" /* const struct device_ops *terrace_device_ops(void), of a plugin */

enum {
	DEVICES_MAX = 16,
	DEVICE_UUID_BYTES = 16,
	DEVICE_NAME_MAX = 64,
	DEVICE_WORDS_MAX = 128,
	DEVICE_COPY_ALIGN = 16,
	DEVICE_SUMS_MAX = 16384,         /* in one list */
};

#define DEVICE_SUMS_PART_MAX ((uint64_t)1 << 32)

struct device;

struct device_info {
	uint8_t uuid[DEVICE_UUID_BYTES]; /* the same in every process, whichever devices the process sees */
	char name[DEVICE_NAME_MAX];
	uint64_t bytes;                  /* of memory, in all */
	uint64_t free_bytes;             /* now */
	uint64_t granularity;            /* extents and ranges are multiples of it */
	char no_kernel[DEVICE_WORDS_MAX]; /* why copy engines run all lists though a kernel exists for this GPU; empty:
					   * they do not, or no kernel exists */
};

/* A piece of the GPU's memory, mapped into this process. */
struct device_extent {
	uint64_t address, bytes;
	void *handle;                    /* for the table's use alone */
};

struct device_pair {
	uint64_t from, to;
};

/* The direction of a copy. It selects the engine and the queue; lists of different directions do not wait for each
 * other. */
enum device_way { DEVICE_UP, DEVICE_DOWN, DEVICE_ACROSS }; /* host to GPU; GPU to host; GPU to GPU */

/* One list of copies. The caller keeps it, and all memory that it points at, valid and unchanged until done()
 * begins. */
struct device_copy {
	const struct device_pair *pairs; /* [count], addresses multiples of DEVICE_COPY_ALIGN; nothing overlaps */
	uint32_t count;                  /* at least 1 */
	uint32_t parts;                  /* at least 1: the pieces of each pair; piece p of every pair is copied before
					  * piece p + 1 of any pair */
	uint64_t part_bytes;             /* the size of a piece, a multiple of DEVICE_COPY_ALIGN; of each pair parts *
					  * part_bytes are copied */
	enum device_way way;
	uint64_t progress;               /* 0, or the device address of a 4-byte word of registered memory. base + p + 1
					  * is written there when pieces 0 .. p of all pairs are complete and visible to
					  * the whole GPU */
	uint32_t progress_base;
	/* Called once, on a thread of the device's, which must call no functions of the device but copy() and sums().
	 * OK. UNAVAILABLE: the GPU is lost, and it is not known what was written. CANCELLED: by close(). EXHAUSTED: the
	 * driver has had no memory for some seconds, or none for the rest of the list; the GPU is not lost. Another
	 * failure of a list DEVICE_ACROSS: these two GPUs cannot make that copy, and neither is lost. On a failure the
	 * progress word stays as it is. */
	void (*done)(struct device_copy *c, enum status s);
	void *arg;
	struct device_copy *next;        /* the device's */
};

/* One list of checksums, which the GPU makes of its own memory. The caller keeps it, and all memory that it points at,
 * valid and unchanged until done() begins. */
struct device_sums {
	const uint64_t *at;              /* [count], places in this GPU's memory, multiples of DEVICE_COPY_ALIGN */
	uint32_t count;                  /* at least 1; places may overlap */
	uint32_t parts;                  /* at least 1, side by side at each place; count * parts at most
					  * DEVICE_SUMS_MAX */
	uint64_t part_bytes;             /* 1 to DEVICE_SUMS_PART_MAX, any number: a part may begin and end anywhere */
	uint32_t *sums;                  /* [count * parts], in the CPU's memory. Element i * parts + p is the CRC-32C
					  * (RFC 3720) of part p of place i, as slot_crc32c(0, ...) gives it. Valid when
					  * done() gets OK */
	/* Called once, on a thread of the device's, which must call no functions of the device but copy() and sums().
	 * OK, UNAVAILABLE (the GPU is lost), CANCELLED (close), or a status of sums(). */
	void (*done)(struct device_sums *s, enum status status);
	void *arg;
	struct device_sums *next;        /* the device's */
};

struct device_ops {
	uint32_t version;                /* DEVICE_OPS_VERSION */
	uint32_t bytes;                  /* of this struct */

	/* The number of GPUs that this process sees; 0 without a driver or a GPU. */
	uint32_t (*count)(void);
	/* The identity of a GPU, also of a lost one. The GPU is not opened, so none of its memory is taken. INVALID: no
	 * such number. */
	enum status (*uuid)(uint32_t ordinal, uint8_t out[DEVICE_UUID_BYTES], const char **why);
	/* Opens a GPU. INVALID: no such number. */
	enum status (*open)(uint32_t ordinal, struct device **out, const char **why);
	/* Ends the copies under way: waits at most 10 s for those that the GPU has begun. Unmaps and frees everything.
	 * NULL allowed. */
	void (*close)(struct device *d);
	enum status (*info)(struct device *d, struct device_info *out, const char **why);
	/* True once the device is lost. */
	bool (*lost)(struct device *d);
	/* Whether copies to this device from memory of `other`, another open device of this process, go without passing
	 * host memory. */
	bool (*reaches)(struct device *d, struct device *other);

	/* Reserves address space for extents side by side. It has no memory yet. */
	enum status (*range_reserve)(struct device *d, uint64_t bytes, uint64_t *address, const char **why);
	void (*range_free)(struct device *d, uint64_t address, uint64_t bytes);
	/* Takes zeroed memory, maps it writable at `at` (inside a range), and gives a close-on-exec descriptor for it,
	 * which the caller owns. A process with the descriptor can map the same memory. The memory is freed when the
	 * last mapping and the last descriptor are gone. */
	enum status (*extent_make)(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd, const char **why);
	/* Maps the memory behind a descriptor, which stays the caller's. write false: read only. INVALID: the
	 * descriptor is of no such memory, or of memory of another size. */
	enum status (*extent_import)(struct device *d, int fd, uint64_t at, uint64_t bytes, bool write, struct device_extent *out,
				     const char **why);
	/* Unmaps an extent. No work of this process may still use it. */
	void (*extent_drop)(struct device *d, const struct device_extent *e);

	/* Pins host memory (a mapping of a memfd) and gives the GPU access to it, at *address: to read, and with
	 * `write` also to write. */
	enum status (*host_register)(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why);
	void (*host_unregister)(struct device *d, void *memory);

	/* Begins a list. Lists of one direction run in their order. OK: done() will be called, perhaps before copy()
	 * returns. EXHAUSTED: nothing was begun, and the call may be repeated. */
	enum status (*copy)(struct device *d, struct device_copy *c, const char **why);
	/* Prepares for a list of that direction: does now what would make the first list after a pause slower. Called
	 * on the thread that will begin the list. */
	void (*ready)(struct device *d, enum device_way way);

	/* Begins a list of checksums, in a stream of the device's own. The sums cover what all streams, other
	 * processes' too, have written and completed before this call. A write between this call and done() may be
	 * covered or not. The order of lists to each other and to copies is not defined. OK: done() will be called,
	 * perhaps before sums() returns. INVALID: a number or an address is not allowed. EXHAUSTED: nothing was begun,
	 * and the call may be repeated. UNSUPPORTED: this GPU has no code for it, now or ever. NULL: no device of this
	 * table makes sums. */
	enum status (*sums)(struct device *d, struct device_sums *s, const char **why);

	/* Makes `stream` (a CUstream of the calling process) wait: work that is put into it after this call starts only
	 * when the word at that device address has reached `value`, counted modulo 2^32: (int32_t)(word - value) >= 0.
	 * Can be captured in a graph. */
	enum status (*stream_wait)(struct device *d, void *stream, uint64_t word, uint32_t value, const char **why);
	/* Calls call(arg), on any thread, when the work that was put into `stream` before is complete. It must call no
	 * function of the device's. If the GPU is lost, call may never come. */
	enum status (*stream_then)(struct device *d, void *stream, void (*call)(void *arg), void *arg, const char **why);
};

#endif
