/* A small daemon inside the test's process: enough of the protocol to exercise the client, and able to misbehave.
 *
 * It keeps blocks of one session in two memfd extents, answers on a Unix socket by gRPC and hands descriptors over on a
 * SEQPACKET socket. Faults are set between calls, under `lock`. */
#ifndef TERRACE_TESTS_CLIENT_FAKE_H
#define TERRACE_TESTS_CLIENT_FAKE_H

#include "client/include/terrace.h"
#include "store/device.h"
#include "terrace.pb-c.h"

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The fake's own needs: without them no test makes sense. */
#define MUST(x)                                                                                                        \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "fake: %s failed: %m\n", #x);                                                  \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum { FAKE_BLOCKS = 64, FAKE_EXTENTS = 2, FAKE_SOCKETS = 256, FAKE_GPU_LAYOUTS = 2 };
enum { FAKE_GPU_EXTENT = 1 << 24, FAKE_GPU_RANGE = 77 };

enum fake_fd_fault {
	FAKE_FD_SOUND,
	FAKE_FD_SMALL,         /* the file is smaller than said */
	FAKE_FD_NO_DESCRIPTOR,
	FAKE_FD_PIPE,          /* the descriptor is not of memory */
	FAKE_FD_BAD_PAGE,
	FAKE_FD_GARBAGE,
	FAKE_FD_SILENT,
	FAKE_FD_REFUSES,
	FAKE_FD_TWO_DESCRIPTORS, /* sound, with one too many */
	FAKE_FD_HANGS_UP,
	/* Of a GPU's memory: */
	FAKE_FD_GPU_UNKNOWN,     /* a number that the session has not */
	FAKE_FD_GPU_ODD,         /* not at a multiple of what the GPU wants */
	FAKE_FD_GPU_FAR,         /* past its range */
	FAKE_FD_GPU_WRAPS,       /* so far past that it comes round */
	FAKE_FD_GPU_OVERLAPS,    /* both extents at the same place */
	FAKE_FD_GPU_RANGE,       /* another size of the range each time */
	FAKE_FD_GPU_HUGE,        /* a range that is no address space's */
	FAKE_FD_GPU_NO_MEMORY,   /* the hold alone */
	FAKE_FD_GPU_NO_HOLD,     /* a pipe for a hold */
	FAKE_FD_GPU_SMALL_HOLD,  /* the hold is empty */
	FAKE_FD_GPU_NOT_MEMORY,  /* a file for the memory */
	FAKE_FD_GPU_SIZE,        /* the memory is of another size */
	FAKE_FD_GPU_IS_HOST,     /* host memory, said to be the GPU's */
	FAKE_FD_HOST_IS_GPU,     /* and the other way round */
	FAKE_FD_PROGRESS_PAGE_EMPTY, /* a progress page of no page */
};

struct fake_block {
	uint8_t key[32];
	uint32_t key_bytes, tokens;
	uint64_t reservation; /* 0: none */
	bool stored;
	bool gpu;             /* its bytes are on the GPU */
};

/* What it lends of a GPU; ops NULL: nothing. */
struct fake_gpu {
	const struct device_ops *ops;
	struct device *device;
	struct device_info info;
	uint64_t range[FAKE_GPU_LAYOUTS], range_bytes;
	struct device_extent extents[FAKE_GPU_LAYOUTS][FAKE_EXTENTS];
	int memory[FAKE_GPU_LAYOUTS][FAKE_EXTENTS], hold[FAKE_GPU_LAYOUTS][FAKE_EXTENTS], progress_page_file, empty;
	_Atomic uint32_t *progress_page;
	/* Told with every lease on it; 0 layers: all is there. */
	uint32_t word, base, layers;
	bool summed;
	unsigned leases, reserves; /* on it */
	bool stays;                /* blocks in host memory stay there for leases that allow it */
};

struct fake {
	char folder[64], address[96], fd_path[96];
	grpc_server *server;
	grpc_completion_queue *queue;
	pthread_t accepter, fd_thread;
	int listener, stop_pipe[2];
	int sockets[FAKE_SOCKETS];
	unsigned socket_count;
	int memory[FAKE_EXTENTS];
	uint8_t *base[FAKE_EXTENTS];
	uint64_t extent_bytes;

	pthread_mutex_t lock;
	pthread_cond_t idle;
	unsigned running; /* calls */
	bool ending;
	uint64_t epoch, session, next_id;
	uint32_t layouts;
	uint64_t block_bytes[4], slot_bytes, layout_ids[4];
	struct fake_gpu gpu;
	Terrace__V1__OpenSessionRequest *opened;
	struct fake_block blocks[FAKE_BLOCKS];
	bool offers;            /* it knows PREMAP; before sessions are opened */
	bool offers_late;       /* but answers with nothing, and that more is to come */
	unsigned asked_premap;
	unsigned gpu_lent;      /* extents of the GPU that have been lent, and not said to be unmapped */
	unsigned all_unmapped;  /* clients that said so of everything */
	unsigned maps, unmapped, released, aborted, calls, closed_sessions, recalled;
	uint64_t stalled_call, recalled_call; /* the numbers of the last granting call that was stalled, and recalled */
	uint32_t warmed_gpu;    /* as the last Warm named it */

	/* Faults. `method` is the last part of the path. */
	void (*twist)(struct fake *fake, const char *method, ProtobufCMessage *reply);
	const char *raw_method; /* answers with these bytes */
	const uint8_t *raw;
	size_t raw_bytes;
	const char *fail_method;
	grpc_status_code fail_code;
	const char *stall_method; /* answers when the call is cancelled or the fake stops */
	enum fake_fd_fault fd_fault;
	bool deaf;              /* what comes on the fd socket is not read */
	bool corrupt_get, short_get;
	bool hasty_put;         /* answered at its first message */
};

void fake_start(struct fake *fake);
void fake_stop(struct fake *fake);
/* Lends the memory of the table's first device from now on; after fake_start. Sessions of one or two layouts. */
void fake_gpu_start(struct fake *fake, const struct device_ops *ops);
/* After the client has let go, before fake_stop. */
void fake_gpu_stop(struct fake *fake);
/* Where a block of it lies in the GPU's memory, and what the CPU sees there. */
uint8_t *fake_gpu_at(struct fake *fake, const struct fake_block *b, uint32_t layout, uint32_t *extent, uint64_t *offset);
/* Stops and starts again at the same address with another epoch and no blocks. */
void fake_restart(struct fake *fake);
/* Lends an extent of host memory, asked or not. */
void fake_lend(struct fake *fake, uint32_t extent);
/* Offers an extent of GPU 0, or of host memory. */
void fake_offer(struct fake *fake, bool gpu, uint32_t extent);
/* Sends a packet as it is. */
void fake_fd_send(struct fake *fake, const void *packet, size_t bytes);
unsigned fake_count(struct fake *fake, const unsigned *counter);
/* Waits up to 30 s until a counter is at least `least`; its value. */
unsigned fake_await(struct fake *fake, const unsigned *counter, unsigned least);

/* Between the fake's files: its two threads, whose argument is the fake, and the wait for one more call. */
struct fdsock_extent;
/* Makes the answer for an extent of the GPU, or the progress page, with its descriptors. False: it is neither. */
bool fake_gpu_extent(struct fake *fake, struct fdsock_extent *e, int fds[2], size_t *count);
void *fake_fd_main(void *arg);
void *fake_accept_main(void *arg);
void fake_call_request(struct fake *fake);

/* A small layout of two layers and two heads, fp8. */
struct terrace_layout fake_layout(void);

#endif
