/* From the options `gpus` and `cuda_plugin` to the cache's: what is loaded, and that the daemon goes on without, and says so if a GPU was named. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/explain.h"
#include "daemon/call/faults.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/settle.h"
#include "daemon/call/stats.h"
#include "daemon/call/stream.h"
#include "daemon/call/warm.h"
#include "daemon/disk/tier.h"
#include "daemon/process/cache_options.h"
#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/gpu_log.h"
#include "daemon/process/gpu_plugin.h"
#include "daemon/process/log.h"
#include "daemon/session/attachment.h"
#include "daemon/session/offer.h"
#include "daemon/session/open.h"
#include "daemon/vram/stats.h"
#include "kernels/format.h"
#include "store/status.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct config config;
static struct cache_config out;

static void load(const char *gpus, const char *plugin)
{
	char *argv[] = { "terraced", "--gpus", (char *)gpus, "--cuda-plugin", (char *)plugin };
	struct config_errors errors;

	log_setup(LOG_ERROR, LOG_LOGFMT);
	ck_assert_msg(config_load(&config, 5, argv, NULL, NULL, &errors) == STATUS_OK, "%s", errors.text);
	cache_config(&config, &out);
	gpu_plugin_load(&config, &out);
}

START_TEST(without_cuda_there_are_none)
{
	load("off", SIM_PLUGIN);
	ck_assert_uint_eq(out.options.gpu_count, 0);
	ck_assert_ptr_null(out.options.device_ops);
	load("all", "/nowhere/libterrace_cuda.so.0");
	ck_assert_uint_eq(out.options.gpu_count, 0);
	load("all", NOT_A_PLUGIN);
	ck_assert_uint_eq(out.options.gpu_count, 0);
	setenv("SIM_GPU_DEVICES", "0", 1);
	load("all", SIM_PLUGIN);
	ck_assert_uint_eq(out.options.gpu_count, 0);
}
END_TEST

START_TEST(those_that_are_named)
{
	setenv("SIM_GPU_DEVICES", "3", 1);
	load("all", SIM_PLUGIN);
	ck_assert_uint_eq(out.options.gpu_count, 3);
	ck_assert_uint_eq(out.options.gpus[2], 2);
	load("2,0", SIM_PLUGIN);
	ck_assert_uint_eq(out.options.gpu_count, 2);
	ck_assert_uint_eq(out.options.gpus[0], 2);
	ck_assert_uint_eq(out.options.gpus[1], 0);
	ck_assert_uint_eq(out.options.gpu_pinned_milli, 750);
}
END_TEST

static struct cache *make(void)
{
	const char *why = "";
	struct cache *c;

	out.options.disk_count = 0;
	out.options.host_bytes = 16 << 20;
	out.options.gpu_bytes = 16 << 20;
	ck_assert_msg(cache_create(&out.options, 1, &c, &why) == STATUS_OK, "%s", why);
	return c;
}

/* What the log says of the GPUs, now. */
static const char *logged(struct gpu_log *log, struct cache *c)
{
	const int err = dup(STDERR_FILENO), memory = memfd_create("log", 0);
	static char text[4096];
	ssize_t n;

	dup2(memory, STDERR_FILENO);
	gpu_log_look(log, c);
	dup2(err, STDERR_FILENO);
	n = pread(memory, text, sizeof(text) - 1, 0);
	ck_assert_int_ge(n, 0);
	text[n] = 0;
	close(err);
	close(memory);
	return text;
}

static void no_wake(void *arg)
{
	(void)arg;
}

static void count_row(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	(void)counter;
	(void)help;
	*(uint32_t *)arg += !strcmp(name, "terrace_gpu_lost") && !strncmp(labels, "gpu=", 4) && value == 1;
}

