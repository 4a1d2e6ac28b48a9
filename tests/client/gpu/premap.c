/* Extents that are mapped before a lease names them: when, how many, and what becomes of it when the driver takes long, or fails, when the
 * daemon wants them back, lies or goes, and when the session ends. */
#include "tests/client/gpu/rig.h"
#include "tests/client/unmap.h"

#include "client/value/clock.h"
#include "client/session/session.h"
#include "proto/fdsock.h"

#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { ALL_USES = TERRACE_GPU_LEASES | TERRACE_GPU_RESERVATIONS | TERRACE_GPU_HOST_BLOCKS };

static void open_one(void)
{
	rig_stuck_begin();
	rig_open_offered(1);
	rig_put();
}

static void open_two(void)
{
	rig_stuck_begin();
	rig_open_offered(2);
	rig_put();
}

static void open_unoffered(void)
{
	rig_stuck_begin();
	rig_open(1, false);
	rig_put();
}

static void close_all(void)
{
	rig_unstick();
	rig_close();
}

static void ready(uint32_t uses)
{
	OK(terrace_session_gpu_ready(rig.session, 0, uses, 0));
}

static unsigned maps(void)
{
	return fake_count(&rig.fake, &rig.fake.maps);
}

static uint32_t read_locked(const uint32_t *number)
{
	struct client_attachment *a = rig_attachment();
	uint32_t n;

	pthread_mutex_lock(&a->lock);
	n = *number;
	pthread_mutex_unlock(&a->lock);
	return n;
}

/* Extents that the library's thread is in the driver for. */
static uint32_t apart(void)
{
	return read_locked(&rig_attachment()->premap.apart);
}

static uint32_t offered(void)
{
	return read_locked(&rig_attachment()->premap.count);
}

/* Key i alone: keys 0 and 1 are in different extents. */
static struct terrace_lease *lease_one(int i)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_keys key = {rig.bytes + i * RIG_KEY_BYTES, 1, RIG_KEY_BYTES};
	struct terrace_lease *lease = NULL;

	o.mode = TERRACE_LEASE_ALL;
	o.gpu = 0;
	OK(terrace_lease_with(rig.session, &key, &o, 0, &lease));
	return lease;
}

/* The GPU is in use, and nothing is mapped: what there is was not found, nor offered. */
static void use_nothing(void)
{
	static uint8_t nobody[RIG_KEY_BYTES] = "nobody's";
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_keys key = {nobody, 1, RIG_KEY_BYTES};
	struct terrace_lease *lease;

	RIG_FAULT(offers_late, true);
	o.gpu = 0;
	ck_assert_int_eq(terrace_lease_with(rig.session, &key, &o, 0, &lease), TERRACE_MISS);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.asked_premap, 1), 1);
	ck_assert_uint_eq(rig_mapped(), 0);
}

/* ---- when and what ------------------------------------------------------------------------------------------------- */

/* Who uses no GPU is asked for nothing, and opens none; who has used it is given all, in his own time, and leases are as quick as their
 * call: the driver is not asked for anything that it may be held up over. */
START_TEST(what_is_used_is_mapped)
{
	struct terrace_lease *lease;
	unsigned before;

	terrace_release(rig_lease(-1, false));
	ck_assert(fake_count(&rig.fake, &rig.fake.asked_premap) == 0 && rig_mapped() == 0);
	lease = lease_one(0);
	RIG_AWAIT(rig_mapped() == 2 * rig.layout_count);
	before = maps();
	rig_stick();
	terrace_release(lease);
	for (int i = 0; i < 3; i++) {
		lease = rig_lease(0, false);
		rig_check(lease);
		terrace_release(lease);
	}
	ck_assert(rig_is_stuck() && maps() == before);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.asked_premap), 1);
}
END_TEST

