/* See client/gpu/rig.h. */
#include "tests/client/gpu/rig.h"

#include "client/memory/attachment.h"
#include "client/value/clock.h"
#include "client/session/session.h"
#include "proto/fdsock.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

struct rig rig;

const struct device_ops *rig_plugin(void)
{
	const struct device_ops *(*get)(void);
	void *library;

	OK(terrace_cuda_load(SIM_PLUGIN));
	library = dlopen(SIM_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
	ck_assert_ptr_nonnull(library);
	get = (const struct device_ops *(*)(void))dlsym(library, DEVICE_OPS_SYMBOL);
	ck_assert_ptr_nonnull(get);
	return get();
}

static void open_as(uint32_t layouts, bool no_gpu, bool offers)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;

	memset(&rig, 0, sizeof(rig));
	fake_start(&rig.fake);
	rig.fake.offers = offers;
	snprintf(rig.lost_file, sizeof(rig.lost_file), "%s/lost", rig.fake.folder);
	setenv("SIM_GPU_LOST_FILE", rig.lost_file, 1);
	strcat(rig.lost_file, ".0");
	if (!no_gpu) {
		rig.ops = rig_plugin();
		fake_gpu_start(&rig.fake, rig.ops);
	}
	o.address = rig.fake.address;
	o.timeout_us = RIG_TIMEOUT_US;
	OK(terrace_connect(&o, &rig.client));
	rig.layout_count = layouts;
	rig.layouts[0] = rig.layouts[1] = fake_layout();
	rig.layouts[1].first_layer = 2;
	rig.layouts[1].k_format = rig.layouts[1].v_format = TERRACE_FORMAT_FP16;
	OK(terrace_session_open(rig.client, rig.layouts, layouts, NULL, &rig.session));
	for (int i = 0; i < RIG_KEYS; i++)
		memset(rig.bytes + i * RIG_KEY_BYTES, 'a' + i, RIG_KEY_BYTES);
	rig.keys = (struct terrace_keys){rig.bytes, RIG_KEYS, RIG_KEY_BYTES};
	rig.stream = sim_stream_create();
	ck_assert_ptr_nonnull(rig.stream);
}

void rig_open(uint32_t layouts, bool no_gpu)
{
	open_as(layouts, no_gpu, false);
}

void rig_open_offered(uint32_t layouts)
{
	open_as(layouts, false, true);
}

void rig_close(void)
{
	rig.gate = true;
	sim_stream_destroy(rig.stream);
	terrace_session_close(rig.session);
	terrace_disconnect(rig.client);
	if (rig.fake.gpu.ops)
		fake_gpu_stop(&rig.fake);
	unlink(rig.lost_file);
	fake_stop(&rig.fake);
}

void rig_put(void)
{
	struct terrace_reservation *r;

	OK(terrace_reserve(rig.session, &rig.keys, NULL, 0, NULL, &r));
	for (uint32_t i = 0; i < RIG_KEYS; i++)
		for (uint32_t l = 0; l < rig.layout_count; l++)
			memset(terrace_reservation_block(r, i, l), (int)(1 + i + 100 * l),
			       terrace_block_bytes(&rig.layouts[l]));
	OK(terrace_commit(r, 0, NULL, NULL));
}

struct terrace_lease *rig_lease(int32_t gpu, bool gpu_or_host)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_lease *lease = NULL;

	o.mode = TERRACE_LEASE_ALL;
	o.gpu = gpu;
	o.gpu_or_host = gpu_or_host;
	OK(terrace_lease_with(rig.session, &rig.keys, &o, 0, &lease));
	return lease;
}

struct terrace_reservation *rig_reserve_fresh(void)
{
	static uint8_t fresh[2 * RIG_KEY_BYTES] = "fresh keys";
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_keys keys = {fresh, 2, RIG_KEY_BYTES};
	struct terrace_reservation *r;

	o.gpu = 0;
	OK(terrace_reserve_with(rig.session, &keys, NULL, &o, 0, NULL, &r));
	return r;
}

void rig_check(const struct terrace_lease *lease)
{
	uint64_t addresses[RIG_KEYS];

	for (uint32_t l = 0; l < rig.layout_count; l++) {
		const uint64_t bytes = terrace_block_bytes(&rig.layouts[l]);

		OK(terrace_lease_addresses(lease, l, addresses));
		for (uint32_t i = 0; i < RIG_KEYS; i++) {
			const uint8_t *at = (uint8_t *)sim_at(addresses[i]);
			uint64_t wrong = 0;

			ck_assert_uint_eq(addresses[i] % 256, 0);
			for (uint64_t k = 0; k < bytes; k++) /* one assertion a byte would be most of the test's time */
				wrong += at[k] != (uint8_t)(1 + i + 100 * l);
			ck_assert_msg(!wrong, "%llu bytes of key %u in layout %u are wrong", (unsigned long long)wrong, i, l);
		}
	}
}

static char stuck_file[96];

void rig_stuck_begin(void)
{
	char begin[80];

	snprintf(begin, sizeof(begin), "/tmp/terrace-stuck-%d", (int)getpid());
	setenv("SIM_GPU_STUCK_FILE", begin, 1);
	snprintf(stuck_file, sizeof(stuck_file), "%s.0", begin);
	unlink(stuck_file); /* of a process that had the number before, and was killed */
}

void rig_stick(void)
{
	close(open(stuck_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

void rig_stick_all(void)
{
	int fd = open(stuck_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	ck_assert(fd >= 0 && write(fd, "all", 3) == 3);
	close(fd);
}

void rig_unstick(void)
{
	unlink(stuck_file);
}

bool rig_is_stuck(void)
{
	return access(stuck_file, F_OK) == 0;
}

void *rig_unstick_when(void *over)
{
	const atomic_bool *is_over = over;
	uint64_t until = client_deadline_us(20000000);

	while (!atomic_load(is_over) && client_now_us() < until)
		poll(NULL, 0, 1);
	rig_unstick();
	return NULL;
}

void rig_open_again(void)
{
	uint64_t until = client_deadline_us(RIG_TIMEOUT_US);
	enum terrace_status status;

	do
		status = terrace_session_open(rig.client, rig.layouts, rig.layout_count, NULL, &rig.session);
	while (status && client_now_us() < until);
	ck_assert_int_eq(status, TERRACE_OK);
}

struct client_attachment *rig_attachment(void)
{
	return rig.session->view->attachment;
}

unsigned rig_mapped(void)
{
	struct client_attachment *a = rig_attachment();
	unsigned n = 0;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->count; i++)
		n += a->mappings[i]->gpu != FDSOCK_NO_GPU && !a->mappings[i]->coming;
	pthread_mutex_unlock(&a->lock);
	return n;
}

static enum status gate_wait(void *arg, bool failed)
{
	uint64_t until = client_deadline_us(60000000);

	while (!failed && !atomic_load((atomic_bool *)arg) && client_now_us() < until)
		poll(NULL, 0, 1);
	return STATUS_OK;
}

void rig_hold(void)
{
	ck_assert(sim_stream_put(rig.stream, gate_wait, &rig.gate));
}
