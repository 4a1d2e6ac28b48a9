/* What streams (sim/stream.h) wait for, and what they tell, on a device that is none. */
#include "tests/sim/private.h"
#include "tests/sim/stream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_NS = 50000 };

struct wait {
	_Atomic uint32_t *word;
	uint32_t value, ordinal;
	char lost_file[sizeof(((struct device *)0)->lost_file)]; /* the device may be closed before the stream gets here */
};

static _Atomic uint32_t waits; /* of the process's streams */

bool sim_streams_wait(void)
{
	return waits > 0;
}

struct call {
	void (*call)(void *arg);
	void *arg;
};

/* As on a GPU: it ends when the word says so, or with the GPU. */
static enum status wait_run(void *arg, bool failed)
{
	struct wait *w = arg;
	enum status s = STATUS_OK;

	while (!failed && s == STATUS_OK && (int32_t)(atomic_load_explicit(w->word, memory_order_acquire) - w->value) < 0) {
		nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
		if (sim_lost(w->ordinal, w->lost_file))
			s = STATUS_UNAVAILABLE;
	}
	free(w);
	waits--;
	return s;
}

enum status sim_stream_wait(struct device *d, void *stream, uint64_t word, uint32_t value, const char **why)
{
	const struct sim_region *r;
	struct wait *w;

	if (sim_lost(d->ordinal, d->lost_file))
		return sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is lost");
	pthread_mutex_lock(&d->mutex);
	r = sim_region_of(d, word, 4);
	pthread_mutex_unlock(&d->mutex);
	if (!r || r->kind != SIM_HOST || word % 4 != 0)
		return sim_refuse(STATUS_INVALID, why, "the word is not in registered memory");
	w = malloc(sizeof(*w));
	if (!w)
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory");
	*w = (struct wait){ .word = sim_at(word), .value = value, .ordinal = d->ordinal };
	memcpy(w->lost_file, d->lost_file, sizeof(w->lost_file));
	waits++;
	if (sim_stream_put(stream, wait_run, w))
		return STATUS_OK;
	waits--;
	free(w);
	return sim_refuse(STATUS_INVALID, why, "no stream of the simulated device");
}

static enum status call_run(void *arg, bool failed)
{
	struct call *c = arg;

	if (!failed)
		c->call(c->arg);
	free(c);
	return STATUS_OK;
}

enum status sim_stream_then(struct device *d, void *stream, void (*call)(void *arg), void *arg, const char **why)
{
	struct call *c;

	if (sim_lost(d->ordinal, d->lost_file))
		return sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is lost");
	c = malloc(sizeof(*c));
	if (!c)
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory");
	*c = (struct call){ call, arg };
	if (sim_stream_put(stream, call_run, c))
		return STATUS_OK;
	free(c);
	return sim_refuse(STATUS_INVALID, why, "no stream of the simulated device");
}