/* All of it at once, when that is asked for: the first lease, the first reservation and the first block in host memory find all done. */
START_TEST(ready_is_ready)
{
	struct terrace_lease *lease;
	unsigned before;

	ready(TERRACE_GPU_LEASES);
	ck_assert_uint_eq(rig_mapped(), 2 * rig.layout_count);
	ready(ALL_USES);
	ck_assert_uint_eq(rig_mapped(), 4 * rig.layout_count);
	before = maps();
	rig_stick();
	RIG_FAULT(gpu.stays, true);
	lease = rig_lease(0, true);
	ck_assert_ptr_nonnull(terrace_lease_block(lease, 0, 0));
	terrace_release(lease);
	lease = rig_lease(0, false);
	rig_check(lease);
	terrace_release(lease);
	terrace_abort(rig_reserve_fresh());
	ready(ALL_USES);
	ck_assert(rig_is_stuck() && maps() == before);
}
END_TEST

static void *offer_later(void *arg)
{
	(void)arg;
	poll(NULL, 0, 60); /* who waits has looked in vain more than once by then */
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	return NULL;
}

static void unfit(struct fake *f, const char *method, ProtobufCMessage *reply)
{
	static char why[] = "layouts[0]: a block is too large: raise gpu_bytes";

	(void)f;
	if (!strcmp(method, "OpenSession"))
		((Terrace__V1__OpenSessionReply *)reply)->gpus[0]->unfit = why;
}

/* The daemon has too little of the GPU: its sentence is told before anything is mapped. */
START_TEST(ready_tells_of_a_gpu_that_is_too_small)
{
	struct terrace_session *session;

	RIG_FAULT(twist, unfit);
	OK(terrace_session_open(rig.client, rig.layouts, 1, NULL, &session));
	RIG_FAULT(twist, NULL);
	for (int uses = 1; uses < 4; uses++) {
		ck_assert_int_eq(terrace_session_gpu_ready(session, 0, (uint32_t)uses, 0), TERRACE_INVALID);
		ck_assert_ptr_nonnull(strstr(terrace_error(), "a block is too large: raise gpu_bytes"));
	}
	OK(terrace_session_gpu_ready(session, 0, TERRACE_GPU_HOST_BLOCKS, 0));
	terrace_session_close(session);
}
END_TEST

START_TEST(ready_refuses)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session *session;
	struct terrace_client *client;
	pthread_t thread;
	char words[256];

	ck_assert_int_eq(terrace_session_gpu_ready(NULL, 0, TERRACE_GPU_LEASES, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, 0, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, 8 | TERRACE_GPU_LEASES, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 1, TERRACE_GPU_LEASES, 0), TERRACE_INVALID);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.asked_premap), 0);
	o.address = rig.fake.address;
	o.no_borrow = true;
	OK(terrace_connect(&o, &client));
	OK(terrace_session_open(client, rig.layouts, 1, NULL, &session));
	ck_assert_int_eq(terrace_session_gpu_ready(session, 0, TERRACE_GPU_LEASES, 0), TERRACE_PRECONDITION);
	terrace_session_close(session);
	terrace_disconnect(client);
	RIG_FAULT(offers_late, true);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 60000), TERRACE_DEADLINE);
	snprintf(words, sizeof(words), "%s", terrace_error());
	ck_assert_int_eq(pthread_create(&thread, NULL, offer_later, NULL), 0);
	ready(TERRACE_GPU_LEASES);
	pthread_join(thread, NULL);
	ck_assert_str_eq(terrace_error(), words); /* it came out well */
	ck_assert_uint_eq(rig_mapped(), 1);
}
END_TEST

/* An older daemon: as it was. */
START_TEST(no_offers)
{
	ready(ALL_USES);
	ck_assert_uint_eq(rig_mapped(), 0);
	terrace_release(lease_one(0));
	ck_assert_uint_eq(rig_mapped(), 1);
	ck_assert(!rig_attachment()->premap.hears);
}
END_TEST

/* Another use of what has been offered is no less one, for what it does not name itself. */
START_TEST(uses_come_one_by_one)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_reservation *r;

	terrace_release(lease_one(0));
	RIG_AWAIT(rig_mapped() == 2);
	o.gpu = 0;
	OK(terrace_reserve_open_with(rig.session, NULL, &o, 0, &r));
	RIG_AWAIT(rig_mapped() == 4);
	terrace_abort(r);
}
END_TEST

