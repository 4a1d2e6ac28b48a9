/* RDMA devices, over simulated ones: which ports are usable and why others are not, which address is taken, devices
 * that fail, vanish and come back; the thread, its figures, and its stop. */
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/verbs/rails.h"
#include "daemon/verbs/rdma.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/verbs.h"

static struct rails rails;
static uint32_t told;

static void changed(void *arg, const struct rail *r)
{
	(void)arg;
	(void)r;
	told++;
}

static void begin(void)
{
	log_setup(LOG_ERROR, LOG_LOGFMT);
	sim_verbs_reset();
	rails = (struct rails){ .ops = &sim_verbs_ops, .changed = changed };
	told = 0;
}

/* The only rail, or rail i. */
static const struct rail *rail(uint32_t i)
{
	static struct rail all[RAILS_MAX];

	ck_assert_uint_gt(rails_copy(&rails, all), i);
	return &all[i];
}

static void expect(uint32_t i, enum rail_state state, const char *why)
{
	ck_assert_str_eq(rail_state_text(rail(i)->state), rail_state_text(state));
	ck_assert_msg(strstr(rail(i)->why, why), "%s", rail(i)->why);
}

START_TEST(best_address)
{
	static const struct {
		enum verbs_gid_kind kind;
		uint8_t first, second, at10;
	} of[] = { /* from the worst to the best */
		{ VERBS_GID_ROCE_V1, 0x20, 1, 0 },
		{ VERBS_GID_INFINIBAND, 0xfe, 0x80, 0 },
		{ VERBS_GID_ROCE_V2, 0xfe, 0x80, 0 },
		{ VERBS_GID_ROCE_V2, 0x20, 1, 0 },
		{ VERBS_GID_ROCE_V2, 0, 0, 0xff },
	};
	struct sim_verbs *d = sim_verbs_add("a");

	d->gid[0] = (struct verbs_gid){ .port = 1, .kind = VERBS_GID_ROCE_V2 }; /* zeroes: none */
	rails_look(&rails);
	expect(0, RAIL_UNUSABLE, "has no address");
	for (uint32_t i = 0; i < sizeof of / sizeof of[0]; i++) {
		d->gid[i + 1] = (struct verbs_gid){ .port = 1, .index = i + 1, .kind = of[i].kind };
		d->gid[i + 1].bytes[0] = of[i].first;
		d->gid[i + 1].bytes[1] = of[i].second;
		d->gid[i + 1].bytes[10] = d->gid[i + 1].bytes[11] = of[i].at10;
		d->gid[i + 1].bytes[15] = (uint8_t)(i + 1);
		d->gids = i + 2;
		rails_look(&rails);
		expect(0, RAIL_USABLE, "");
		ck_assert_uint_eq(rail(0)->gid.index, i + 1);
	}
	d->gid[7] = d->gid[1];
	d->gid[7].port = 2; /* of a port that there is not */
	d->gids = 8;
	rails_look(&rails);
	ck_assert_uint_eq(rail(0)->gid.index, 5);
	rails_close(&rails);
	ck_assert_uint_eq(d->opened, 1);
	ck_assert_uint_eq(d->closed, 1);
}
END_TEST

START_TEST(port_goes_down_and_comes_back)
{
	struct sim_verbs *d = sim_verbs_add("a");

	d->info.ports = 2;
	d->gid[1] = d->gid[0];
	d->gid[1].port = 2;
	d->gids = 2;
	rails_look(&rails);
	expect(0, RAIL_USABLE, "");
	expect(1, RAIL_DOWN, "the port is down");
	ck_assert_uint_eq(told, 2);
	rails_look(&rails);
	ck_assert_uint_eq(told, 2);
	d->active[1] = true;
	d->active[0] = false;
	sim_verbs_tell(d, VERBS_EVENT_CHANGED);
	rails_events(&rails, &rails.device[0], false);
	expect(0, RAIL_DOWN, "the port is down");
	expect(1, RAIL_USABLE, "");
	ck_assert_uint_eq(told, 4);
	d->active[0] = true; /* without an event */
	rails_look(&rails);
	expect(0, RAIL_USABLE, "");
	rails_close(&rails);
}
END_TEST

static void fails_by_event(struct sim_verbs *d)
{
	sim_verbs_tell(d, VERBS_EVENT_LOST);
	rails_events(&rails, &rails.device[0], false);
}

static void vanishes(struct sim_verbs *d)
{
	d->there = false;
	rails_look(&rails);
}

static void stops_answering(struct sim_verbs *d)
{
	d->look = STATUS_UNAVAILABLE;
	rails_look(&rails);
}

