/* Lists of checksums on a device that is none: a thread of its own, a list after the other; see sim/device.h. The sums are computed by tables that
 * are made here, not by the daemon's code, which they are compared with. */
#include "tests/sim/private.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLICES = 8, HELD_POLL_NS = 200000 };

static uint32_t table[SLICES][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_make(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t r = i;

		for (int bit = 0; bit < 8; bit++)
			r = r & 1 ? (r >> 1) ^ 0x82f63b78u : r >> 1;
		table[0][i] = r;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (uint32_t k = 1; k < SLICES; k++)
			table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255];
}

static uint32_t sum_of(const uint8_t *at, uint64_t bytes)
{
	uint32_t r = UINT32_MAX;

	for (; bytes >= SLICES; bytes -= SLICES, at += SLICES) {
		uint32_t next = 0;

		for (uint32_t i = 0; i < SLICES; i++)
			next ^= table[SLICES - 1 - i][(at[i] ^ (i < 4 ? r >> (8 * i) : 0)) & 255];
		r = next;
	}
	for (; bytes; bytes--)
		r = (r >> 8) ^ table[0][(*at++ ^ r) & 255];
	return ~r;
}

static bool is_held(const struct device *d)
{
	return d->sums_hold_file[0] && access(d->sums_hold_file, F_OK) == 0;
}

/* OK, or why it ends. */
static enum status list_run(struct device *d, const struct device_sums *s)
{
	while (is_held(d) && !d->closing && !sim_lost(d->ordinal, d->lost_file))
		nanosleep(&(struct timespec){ .tv_nsec = HELD_POLL_NS }, NULL);
	for (uint32_t i = 0; i < s->count * s->parts; i++) {
		const uint8_t *at = sim_at(s->at[i / s->parts]);

		if (sim_lost(d->ordinal, d->lost_file))
			return STATUS_UNAVAILABLE;
		if (d->closing)
			return STATUS_CANCELLED;
		s->sums[i] = sum_of(at + i % s->parts * s->part_bytes, s->part_bytes);
	}
	return STATUS_OK;
}

static void *sums_run(void *device)
{
	struct device *d = device;
	struct device_sums *s;

	pthread_mutex_lock(&d->mutex);
	for (;;) {
		while (!d->sums_first && !d->closing)
			pthread_cond_wait(&d->sums_more, &d->mutex);
		s = d->sums_first;
		if (!s)
			break;
		d->sums_first = s->next;
		if (!s->next)
			d->sums_last = &d->sums_first;
		pthread_mutex_unlock(&d->mutex);
		s->done(s, list_run(d, s));
		pthread_mutex_lock(&d->mutex);
	}
	pthread_mutex_unlock(&d->mutex);
	return NULL;
}

/* Mutex held. */
static const char *list_problem(const struct device *d, const struct device_sums *s)
{
	if (!s->count || !s->parts || !s->part_bytes || s->part_bytes > DEVICE_SUMS_PART_MAX || s->parts > DEVICE_SUMS_MAX ||
	    s->count > DEVICE_SUMS_MAX / s->parts)
		return "a list of sums with numbers that are not allowed";
	for (uint32_t i = 0; i < s->count; i++) {
		const struct sim_region *r = sim_region_of(d, s->at[i], s->parts * s->part_bytes);

		if (s->at[i] % DEVICE_COPY_ALIGN || !r || r->kind == SIM_HOST)
			return "a sum of what is not the device's memory, or not aligned";
	}
	return NULL;
}

enum status sim_sums(struct device *d, struct device_sums *s, const char **why)
{
	enum status status = STATUS_OK;
	const char *problem;

	pthread_once(&table_once, table_make);
	if (sim_lost(d->ordinal, d->lost_file))
		return sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is lost");
	pthread_mutex_lock(&d->mutex);
	problem = list_problem(d, s);
	if (!d->sums_started && !d->closing)
		d->sums_started = pthread_create(&d->sums_thread, NULL, sums_run, d) == 0;
	if (problem) {
		status = sim_refuse(STATUS_INVALID, why, problem);
	} else if (d->closing) {
		status = sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is being closed");
	} else if (!d->sums_started) {
		status = sim_refuse(STATUS_EXHAUSTED, why, "no thread");
	} else {
		s->next = NULL;
		*d->sums_last = s;
		d->sums_last = &s->next;
		pthread_cond_signal(&d->sums_more);
	}
	pthread_mutex_unlock(&d->mutex);
	return status;
}

void sim_sums_end(struct device *d)
{
	pthread_mutex_lock(&d->mutex);
	d->closing = true;
	pthread_cond_signal(&d->sums_more);
	pthread_mutex_unlock(&d->mutex);
	if (d->sums_started)
		pthread_join(d->sums_thread, NULL);
}