/* What comes later is mapped when it comes. */
START_TEST(what_comes_is_mapped)
{
	use_nothing();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT + 1);
	RIG_AWAIT(rig_mapped() == 1);
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT + 1);
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	RIG_AWAIT(rig_mapped() == 2);
	rig_stick();
	terrace_release(rig_lease(0, false));
	ck_assert(rig_is_stuck());
}
END_TEST

/* ---- what is of no more use ---------------------------------------------------------------------------------------- */

/* By an engine that does nothing at all; and not by one that leases there, until it has done. */
START_TEST(idle_engines_give_back)
{
	struct terrace_lease *lease;

	ready(TERRACE_GPU_LEASES | TERRACE_GPU_RESERVATIONS);
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 2), 2);
	RIG_AWAIT(rig_mapped() == 2);
	lease = lease_one(1);
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT + 1);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 3), 3); /* the one to write */
	ck_assert_uint_eq(rig_mapped(), 1);
	terrace_release(lease);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 4), 4);
	RIG_AWAIT(rig_mapped() == 0);
	terrace_release(lease_one(1));
}
END_TEST

START_TEST(host_memory_is_given_back)
{
	RIG_FAULT(gpu.stays, true);
	ready(TERRACE_GPU_HOST_BLOCKS);
	unmap_unused(rig_attachment(), 1);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 2), 2); /* also what rig_put wrote */
	terrace_release(rig_lease(0, true));
}
END_TEST

/* It is of no more use while it is being mapped. */
START_TEST(what_is_coming_is_given_back)
{
	use_nothing();
	rig_stick();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT + 1);
	RIG_AWAIT(apart() == 1);
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	rig_unstick();
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 1), 1);
	RIG_AWAIT(rig_mapped() == 1);
}
END_TEST

/* ---- a driver that takes long -------------------------------------------------------------------------------------- */

static void *lease_thread(void *arg)
{
	terrace_release(lease_one(*(const int *)arg));
	return NULL;
}

/* While one is being mapped: who needs it waits for that, and asks for nothing; who needs another one asks for it. */
START_TEST(leases_wait_for_one)
{
	const int key = _i;
	unsigned before;
	pthread_t thread;

	use_nothing();
	rig_stick();
	before = maps();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	RIG_AWAIT(apart() == 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, lease_thread, (void *)(uintptr_t)&key), 0);
	if (key == 1) {
		RIG_AWAIT(maps() == before + 2);
		ck_assert(rig_is_stuck());
	} else {
		RIG_AWAIT(fake_count(&rig.fake, &rig.fake.gpu.leases) >= 1);
	}
	rig_unstick();
	pthread_join(thread, NULL);
	ck_assert_uint_eq(maps(), before + 1 + (key == 1));
	RIG_AWAIT(rig_mapped() == 1u + (key == 1));
}
END_TEST

/* A driver that maps may keep all others waiting, too: who leases what is mapped asks it for nothing. */
START_TEST(leases_ask_no_driver_that_maps)
{
	use_nothing();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT + 1);
	RIG_AWAIT(rig_mapped() == 1);
	rig_stick();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	RIG_AWAIT(apart() == 1);
	rig_stick_all();
	terrace_release(lease_one(1));
	ck_assert(rig_is_stuck());
}
END_TEST

/* The same of host memory that is being registered. */
static void *host_lease_thread(void *arg)
{
	(void)arg;
	terrace_release(rig_lease(0, true));
	return NULL;
}

START_TEST(leases_wait_for_registering)
{
	pthread_t thread;

	use_nothing();
	terrace_release(rig_lease(-1, false)); /* host memory is mapped */
	RIG_FAULT(gpu.stays, true);
	RIG_FAULT(offers_late, false);
	rig_stick();
	client_fds_use(rig_attachment(), CLIENT_USE_HOST, 0);
	RIG_AWAIT(apart() == 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, host_lease_thread, NULL), 0);
	RIG_AWAIT(fake_count(&rig.fake, &rig.fake.gpu.leases) >= 1);
	terrace_release(rig_lease(-1, false)); /* who needs no GPU does not wait */
	ck_assert(rig_is_stuck());
	rig_unstick();
	pthread_join(thread, NULL);
}
END_TEST

