/* GPU memory, as the daemon and the client library use it: one table of functions for one kind of device. CUDA's comes with
 * libterrace_cuda.so.0 (kernels/cuda/plugin.h); a device of host memory, for tests, has the same table.
 *
 * Addresses are numbers, device addresses: of memory on the GPU, or of host memory that was registered with it. The CPU follows none of
 * them. Sizes are bytes.
 *
 * Failures: an enum status, and *why (never NULL), a sentence that is good until the thread's next call. INVALID: an argument that is not
 * allowed (a size, an alignment, a place that is taken or in no range, memory that is not there). EXHAUSTED: no memory on the
 * GPU, or of the driver. UNAVAILABLE: the GPU is lost (reset, fallen off the bus, an error that sticks): every later call on that
 * device says so, copies under way end so, and only close() is left to do. UNSUPPORTED: this GPU or driver cannot. INTERNAL: the driver
 * said something else. Outputs are written only on OK.
 *
 * Threads: any; nothing here depends on the calling thread's current device or context, nor changes it, but for the two functions that
 * take a stream, which is the caller's and of its context. None waits for work on the GPU of its own, but close() and, for its zeroes,
 * extent_make(); that and host_register() last (a GiB: milliseconds, some tenths of a second). But the driver may hold extent_drop() and
 * host_unregister() until all streams of the process are done, and any other call that it serves, lost() too, until these have returned.
 * After a loss drop, free and unregister still forget what they are given.
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
	uint8_t uuid[DEVICE_UUID_BYTES]; /* the same in every process, whatever devices it sees */
	char name[DEVICE_NAME_MAX];
	uint64_t bytes;                  /* of memory, in all */
	uint64_t free_bytes;             /* now */
	uint64_t granularity;            /* extents and ranges are multiples of it */
	char no_kernel[DEVICE_WORDS_MAX]; /* why all its lists go by copy engines, though a kernel is for this GPU; empty: they do not, or none is */
};

/* A piece of the GPU's memory, mapped into this process. */
struct device_extent {
	uint64_t address, bytes;
	void *handle;                    /* the table's own */
};

struct device_pair {
	uint64_t from, to;
};

/* Where a copy goes, for the choice of its engine and its queue: the two ways do not wait for each other. */
enum device_way { DEVICE_UP, DEVICE_DOWN, DEVICE_ACROSS }; /* host to GPU; GPU to host; GPU to GPU */

/* One list of copies. The caller's until done() begins; all it points at as well. */
struct device_copy {
	const struct device_pair *pairs; /* [count], addresses multiples of DEVICE_COPY_ALIGN; nothing overlaps */
	uint32_t count;                  /* at least 1 */
	uint32_t parts;                  /* at least 1: each pair is copied in so many pieces; piece p of every pair before p + 1 of any */
	uint64_t part_bytes;             /* a multiple of DEVICE_COPY_ALIGN; parts * part_bytes are copied of each pair */
	enum device_way way;
	uint64_t progress;               /* 0, or the device address of a 4-byte word of registered memory: base + p + 1 is written there
					  * when pieces 0 .. p of all pairs are complete and visible to all of the GPU */
	uint32_t progress_base;
	/* From a thread of the device's, once; it must not call the device's functions other than copy() and sums().
	 * OK, UNAVAILABLE (the GPU is lost: what was written is not known), CANCELLED (close) or EXHAUSTED (the
	 * driver has had no memory for some seconds, or none for
	 * the list's rest: the GPU is not lost); across, another failure is a copy that these two GPUs cannot make, and neither is lost by
	 * it. On a failure the progress word is left as it is. */
	void (*done)(struct device_copy *c, enum status s);
	void *arg;
	struct device_copy *next;        /* the device's */
};

/* One list of checksums, which the GPU makes of its own memory. The caller's until done() begins, with all it
 * points at. */
