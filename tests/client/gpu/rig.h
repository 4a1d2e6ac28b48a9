/* What the tests of leases on a GPU share: a fake daemon that lends the simulated device's memory, a session, blocks, a stream with a
 * gate. */
#ifndef TERRACE_TESTS_CLIENT_GPU_RIG_H
#define TERRACE_TESTS_CLIENT_GPU_RIG_H

#include "tests/client/fake.h"
#include "tests/sim/device.h"
#include "tests/sim/stream.h"

#include <check.h>
#include <stdatomic.h>

/* The time that calls have here is a net. */
enum { RIG_KEYS = 4, RIG_KEY_BYTES = 16, RIG_TIMEOUT_US = 30000000 };

struct rig {
	struct fake fake;
	const struct device_ops *ops; /* the plugin's, as the client has it */
	struct terrace_client *client;
	struct terrace_session *session;
	struct terrace_layout layouts[FAKE_GPU_LAYOUTS];
	uint32_t layout_count;
	uint8_t bytes[RIG_KEYS * RIG_KEY_BYTES];
	struct terrace_keys keys;
	struct sim_stream *stream;
	atomic_bool gate;
	char lost_file[96]; /* the device is lost once there is such a file */
};

extern struct rig rig;

/* Sets a field of the fake's. */
#define RIG_FAULT(field, value)                                                                                        \
	do {                                                                                                           \
		pthread_mutex_lock(&rig.fake.lock);                                                                    \
		rig.fake.field = (value);                                                                              \
		pthread_mutex_unlock(&rig.fake.lock);                                                                  \
	} while (0)

#define OK(call) ck_assert_msg((call) == TERRACE_OK, "%s: %s", #call, terrace_error())

/* Starts the fake, with its GPU, and a session of so many layouts; no_gpu: without it. */
void rig_open(uint32_t layouts, bool no_gpu);
/* With the GPU, by a daemon that offers extents. */
void rig_open_offered(uint32_t layouts);
void rig_close(void);
/* Loads the plugin and gives its table. */
const struct device_ops *rig_plugin(void);

/* Stores all keys in host memory: byte 1 + i + 100 l. */
void rig_put(void);
/* Leases all keys. */
struct terrace_lease *rig_lease(int32_t gpu, bool gpu_or_host);
/* Reserves two keys on the GPU that nothing else names. */
struct terrace_reservation *rig_reserve_fresh(void);
/* The bytes at the lease's addresses are those of rig_put. */
void rig_check(const struct terrace_lease *lease);

/* Has the driver held up by a file, from the next rig_open... on; and unlinks it. */
void rig_stuck_begin(void);
/* From now on who maps, unmaps or pins does not come back, until rig_unstick. */
void rig_stick(void);
/* Nor does who asks whether the GPU is lost. */
void rig_stick_all(void);
void rig_unstick(void);
bool rig_is_stuck(void);
/* A thread's: rig_unstick once the atomic_bool that is its argument is set, or after 20 s: what waits for the driver fails a test, and does not hang it. */
void *rig_unstick_when(void *over);

/* The session's attachment, and how many extents of the GPU it has mapped. */
struct client_attachment *rig_attachment(void);
unsigned rig_mapped(void);

/* Another session, for rig_close, after a close. The fake may be starting. */
void rig_open_again(void);

/* Holds the stream up until rig.gate is true, a minute at most. */
void rig_hold(void);
/* Waits until `condition` holds, 30 s at most. */
#define RIG_AWAIT(condition)                                                                                           \
	do {                                                                                                           \
		uint64_t until_ = client_deadline_us(30000000);                                                        \
		while (!(condition) && client_now_us() < until_)                                                       \
			poll(NULL, 0, 1);                                                                              \
		ck_assert(condition);                                                                                  \
	} while (0)

#endif