/* A session that lends two GPUs. */
static void lend_two(struct fake *f, const char *method, ProtobufCMessage *message)
{
	static Terrace__V1__Gpu second = TERRACE__V1__GPU__INIT, *both[2] = {NULL, &second};
	static uint8_t uuid[DEVICE_UUID_BYTES];
	Terrace__V1__OpenSessionReply *reply = (Terrace__V1__OpenSessionReply *)message;
	const char *why;

	if (strcmp(method, "OpenSession") != 0)
		return;
	ck_assert_int_eq(f->gpu.ops->uuid(1, uuid, &why), STATUS_OK);
	second.uuid = (ProtobufCBinaryData){sizeof(uuid), uuid};
	both[0] = reply->gpus[0];
	reply->gpus = both;
	reply->n_gpus = 2;
}

static void open_pair(void)
{
	setenv("SIM_GPU_DEVICES", "2", 1);
	open_one();
	RIG_FAULT(twist, lend_two);
	OK(terrace_session_reopen(rig.session, 0));
}

/* Host memory that one thread registers with a GPU, while another passes it over, is registered with the other GPU as well. */
START_TEST(each_gpu_has_host_memory)
{
	struct client_attachment *a = rig_attachment();
	const struct client_mapping *m;

	RIG_FAULT(offers_late, true);
	terrace_release(rig_lease(-1, false));
	rig_stick();
	client_fds_use(a, CLIENT_USE_HOST, 0);
	client_fds_use(a, CLIENT_USE_HOST, 1);
	fake_offer(&rig.fake, false, 1);
	RIG_AWAIT(apart() == 1);
	ck_assert_int_eq(client_fds_use_await(a, client_deadline_us(20000)), TERRACE_DEADLINE);
	rig_unstick();
	pthread_mutex_lock(&a->lock);
	m = client_fds_find(a, 1, false);
	pthread_mutex_unlock(&a->lock);
	ck_assert_ptr_nonnull(m);
	RIG_AWAIT(read_locked(&m->ready) == 3);
}
END_TEST

START_TEST(ready_has_a_deadline)
{
	use_nothing();
	rig_stick();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	RIG_AWAIT(apart() == 1);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 60000), TERRACE_DEADLINE);
	ck_assert(rig_is_stuck());
	rig_unstick();
	ready(TERRACE_GPU_LEASES);
	ck_assert_uint_eq(rig_mapped(), 1);
}
END_TEST

static void *ready_thread(void *arg)
{
	*(enum terrace_status *)arg = terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 0);
	return NULL;
}

static bool is_talking(void)
{
	struct client_attachment *a = rig_attachment();
	bool is;

	pthread_mutex_lock(&a->lock);
	is = a->talking;
	pthread_mutex_unlock(&a->lock);
	return is;
}

/* Who waits for the daemon to offer all that it has lets others have the socket. */
START_TEST(leases_go_before_offers)
{
	struct terrace_lease *lease;
	enum terrace_status status;
	pthread_t thread;

	use_nothing();
	ck_assert_int_eq(pthread_create(&thread, NULL, ready_thread, &status), 0);
	RIG_AWAIT(is_talking());
	ck_assert_msg(!terrace_lease(rig.session, &rig.keys, TERRACE_LEASE_ALL, 2000000, &lease), "%s", terrace_error());
	terrace_release(lease);
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	pthread_join(thread, NULL);
	OK(status);
}
END_TEST

/* A close does not wait for ever, and what comes then goes. */
START_TEST(closes_do_not_wait)
{
	atomic_bool over = false;
	pthread_t thread;

	use_nothing();
	rig_stick();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	RIG_AWAIT(apart() == 1);
	rig_attachment()->close_wait_us = 50000;
	ck_assert_int_eq(pthread_create(&thread, NULL, rig_unstick_when, &over), 0);
	terrace_session_close(rig.session);
	ck_assert(rig_is_stuck());
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.unmapped), 0);
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 1), 1);
	rig_open_again();
}
END_TEST