/* Every call that names a GPU that was not opened is refused with the reason, and changes nothing. */
static void calls_on_gpu(struct cache *c, uint64_t session, const struct cache_on *on, uint64_t now)
{
	const struct cache_keys key = { (const uint8_t *)"key", 1, 3 };
	struct cache_wait wait = { .ready = no_wake };
	struct cache_leased leased;
	struct cache_place place;
	struct cache_lent lent;
	enum status status;
	uint64_t reservation;
	uint32_t blocks = 0, extent;
	const char *why = "";
	bool more = true;

	ck_assert_int_eq(cache_lease(c, &(struct cache_lease_call){ .session = session, .keys = &key,
			.all = true, .on = on, .now_us = now, .places = &place, .places_max = 1 }, &leased,
				     NULL, &why), STATUS_UNAVAILABLE);
	ck_assert_str_eq(why, "the GPU is lost");
	ck_assert_int_eq(cache_warm(c, &(struct cache_warm_call){ .session = session, .keys = &key,
			.gpu = on->gpu, .now_us = now }, &wait, &blocks, &why), STATUS_UNAVAILABLE);
	cache_wait_end(c, &wait);
	ck_assert_int_eq(cache_reserve(c, &(struct cache_reserve_call){ .session = session, .keys = &key,
			.on = on, .may_grow = true, .now_us = now, .statuses = &status,
			.reservations = &reservation, .places = &place, .places_max = 1 }, &why),
			 STATUS_UNAVAILABLE);
	ck_assert_int_eq(cache_attach_premap(c, on->attachment, on->gpu), STATUS_OK);
	ck_assert_uint_eq(cache_attach_offers(c, on->attachment, on->gpu, &extent, 1, &more), 0);
	ck_assert(!more);
	ck_assert_int_ne(cache_attach_lend(c, on->attachment, ((uint32_t)on->gpu + 1) << 24, false, &lent), STATUS_OK);
}

/* What needs no GPU is served, and what looks after all GPUs passes over those. */
static void lives_on(struct cache *c, const struct cache_session_view *session)
{
	const struct cache_keys key = { (const uint8_t *)"key", 1, 3 };
	struct cache_explained explained;
	struct cache_leased leased;
	struct cache_place place;
	struct cache_lent progress_page;
	struct cache_on on = { .gpu = 1 };
	const char *why = "";
	uint32_t rows = 0, n;
	uint64_t own;

	ck_assert_int_eq(cache_attach(c, session->token, getpid(), 1, &on.attachment, &own, &why), STATUS_OK);
	ck_assert_int_eq(cache_attach_lend(c, on.attachment, CACHE_EXTENT_PROGRESS_PAGE, false, &progress_page),
	    STATUS_OK);
	close(progress_page.fd);
	for (uint64_t now = 100000; now < 5000000; now += 250000) {
		cache_tick(c, now);
		cache_chores(c);
		cache_disk_chores(c);
		calls_on_gpu(c, session->id, &on, now);
	}
	on.or_host = true;
	ck_assert_int_eq(cache_lease(c, &(struct cache_lease_call){ .session = session->id, .keys = &key,
			.all = true, .on = &on, .now_us = 6000000, .places = &place, .places_max = 1 }, &leased,
				     NULL, &why), STATUS_OK);
	ck_assert_int_eq(cache_release(c, session->id, leased.lease), STATUS_OK);
	ck_assert_int_eq(cache_explain(c, &(struct cache_block_name){ .tenant = "", .key = key.bytes,
			.key_bytes = 3 }, 6000000, &explained, 1, &n, &why), STATUS_OK);
	ck_assert_uint_eq(n, 1);
	cache_stats(c, 6000000, count_row, &rows);
	ck_assert_uint_eq(rows, 2);
	ck_assert(cache_settle(c, 0, NULL));
}