struct device_sums {
	const uint64_t *at;              /* [count], places in this GPU's memory, multiples of DEVICE_COPY_ALIGN */
	uint32_t count;                  /* at least 1; places may overlap */
	uint32_t parts;                  /* at least 1, side by side at each place; count * parts at most
					  * DEVICE_SUMS_MAX */
	uint64_t part_bytes;             /* 1 to DEVICE_SUMS_PART_MAX, any number: a part may begin and end anywhere */
	uint32_t *sums;                  /* [count * parts], the CPU's memory: of part p of place i, number i * parts + p
					  * is the CRC-32C (RFC 3720), as slot_crc32c(0, ...). Known when done() says OK */
	/* From a thread of the device's, once; it must not call the device's functions other than copy() and sums().
	 * OK, UNAVAILABLE (the GPU is lost), CANCELLED (close), or what sums() may say. */
	void (*done)(struct device_sums *s, enum status status);
	void *arg;
	struct device_sums *next;        /* the device's */
};

struct device_ops {
	uint32_t version;                /* DEVICE_OPS_VERSION */
	uint32_t bytes;                  /* of this struct */

	/* GPUs of this process: 0 without a driver or a GPU. */
	uint32_t (*count)(void);
	/* Which one it is, also of a lost one. Takes none of its memory, as it is not opened for it. INVALID: no such number. */
	enum status (*uuid)(uint32_t ordinal, uint8_t out[DEVICE_UUID_BYTES], const char **why);
	/* Opens one. INVALID: no such number. */
	enum status (*open)(uint32_t ordinal, struct device **out, const char **why);
	/* Ends copies under way (waits for those that the GPU has begun, 10 s at most), unmaps and frees everything. NULL allowed. */
	void (*close)(struct device *d);
	enum status (*info)(struct device *d, struct device_info *out, const char **why);
	/* True once the device is lost. */
	bool (*lost)(struct device *d);
	/* Whether copies to this one from what another open device of this process makes go there without passing host memory. */
	bool (*reaches)(struct device *d, struct device *other);

	/* Address space for extents side by side; nothing is there yet. */
	enum status (*range_reserve)(struct device *d, uint64_t bytes, uint64_t *address, const char **why);
	void (*range_free)(struct device *d, uint64_t address, uint64_t bytes);
	/* Takes memory, zeroed, maps it writable at `at` (inside a range), and gives a descriptor for it
	 * (close-on-exec, the caller's). A process with the descriptor can map the same memory. It is freed when the
	 * last mapping and the last descriptor are gone. */
	enum status (*extent_make)(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd, const char **why);
	/* Maps the memory behind a descriptor, which stays the caller's. write false: read only. INVALID: it is none, or of another size. */
	enum status (*extent_import)(struct device *d, int fd, uint64_t at, uint64_t bytes, bool write, struct device_extent *out,
				     const char **why);
	/* Unmaps. No work of this process may still touch it. */
	void (*extent_drop)(struct device *d, const struct device_extent *e);

	/* Pins host memory (a mapping of a memfd) and makes it the GPU's to read and, with write, to write, at *address on. */
	enum status (*host_register)(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why);
	void (*host_unregister)(struct device *d, void *memory);

	/* Begins a list; lists of one way run in their order. OK: done() will come, perhaps before this returns. EXHAUSTED: nothing was
	 * begun, and it may be tried again. */
	enum status (*copy)(struct device *d, struct device_copy *c, const char **why);
	/* A list of that way is about to come: does now what would make the first list after a pause slower. By the
	 * thread that will begin the list. */
	void (*ready)(struct device *d, enum device_way way);

	/* Begins a list of checksums, in a stream of the device's own: what other streams, also other processes',
	 * have written and completed before this call is in the sums; what is written until done() may be, or not.
	 * Lists run in no order to each other, nor to copies. OK: done() will come, perhaps before this returns.
	 * INVALID: a number or an address that is not allowed. EXHAUSTED: nothing was begun, and it may be tried
	 * again. UNSUPPORTED: this GPU has no code for it, now or ever. NULL: no device of this table makes sums. */
	enum status (*sums)(struct device *d, struct device_sums *s, const char **why);

	/* Work that is put into `stream` (a CUstream of the calling process) after this waits until the word at that device address has
	 * reached `value`, counted modulo 2^32: (int32_t)(word - value) >= 0. Can be captured in a graph. */
	enum status (*stream_wait)(struct device *d, void *stream, uint64_t word, uint32_t value, const char **why);
	/* call(arg) on some thread when what was put into `stream` before is complete; it must call no function of the device's. If the
	 * GPU is lost it may never come. */
	enum status (*stream_then)(struct device *d, void *stream, void (*call)(void *arg), void *arg, const char **why);
};

#endif