/* Nor does who opens anew, or (1) releases the last lease of what was open before. */
START_TEST(nobody_waits_who_lets_go)
{
	struct terrace_lease *lease = _i ? rig_lease(-1, false) : NULL;
	atomic_bool over = false;
	pthread_t thread;

	use_nothing();
	rig_stick();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	RIG_AWAIT(apart() == 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, rig_unstick_when, &over), 0);
	OK(terrace_session_reopen(rig.session, 0));
	terrace_release(lease);
	ck_assert(rig_is_stuck());
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ck_assert_uint_ge(fake_await(&rig.fake, &rig.fake.unmapped, 1), 1);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------------------------------ */

static const struct {
	enum fake_fd_fault fault;
	enum terrace_status status;
} faults[] = {
	{FAKE_FD_GPU_UNKNOWN, TERRACE_INTERNAL},
	{FAKE_FD_GPU_ODD, TERRACE_INTERNAL},        {FAKE_FD_GPU_FAR, TERRACE_INTERNAL},
	{FAKE_FD_GPU_OVERLAPS, TERRACE_INTERNAL},   {FAKE_FD_GPU_HUGE, TERRACE_INTERNAL},
	{FAKE_FD_GPU_NO_MEMORY, TERRACE_INTERNAL},  {FAKE_FD_GPU_NO_HOLD, TERRACE_INTERNAL},
	{FAKE_FD_GPU_NOT_MEMORY, TERRACE_INTERNAL}, {FAKE_FD_GPU_SIZE, TERRACE_INTERNAL},
	{FAKE_FD_GPU_IS_HOST, TERRACE_INTERNAL},    {FAKE_FD_REFUSES, TERRACE_OK},
};

/* What comes is not what was offered, or cannot be mapped: nothing is left of it, no other offer is tried, and leases map as ever. What the
 * daemon does not give is no failure: it may want it back. */
START_TEST(what_fails_is_left_to_leases)
{
	struct terrace_lease *lease;
	unsigned before;

	use_nothing();
	RIG_FAULT(fd_fault, faults[_i].fault);
	before = maps();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT + 1);
	RIG_AWAIT(maps() > before && (faults[_i].status ? offered() == 2 : offered() == 0));
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 0), faults[_i].status);
	RIG_AWAIT(rig_mapped() == (faults[_i].fault == FAKE_FD_GPU_OVERLAPS));
	RIG_FAULT(fd_fault, FAKE_FD_SOUND);
	lease = rig_lease(0, false);
	rig_check(lease);
	terrace_release(lease);
}
END_TEST

/* What the daemon does not answer is asked for again, also when nothing more is offered. Nobody waits for that longer than he would, nor does a
 * close; and leases ask for themselves. */
START_TEST(silence_is_not_for_ever)
{
	unsigned before;

	use_nothing();
	RIG_FAULT(fd_fault, FAKE_FD_SILENT);
	before = maps();
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT);
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT + 1);
	RIG_AWAIT(maps() > before);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 20000), TERRACE_DEADLINE);
	RIG_FAULT(fd_fault, FAKE_FD_SOUND);
	if (_i) {
		terrace_release(lease_one(1));
		ck_assert_uint_eq(rig_mapped(), 1);
	}
	RIG_AWAIT(rig_mapped() == 2);
	ready(TERRACE_GPU_LEASES);
}
END_TEST

/* Host memory that was offered as the GPU's, or the other way round, is not kept. */
START_TEST(what_is_elsewhere_is_refused)
{
	const uint32_t extent = _i ? FAKE_GPU_EXTENT : 1;
	bool found;

	use_nothing();
	if (_i)
		client_fds_use(rig_attachment(), CLIENT_USE_HOST, 0);
	fake_offer(&rig.fake, !_i, extent);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 1), 1);
	pthread_mutex_lock(&rig_attachment()->lock);
	found = client_fds_find(rig_attachment(), extent, false);
	pthread_mutex_unlock(&rig_attachment()->lock);
	ck_assert(!found);
}
END_TEST

