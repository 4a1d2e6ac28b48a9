/* What tests of a device's table (store/device.h) share: the plugin and CUDA's runtime by the names that are loaded, a piece of the GPU's
 * memory and one of the host's, and copies that are waited for. Plain C, for machines that have CUDA and none of our libraries. */
#ifndef TERRACE_TESTS_GPU_DEVICE_RIG_H
#define TERRACE_TESTS_GPU_DEVICE_RIG_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/device.h"

#define CHECK(condition)                                                                                                             \
	do {                                                                                                                         \
		if (!(condition)) {                                                                                                  \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                              \
			exit(1);                                                                                                     \
		}                                                                                                                    \
	} while (0)

/* Expects a status, and says why it is another. */
#define EXPECT(call, expected)                                                                                                       \
	do {                                                                                                                         \
		const char *why = "";                                                                                                \
		enum status got = (call);                                                                                            \
		if (got != (expected)) {                                                                                             \
			fprintf(stderr, "%s:%d: %s: status %d, not %d (%s)\n", __FILE__, __LINE__, #call, got, expected, why);       \
			exit(1);                                                                                                     \
		}                                                                                                                    \
	} while (0)

enum { RIG_WAIT_S = 60, RIG_WORDS_BYTES = 4096 };

struct device_rig {
	const struct device_ops *ops;
	struct device *device;
	struct device_info info;
	uint64_t range, bytes;       /* of device memory, one extent */
	struct device_extent extent;
	int fd;                      /* its descriptor */
	uint8_t *host;               /* bytes, a memfd's, then RIG_WORDS_BYTES of words */
	uint64_t host_address;
	_Atomic uint32_t *words;
	uint64_t words_address;
};

/* A list of copies and its end. */
struct rig_copy {
	struct device_copy list;
	sem_t ended;
	enum status status;
};

/* NULL: no plugin, or no GPU; *words says so. */
const struct device_ops *rig_load(const char **words);
/* `bytes`: a multiple of the granularity, or 0 for two of them. */
void rig_open(struct device_rig *r, const struct device_ops *ops, uint64_t bytes);
void rig_close(struct device_rig *r);
/* A memfd of so many bytes, mapped; *fd may be NULL. */
void *rig_memory(uint64_t bytes, int *fd);

/* What copy() said; OK: rig_end is to come. */
enum status rig_try(struct device_rig *r, struct rig_copy *c);
/* It is to be OK. */
void rig_begin(struct device_rig *r, struct rig_copy *c);
/* Waits RIG_WAIT_S at most, and ends the test then. */
enum status rig_end(struct rig_copy *c);
/* One piece, begun and ended. */
enum status rig_copy_one(struct device_rig *r, enum device_way way, uint64_t from, uint64_t to, uint64_t bytes);

/* device_rows.c */
void rig_test_rows(void);
void rig_test_scattered(void);
/* device_sums.c */
void rig_test_sums(void);

uint64_t rig_random(void);
void rig_fill(void *memory, uint64_t bytes);

/* CUDA's runtime. */
void *rig_stream(void);
void rig_stream_end(void *stream);
void rig_stream_wait(void *stream);
/* Within the device. */
void rig_stream_copy(void *stream, uint64_t to, uint64_t from, uint64_t bytes);

#endif