START_TEST(lost_device_comes_back)
{
	static void (*const how[])(struct sim_verbs *) = { fails_by_event, vanishes, stops_answering };
	struct sim_verbs *d = sim_verbs_add("a"), *other = sim_verbs_add("b");

	rails_look(&rails);
	for (uint32_t i = 0; i < sizeof how / sizeof how[0]; i++) {
		how[i](d);
		expect(0, RAIL_LOST, "it is tried again");
		ck_assert_uint_eq(rail(0)->port, 1);
		expect(1, RAIL_USABLE, "");
		ck_assert_uint_eq(rails.losses, i + 1);
		ck_assert_uint_eq(d->closed, i + 1);
		d->there = true;
		d->look = STATUS_OK;
		rails_look(&rails);
		expect(0, RAIL_USABLE, "");
		ck_assert_uint_eq(d->opened, i + 2);
	}
	ck_assert_uint_eq(other->opened, 1);
	rails_close(&rails);
	ck_assert_uint_eq(d->closed, d->opened);
	ck_assert_uint_eq(other->closed, 1);
}
END_TEST

START_TEST(refused_device_says_what_to_do)
{
	static const struct {
		enum status open;
		const char *remedy;
	} of[] = {
		{ STATUS_DENIED, "DeviceAllow=char-infiniband_verbs rw" },
		{ STATUS_EXHAUSTED, "LimitMEMLOCK" },
		{ STATUS_INTERNAL, "look at its driver" },
	};
	struct sim_verbs *d = sim_verbs_add("a");

	for (uint32_t i = 0; i < sizeof of / sizeof of[0]; i++) {
		d->open = of[i].open;
		rails_look(&rails);
		expect(0, RAIL_UNUSABLE, of[i].remedy);
		ck_assert_uint_eq(rail(0)->port, 0);
	}
	ck_assert_uint_eq(rails.losses, 0);
	d->open = STATUS_OK;
	rails_look(&rails);
	expect(0, RAIL_USABLE, "");
	ck_assert_uint_eq(rail(0)->port, 1);
	d->info.ports = 0;
	rails_look(&rails);
	expect(0, RAIL_LOST, "it has no ports");
	rails_close(&rails);
	ck_assert_uint_eq(d->closed, d->opened);
}
END_TEST

START_TEST(places_of_lost_devices_are_used_again)
{
	struct sim_verbs *first = NULL, *last;
	struct rail all[RAILS_MAX];
	char name[16];

	for (uint32_t i = 0; i < VERBS_DEVICES_MAX + 1; i++) {
		snprintf(name, sizeof name, "d%u", i);
		last = sim_verbs_add(name);
		first = first ? first : last;
	}
	rails_look(&rails);
	ck_assert_uint_eq(rails_copy(&rails, all), VERBS_DEVICES_MAX);
	ck_assert_uint_eq(last->opened, 0);
	first->there = false;
	rails_look(&rails); /* its place is in use until the end of this look */
	rails_look(&rails);
	ck_assert_uint_eq(last->opened, 1);
	ck_assert_uint_eq(rails_copy(&rails, all), VERBS_DEVICES_MAX);
	rails_close(&rails);
}
END_TEST

START_TEST(list_that_cannot_be_read)
{
	struct sim_verbs *d = sim_verbs_add("a");

	rails_look(&rails);
	sim_verbs_list_is(STATUS_INTERNAL);
	rails_look(&rails);
	ck_assert_str_eq(rails.why, "the list is broken");
	expect(0, RAIL_USABLE, ""); /* what is open stays in use */
	sim_verbs_list_is(STATUS_OK);
	rails_look(&rails);
	ck_assert_str_eq(rails.why, "");
	ck_assert_uint_eq(d->opened, 1);
	rails_close(&rails);
}
END_TEST

/* ---- the part ---- */

static struct rdma *rdma;
static struct rdma_view view;

static void create(const struct verbs_ops *ops, const char *no_ops)
{
	const char *why = "";

	ck_assert_int_eq(rdma_create(ops, no_ops, &rdma, &why), STATUS_OK);
}

static void wait_for_state(enum rdma_state state)
{
	for (int i = 0; i < 3000; i++) {
		rdma_look_at(rdma, &view);
		if (view.state == state)
			return;
		nanosleep(&(struct timespec){ 0, 10 * 1000 * 1000 }, NULL);
	}
	ck_abort_msg("%s, not %s: %s", rdma_state_text(view.state), rdma_state_text(state), view.why);
}

struct row {
	const char *name, *labels;
	double value;
	uint32_t found;
};

static void take_row(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct row *r = arg;

	(void)counter;
	ck_assert_str_ne(help, "");
	if (strcmp(name, r->name) || strcmp(labels, r->labels))
		return;
	r->value = value;
	r->found++;
}

static double figure(const char *name, const char *labels)
{
	struct row r = { name, labels, 0, 0 };

	rdma_part.stats(rdma, take_row, &r);
	ck_assert_uint_eq(r.found, 1);
	return r.value;
}