static struct fdsock_offer offer_of(uint32_t gpu, uint32_t count)
{
	return (struct fdsock_offer){.head = {FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_OFFER},
				     .gpu = gpu,
				     .count = count,
				     .extents = {FAKE_GPU_EXTENT, FAKE_GPU_EXTENT + 1}};
}

/* Offers of what was not asked for, of no extents, and of too many: nothing is asked for. */
START_TEST(odd_offers_are_ignored)
{
	static const uint32_t gpus[] = {1, DEVICES_MAX, DEVICES_MAX + 1, 32, 63, FDSOCK_NO_GPU};
	struct fdsock_offer o = offer_of(0, 2);
	unsigned before;

	use_nothing();
	before = maps();
	for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++) {
		o.gpu = gpus[i];
		fake_fd_send(&rig.fake, &o, offsetof(struct fdsock_offer, extents) + 2 * sizeof(o.extents[0]));
	}
	o = offer_of(0, 2);
	o.extents[0] = FDSOCK_EXTENT_PROGRESS_PAGE;
	o.extents[1] = FDSOCK_EXTENT_NONE;
	fake_fd_send(&rig.fake, &o, offsetof(struct fdsock_offer, extents) + 2 * sizeof(o.extents[0]));
	fake_offer(&rig.fake, true, FAKE_GPU_EXTENT); /* heard after all these */
	RIG_AWAIT(rig_mapped() == 1);
	ck_assert_uint_eq(maps(), before + 1);
	o = offer_of(0, FDSOCK_OFFERS_MAX);
	for (uint32_t i = 0; i < FDSOCK_OFFERS_MAX; i++)
		o.extents[i] = FAKE_GPU_EXTENT;
	for (int i = 0; i < CLIENT_OFFERS_MAX / FDSOCK_OFFERS_MAX + 4; i++) {
		fake_fd_send(&rig.fake, &o, sizeof(o));
		if (i % 16 == 0)
			RIG_AWAIT(offered() >= (unsigned)i * FDSOCK_OFFERS_MAX || i > 20);
	}
	RIG_AWAIT(offered() == CLIENT_OFFERS_MAX);
	ck_assert_uint_eq(maps(), before + 1);
}
END_TEST

/* Packets that are no offers end the conversation, as all garbage does; the daemon still hears what is unmapped, since a GPU's memory
 * would else be this process's to its end; and the session begins anew. */
START_TEST(garbage_ends_it)
{
	struct fdsock_offer o = offer_of(0, _i == 0 ? 3 : _i == 1 ? FDSOCK_OFFERS_MAX + 1 : 2);
	const size_t bytes[] = {offsetof(struct fdsock_offer, extents) + 2 * sizeof(o.extents[0]), sizeof(o),
				offsetof(struct fdsock_offer, extents) - 1};

	ready(TERRACE_GPU_LEASES);
	fake_fd_send(&rig.fake, &o, bytes[_i]);
	RIG_AWAIT(rig_mapped() == 0 && !rig_attachment()->premap.hears);
	ck_assert_int_eq(terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 0), TERRACE_UNAVAILABLE);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 4), 4); /* with those that rig_put wrote */
	OK(terrace_session_reopen(rig.session, 0));
	terrace_release(rig_lease(0, false));
}
END_TEST

/* ---- ends ---------------------------------------------------------------------------------------------------------- */

/* The daemon's end frees what is not in use, and no more. */
START_TEST(a_dead_daemons_memory_is_let_go)
{
	struct terrace_lease *lease;

	ready(TERRACE_GPU_LEASES | TERRACE_GPU_RESERVATIONS);
	lease = lease_one(0);
	ck_assert_uint_eq(rig_mapped(), 4);
	fake_restart(&rig.fake);
	RIG_AWAIT(rig_mapped() == 1);
	OK(terrace_lease_check(lease));
	terrace_release(lease);
	RIG_AWAIT(rig_mapped() == 0);
	OK(terrace_session_reopen(rig.session, 0));
}
END_TEST

