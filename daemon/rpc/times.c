/* See rpc/times.h. */
#include "daemon/rpc/times.h"

#include "daemon/block/lock.h"
#include "daemon/process/daemon.h"

#include <stdio.h>

enum { SHORT_BUCKET = 10 };            /* of calls of up to 1,024 us the steps are summed up in one row */

static const char *const step_names[CALL_STEPS] = {
	[STEP_QUEUED] = "queued", [STEP_LOCK] = "lock", [STEP_DISK] = "disk",
	[STEP_WAKE] = "wake",	  [STEP_COPY] = "copy", [STEP_WORK] = "work",
};

static uint64_t since(uint64_t then, uint64_t now)
{
	return now > then ? now - then : 0;
}

void call_step_begin(struct call_times *t, uint64_t now_us)
{
	const uint64_t woken_us = atomic_load_explicit(&t->woken_us, memory_order_relaxed);

	t->lock_us = cache_lock_waited_us();
	t->running = true;
	if (t->queued_us)
		t->us[STEP_QUEUED] += since(t->queued_us, now_us);
	if (t->slept_us) {
		t->us[STEP_DISK] += since(t->slept_us, woken_us ? woken_us : now_us);
		/* the way through a worker's queue is told apart above */
		t->us[STEP_WAKE] += woken_us ? since(woken_us, t->queued_us ? t->queued_us : now_us) : 0;
	}
	t->queued_us = t->slept_us = 0;
	if (woken_us)
		atomic_store_explicit(&t->woken_us, 0, memory_order_relaxed);
}

void call_step_end(struct call_times *t)
{
	if (t->running)
		t->us[STEP_LOCK] += since(t->lock_us, cache_lock_waited_us());
	t->running = false;
}

void call_step_sleeps(struct call_times *t)
{
	call_step_end(t);
	t->slept_us = daemon_now_us();
}

void call_step_woken(struct call_times *t)
{
	atomic_store_explicit(&t->woken_us, daemon_now_us(), memory_order_relaxed);
}

void call_step_queued(struct call_times *t)
{
	call_step_end(t);
	if (!t->queued_us)
		t->queued_us = daemon_now_us();
}

/* Without the waits for the lock, which are a step of their own. */
uint64_t call_copy_begin(void)
{
	return daemon_now_us() - cache_lock_waited_us();
}

void call_copy_end(struct call_times *t, uint64_t begun)
{
	t->us[STEP_COPY] += since(begun, call_copy_begin());
}

void method_times_add(struct method_times *m, struct way_times *w, struct call_times *t, enum status s,
		      uint64_t began_us)
{
	const uint64_t took = since(began_us, daemon_now_us());
	const uint32_t bucket = histogram_bucket(took);
	uint64_t left = took;

	call_step_end(t);
	atomic_fetch_add_explicit(&m->by_status[s], 1, memory_order_relaxed);
	histogram_add(&m->took, took);
	if (!w)
		return;
	for (enum call_step i = 0; i < STEP_WORK; i++) {
		if (!t->us[i])
			continue;
		histogram_add(&w->step[i], t->us[i]);
		atomic_fetch_add_explicit(&w->us[bucket][i], t->us[i], memory_order_relaxed);
		left = since(t->us[i], left);
	}
	histogram_add(&w->step[STEP_WORK], left);
	atomic_fetch_add_explicit(&w->us[bucket][STEP_WORK], left, memory_order_relaxed);
}

void method_times_emit(const struct method_times *m, const char *name, const char *way, cache_stat_fn *emit,
		       void *arg)
{
	char labels[96];

	for (int i = 0; i < STATUS_COUNT; i++) {
		const unsigned long long calls = atomic_load_explicit(&m->by_status[i], memory_order_relaxed);

		if (!calls)
			continue;
		snprintf(labels, sizeof labels, "method=%s,status=%s%s", name, status_name((enum status)i), way);
		emit(arg, "terrace_rpc_calls_total", labels, (double)calls, true, "calls that have ended");
	}
	snprintf(labels, sizeof labels, "method=%s%s", name, way);
	histogram_emit(&m->took, "terrace_rpc_seconds", labels, "time from a call's arrival to its answer", emit, arg);
}

/* A row has the calls that took longer than `over`, and at most twice as long; all short ones are one row. */
static void lengths_emit(const struct way_times *w, enum call_step step, const char *way, cache_stat_fn *emit,
			 void *arg)
{
	char labels[96];
	uint64_t us = 0;

	for (uint32_t n = 0; n < HISTOGRAM_BUCKETS; n++) {
		us += atomic_load_explicit(&w->us[n][step], memory_order_relaxed);
		if (n < SHORT_BUCKET || !us)
			continue;
		snprintf(labels, sizeof labels, "over=%g,step=%s%s",
			 n == SHORT_BUCKET ? 0 : (double)(1ull << (n - 1)) / 1e6, step_names[step], way);
		emit(arg, "terrace_rpc_step_seconds_by_length_total", labels, (double)us / 1e6, true,
		     "time of a step in calls that took longer than that, and at most twice as long");
		us = 0;
	}
}

void way_times_emit(const struct way_times *w, const char *way, cache_stat_fn *emit, void *arg)
{
	char labels[96];

	for (enum call_step i = 0; i < CALL_STEPS; i++) {
		snprintf(labels, sizeof labels, "step=%s%s", step_names[i], way);
		histogram_emit(&w->step[i], "terrace_rpc_step_seconds", labels,
			       "time of calls by what they do or wait for", emit, arg);
		lengths_emit(w, i, way, emit, arg);
	}
}