START_TEST(without_a_library)
{
	create(NULL, "no library");
	rdma_serve(rdma);
	rdma_look_at(rdma, &view);
	ck_assert_int_eq(view.state, RDMA_UNAVAILABLE);
	ck_assert_str_eq(view.why, "no library");
	ck_assert_uint_eq(view.count, 0);
	ck_assert(rdma_part.threads_stop(rdma, 0));
	rdma_part.destroy(rdma);
}
END_TEST

START_TEST(without_a_device)
{
	create(&sim_verbs_ops, NULL);
	rdma_look_at(rdma, &view);
	ck_assert_int_eq(view.state, RDMA_STARTING);
	rdma_serve(rdma);
	wait_for_state(RDMA_UNAVAILABLE);
	ck_assert(strstr(view.why, "this machine has no RDMA device"));
	rdma_part.destroy(rdma);
}
END_TEST

START_TEST(never_served)
{
	create(&sim_verbs_ops, NULL);
	rdma_part.destroy(rdma);
}
END_TEST

START_TEST(thread_follows_events)
{
	struct sim_verbs *d = sim_verbs_add("a");

	create(&sim_verbs_ops, NULL);
	rdma_serve(rdma);
	wait_for_state(RDMA_READY);
	ck_assert_uint_eq(view.count, 1);
	ck_assert_double_eq(figure("terrace_rdma_info", "state=ready"), 1);
	ck_assert_double_eq(figure("terrace_rdma_port_usable", "device=a,port=1"), 1);
	pthread_mutex_lock(&sim_verbs_lock);
	d->active[0] = false;
	sim_verbs_tell(d, VERBS_EVENT_CHANGED);
	pthread_mutex_unlock(&sim_verbs_lock);
	wait_for_state(RDMA_UNAVAILABLE);
	ck_assert(strstr(view.why, "no port of an RDMA device can be used"));
	ck_assert_int_eq(view.rail[0].state, RAIL_DOWN);
	ck_assert_double_eq(figure("terrace_rdma_port_usable", "device=a,port=1"), 0);
	pthread_mutex_lock(&sim_verbs_lock);
	d->active[0] = true;
	sim_verbs_tell(d, VERBS_EVENT_CHANGED);
	pthread_mutex_unlock(&sim_verbs_lock);
	wait_for_state(RDMA_READY);
	pthread_mutex_lock(&sim_verbs_lock);
	sim_verbs_tell(d, VERBS_EVENT_LOST);
	pthread_mutex_unlock(&sim_verbs_lock);
	wait_for_state(RDMA_UNAVAILABLE);
	ck_assert_int_eq(view.rail[0].state, RAIL_LOST);
	ck_assert_double_eq(figure("terrace_rdma_device_losses_total", ""), 1);
	wait_for_state(RDMA_READY); /* at the next look */
	ck_assert(rdma_part.threads_stop(rdma, 60ull * 1000 * 1000));
	rdma_part.destroy(rdma);
	ck_assert_uint_eq(d->opened, 2);
	ck_assert_uint_eq(d->closed, 2);
}
END_TEST

/* Nothing would ever be read from such a descriptor, and it would always be ready. */
START_TEST(descriptor_hangs_up)
{
	struct sim_verbs *d = sim_verbs_add("a");

	create(&sim_verbs_ops, NULL);
	rdma_serve(rdma);
	wait_for_state(RDMA_READY);
	pthread_mutex_lock(&sim_verbs_lock);
	sim_verbs_hang_up(d);
	pthread_mutex_unlock(&sim_verbs_lock);
	wait_for_state(RDMA_UNAVAILABLE);
	ck_assert_int_eq(view.rail[0].state, RAIL_LOST);
	rdma_part.destroy(rdma);
	ck_assert_uint_eq(d->closed, d->opened);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rdma devices");
	TCase *ports = tcase_create("ports"), *part = tcase_create("part");
	SRunner *r;
	int failed;

	tcase_add_checked_fixture(ports, begin, NULL);
	tcase_add_test(ports, best_address);
	tcase_add_test(ports, port_goes_down_and_comes_back);
	tcase_add_test(ports, lost_device_comes_back);
	tcase_add_test(ports, refused_device_says_what_to_do);
	tcase_add_test(ports, places_of_lost_devices_are_used_again);
	tcase_add_test(ports, list_that_cannot_be_read);
	tcase_add_checked_fixture(part, begin, NULL);
	tcase_add_test(part, without_a_library);
	tcase_add_test(part, without_a_device);
	tcase_add_test(part, never_served);
	tcase_add_test(part, thread_follows_events);
	tcase_add_test(part, descriptor_hangs_up);
	suite_add_tcase(s, ports);
	suite_add_tcase(s, part);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