/* Who is gone without a close, since a reopen has taken his place, is not kept by being listened for. */
START_TEST(a_reopen_lets_go)
{
	ready(TERRACE_GPU_LEASES);
	OK(terrace_session_reopen(rig.session, 0));
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 2), 2);
	ck_assert_uint_eq(rig_mapped(), 0);
	ready(TERRACE_GPU_LEASES);
	ck_assert_uint_eq(rig_mapped(), 2);
	terrace_session_close(rig.session);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 4), 4);
	rig_open_again();
}
END_TEST

static void *lease_often(void *arg)
{
	for (int i = 0; i < 40; i++) {
		struct terrace_lease *lease = rig_lease(0, i % 2);

		rig_check(lease);
		if (i % 3)
			terrace_release(lease);
		else
			OK(terrace_release_after(lease, rig.stream));
		if (arg && i % 8 == 0)
			ready(ALL_USES);
	}
	return NULL;
}

/* All at once: threads that lease, offers, and unmapping. */
START_TEST(everybody_at_once)
{
	enum { THREADS = 3 };
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, lease_often, i ? NULL : &rig), 0);
	for (uint32_t i = 0; i < 150; i++) {
		unmap_unused(rig_attachment(), i % 3 ? FAKE_GPU_EXTENT + i % 2 : 1 + i % 2);
		fake_offer(&rig.fake, i % 5, i % 5 ? FAKE_GPU_EXTENT + i % 2 : 1 + i % 2);
		poll(NULL, 0, 1);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_gt(fake_count(&rig.fake, &rig.fake.unmapped), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_gpu_ahead");
	TCase *one = tcase_create("one"), *two = tcase_create("two"), *old = tcase_create("unoffered"), *pair = tcase_create("pair");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(one, open_one, close_all);
	tcase_add_test(one, what_is_used_is_mapped);
	tcase_add_test(one, ready_is_ready);
	tcase_add_test(one, ready_refuses);
	tcase_add_test(one, ready_tells_of_a_gpu_that_is_too_small);
	tcase_add_test(one, uses_come_one_by_one);
	tcase_add_test(one, what_comes_is_mapped);
	tcase_add_test(one, idle_engines_give_back);
	tcase_add_test(one, host_memory_is_given_back);
	tcase_add_test(one, what_is_coming_is_given_back);
	tcase_add_loop_test(one, leases_wait_for_one, 0, 2);
	tcase_add_test(one, leases_ask_no_driver_that_maps);
	tcase_add_test(one, leases_wait_for_registering);
	tcase_add_test(one, ready_has_a_deadline);
	tcase_add_test(one, leases_go_before_offers);
	tcase_add_test(one, closes_do_not_wait);
	tcase_add_loop_test(one, nobody_waits_who_lets_go, 0, 2);
	tcase_add_loop_test(one, what_fails_is_left_to_leases, 0, sizeof(faults) / sizeof(faults[0]));
	tcase_add_loop_test(one, silence_is_not_for_ever, 0, 2);
	tcase_add_loop_test(one, what_is_elsewhere_is_refused, 0, 2);
	tcase_add_test(one, odd_offers_are_ignored);
	tcase_add_loop_test(one, garbage_ends_it, 0, 3);
	tcase_add_test(one, a_dead_daemons_memory_is_let_go);
	tcase_add_test(one, a_reopen_lets_go);
	tcase_add_test(one, everybody_at_once);
	tcase_add_checked_fixture(two, open_two, close_all);
	tcase_add_test(two, what_is_used_is_mapped);
	tcase_add_test(two, ready_is_ready);
	tcase_add_checked_fixture(old, open_unoffered, close_all);
	tcase_add_test(old, no_offers);
	tcase_add_checked_fixture(pair, open_pair, close_all);
	tcase_add_test(pair, each_gpu_has_host_memory);
	tcase_set_timeout(one, 100);
	tcase_set_timeout(two, 100);
	tcase_set_timeout(old, 100);
	tcase_set_timeout(pair, 100);
	suite_add_tcase(suite, one);
	suite_add_tcase(suite, two);
	suite_add_tcase(suite, old);
	suite_add_tcase(suite, pair);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