/* Why there is no CUDA, and who is named: all of them are lost from the beginning, and memory serves. */
START_TEST(named_and_no_cuda)
{
	static const struct {
		const char *plugin, *devices, *reason;
	} cases[] = {
		{ "/nowhere/libterrace_cuda.so.0", "1", "/nowhere/libterrace_cuda.so.0" },
		{ NOT_A_PLUGIN, "1", "not of this version" },
		{ SIM_PLUGIN, "0", "no GPU, or no driver for it" },
	};
	struct kv_layout layout = {
		.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16, .k_format = KV_TQ4, .v_format = KV_TQ4,
		.rotation_version = KV_ROTATION_VERSION, .codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
	struct gpu_log log = { .begun = false };
	struct cache_session_view session;
	struct cache_gpu_view views[2];
	const char *why = "", *line;
	struct cache_write w;
	struct cache *c;

	setenv("SIM_GPU_DEVICES", cases[_i].devices, 1);
	load("1,0", cases[_i].plugin);
	cache_thread_enter();
	c = make();
	ck_assert_uint_eq(cache_gpus(c, views, 2), 2);
	ck_assert(views[0].lost && views[1].lost);
	ck_assert_ptr_nonnull(strstr(views[1].why, cases[_i].reason));
	ck_assert(cache_degraded(c));
	line = logged(&log, c);
	ck_assert_ptr_nonnull(strstr(line, "gpu_lost"));
	ck_assert_ptr_nonnull(strstr(line, "ordinal=1"));
	ck_assert_ptr_nonnull(strstr(line, cases[_i].reason));
	ck_assert_ptr_nonnull(strstr(line, "left out of gpus"));
	ck_assert_str_eq(logged(&log, c), "");
	ck_assert_int_eq(cache_session_open(c, &(struct cache_open_call){ .tenant = "", .layouts = &layout,
			.layout_count = 1, .engine = "test", .now_us = 1 }, &session, &why), STATUS_OK);
	ck_assert_int_eq(cache_write_begin(c, &(struct cache_stream_call){ .session = session.id,
			.key = (const uint8_t *)"key", .key_bytes = 3, .now_us = 1 }, &w, &why), STATUS_OK);
	ck_assert_int_eq(cache_write_end(c, session.id, &w, true, 1, 1), STATUS_OK);
	lives_on(c, &session);
	cache_destroy(c);
	cache_thread_leave();
}
END_TEST

/* One that is not there is lost from the beginning, and the others serve. */
START_TEST(one_that_is_not_there)
{
	struct gpu_log log = { .begun = false };
	struct cache_gpu_view views[2];
	struct cache *c;

	setenv("SIM_GPU_DEVICES", "1", 1);
	load("7,0", SIM_PLUGIN);
	cache_thread_enter();
	c = make();
	ck_assert_uint_eq(cache_gpus(c, views, 2), 2);
	ck_assert(views[0].lost && *views[0].why);
	ck_assert(!views[1].lost);
	ck_assert_uint_eq(views[1].bytes, 16 << 20);
	ck_assert(cache_degraded(c));
	gpu_log_look(&log, c);
	ck_assert(log.begun && log.lost[0] && !log.lost[1]);
	cache_destroy(c);
	cache_thread_leave();
}
END_TEST

/* Nobody would know else why copies of small blocks are slow: said once, with the reason, and only of the GPU that it is so of. */
START_TEST(lists_by_engines_alone)
{
	struct gpu_log log = { .begun = false };
	struct cache_gpu_view view;
	const char *line;
	struct cache *c;

	setenv("SIM_GPU_DEVICES", "1", 1);
	if (_i)
		setenv("SIM_GPU_NO_KERNEL", "1", 1);
	load("0", SIM_PLUGIN);
	log_setup(LOG_WARN, LOG_LOGFMT);
	cache_thread_enter();
	c = make();
	ck_assert_uint_eq(cache_gpus(c, &view, 1), 1);
	ck_assert(!view.lost && !cache_degraded(c));
	line = logged(&log, c);
	if (_i) {
		ck_assert_ptr_nonnull(strstr(line, "gpu_no_copy_kernel"));
		ck_assert_ptr_nonnull(strstr(line, "ordinal=0"));
		ck_assert_ptr_nonnull(strstr(line, view.no_kernel));
		ck_assert_ptr_nonnull(strstr(line, "no such code"));
		ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
	} else {
		ck_assert_str_eq(line, "");
	}
	ck_assert_str_eq(logged(&log, c), "");
	cache_destroy(c);
	cache_thread_leave();
}
END_TEST

/* That what is put on a GPU gets no checksums there is said once. */
START_TEST(no_sums_at_the_commit)
{
	struct gpu_log log = { .begun = false };
	const char *line;
	struct cache *c;

	setenv("SIM_GPU_DEVICES", "1", 1);
	setenv("SIM_GPU_NO_SUMS", "1", 1);
	load("0", SIM_PLUGIN);
	log_setup(LOG_WARN, LOG_LOGFMT);
	cache_thread_enter();
	c = make();
	line = logged(&log, c);
	ck_assert_ptr_nonnull(strstr(line, "gpu_commit_unsummed"));
	ck_assert_ptr_nonnull(strstr(line, "ordinal=0"));
	ck_assert_ptr_nonnull(strstr(line, "no code for sums"));
	ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
	ck_assert_str_eq(logged(&log, c), "");
	cache_destroy(c);
	cache_thread_leave();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("daemon_gpus");
	TCase *t = tcase_create("daemon_gpus");
	SRunner *r;
	int failed;

	tcase_add_test(t, without_cuda_there_are_none);
	tcase_add_test(t, those_that_are_named);
	tcase_add_loop_test(t, named_and_no_cuda, 0, 3);
	tcase_add_test(t, one_that_is_not_there);
	tcase_add_loop_test(t, lists_by_engines_alone, 0, 2);
	tcase_add_test(t, no_sums_at_the_commit);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
