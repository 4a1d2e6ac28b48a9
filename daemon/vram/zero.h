/* Zeroes the bytes of a block on a GPU behind its valid tokens, as a commit does in host memory.
 *
 * An engine writes only the tokens that it has. The bytes behind them are an earlier block's, perhaps in another
 * format: as numbers they may be NaNs, and a checksum covers them. The daemon writes to a GPU's memory only by copies,
 * from registered host memory. Atoms behind the valid tokens, and the rest of the slot behind the block, get zeroes
 * from there. The atom in which the valid tokens end keeps some of its bytes: such atoms are downloaded, zeroed behind
 * their tokens by the CPU, and uploaded again.
 *
 * The engine has ended its writes before it commits, and the block is not published yet. So the zeroing is done before
 * the block is published or copied.
 *
 * Threads: any, one block at a time on a GPU. A block that is full, and of a multiple of 256 bytes, costs nothing.
 */
#ifndef TERRACE_DAEMON_VRAM_ZERO_H
#define TERRACE_DAEMON_VRAM_ZERO_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/status.h"

struct kv_geometry;
struct kv_layout;

enum {
	ZERO_HALF = 256 << 10,         /* of the host memory: one half stays zero, atoms come to the other */
	ZERO_BYTES = 2 * ZERO_HALF,
	ZERO_PAIRS = 1024,             /* of one list */
	ZERO_UNIT = 256,               /* what is behind a block is zeroed up to a multiple of it, as slots begin at */
};

/* A GPU's buffers for zeroing. Zeroed: there are none, and vram_zero is not called. */
struct gpu_zero {
	const struct device_ops *ops;
	struct device *device;
	uint8_t *host;                 /* ZERO_BYTES of zeroes, registered to be read and written, */
	uint64_t address;              /* and where the GPU sees them */
	pthread_mutex_t turn;          /* a block's; nothing but `lock` is locked in it */
	bool stuck;                    /* with it: a list has not ended */
	struct device_copy list;       /* with it */
	struct device_pair pairs[ZERO_PAIRS];
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool over;                     /* with `lock` */
	enum status status;
};

void gpu_zero_init(struct gpu_zero *z, const struct device_ops *ops, struct device *d, uint8_t *host, uint64_t address);
/* Frees the buffers, once the device has none of their lists. Zeroed is fine. */
void gpu_zero_fini(struct gpu_zero *z);

/* Whether there are bytes to zero behind that many tokens of a block, or behind the block. */
bool gpu_zero_wants(const struct kv_layout *l, const struct kv_geometry *g, uint32_t tokens);
/* Zeroes behind the block at that address of the GPU, and waits. UNAVAILABLE: the GPU is lost. EXHAUSTED: its driver
 * has no memory. DEADLINE: a batch has not ended, and may still write; the GPU must be given up. */
enum status gpu_zero_behind(struct gpu_zero *z, uint64_t address, const struct kv_layout *l,
			    const struct kv_geometry *g, uint32_t tokens);

#endif
