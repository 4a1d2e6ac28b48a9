/* Lists of copies on a device that is none: a thread a way, lists of one way in their order, in parts; see sim/device.h. */
#include "tests/sim/private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HELD_POLL_NS = 200000, SLEEP_NS_MIN = 200000 };

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
	nanosleep(&(struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 }, NULL);
}

static _Noreturn void stop(const char *what, uint64_t address)
{
	fprintf(stderr, "simulated device: a copy %s %#llx\n", what, (unsigned long long)address);
	abort();
}

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

/* Whether a side of a copy is where its way says; d->mutex held for memory of this device. */
static void side_check(const struct device *d, uint64_t address, uint64_t bytes, bool host, bool write)
{
	const struct sim_region *r = sim_region_of(d, address, bytes);

	if (!r)
		stop(write ? "to where nothing is mapped:" : "from where nothing is mapped:", address);
	if ((r->kind == SIM_HOST) != host)
		stop("the wrong way:", address);
	if (write && !r->write)
		stop("to what may only be read:", address);
}

static void pair_check(struct device *d, const struct device_pair *p, uint64_t bytes, enum device_way way)
{
	bool from_here = true, to_here = true;

	if (way == DEVICE_ACROSS) { /* one side may be another device's */
		from_here = !sim_elsewhere(d, p->from, bytes, false);
		to_here = !sim_elsewhere(d, p->to, bytes, true);
	}
	pthread_mutex_lock(&d->mutex);
	if (from_here)
		side_check(d, p->from, bytes, way == DEVICE_UP, false);
	if (to_here)
		side_check(d, p->to, bytes, way == DEVICE_DOWN, true);
	pthread_mutex_unlock(&d->mutex);
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* No memory: not looked at. */
static void overlap_check(const struct device_copy *c)
{
	uint64_t *to = malloc(c->count * sizeof(*to));

	if (!to)
		return;
	for (uint32_t i = 0; i < c->count; i++)
		to[i] = c->pairs[i].to;
	qsort(to, c->count, sizeof(*to), by_number);
	for (uint32_t i = 1; i < c->count; i++)
		if (to[i] - to[i - 1] < c->parts * c->part_bytes)
			stop("to one place twice:", to[i]);
	free(to);
}

static const char *list_problem(const struct device_copy *c)
{
	if (c->count == 0 || c->parts == 0 || c->part_bytes == 0 || c->part_bytes % DEVICE_COPY_ALIGN != 0 ||
	    c->part_bytes > SIM_MARK / c->parts || (unsigned int)c->way > DEVICE_ACROSS || c->progress % 4 != 0)
		return "a list of copies with numbers that are not allowed";
	for (uint32_t i = 0; i < c->count; i++)
		if ((c->pairs[i].from | c->pairs[i].to) % DEVICE_COPY_ALIGN != 0)
			return "a copy from or to an address that is not aligned";
	return NULL;
}

static void list_check(struct device *d, const struct device_copy *c)
{
	for (uint32_t i = 0; i < c->count; i++)
		pair_check(d, &c->pairs[i], c->parts * c->part_bytes, c->way);
	overlap_check(c);
	if (c->progress) {
		pthread_mutex_lock(&d->mutex);
		side_check(d, c->progress, 4, true, true);
		pthread_mutex_unlock(&d->mutex);
	}
}

/* ---- the copying ------------------------------------------------------------------------------------------------- */

/* The part before which lists stop; UINT32_MAX: none. */
static uint32_t held_part(const struct device *d)
{
	char text[16] = "";
	ssize_t n;
	int fd;

	if (!d->hold_file[0])
		return UINT32_MAX;
	fd = open(d->hold_file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return UINT32_MAX;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* OK, or why the list ends. */
static enum status may_go_on(struct device *d)
{
	if (sim_lost(d->ordinal, d->lost_file))
		return STATUS_UNAVAILABLE;
	return d->closing && now_ns() > d->close_by_ns ? STATUS_CANCELLED : STATUS_OK;
}

static enum status wait_while_held(struct device *d, uint32_t part)
{
	enum status s = may_go_on(d);

	while (s == STATUS_OK && held_part(d) <= part) {
		sleep_ns(HELD_POLL_NS);
		s = may_go_on(d);
	}
	return s;
}

/* One part of every pair; `lose`: the device is lost on the way. */
static enum status copy_part(struct device *d, const struct device_copy *c, uint32_t part, bool lose, int64_t *debt_ns)
{
	enum status s = STATUS_OK;

	for (uint32_t i = 0; i < c->count && s == STATUS_OK; i++) {
		uint64_t at = part * c->part_bytes;

		if (lose && i == c->count / 2)
			sim_lose(d);
		else
			memcpy((uint8_t *)sim_at(c->pairs[i].to) + at, (uint8_t *)sim_at(c->pairs[i].from) + at, c->part_bytes);
		*debt_ns += (int64_t)(c->part_bytes * d->us_per_mib * 1000 >> 20);
		if (*debt_ns >= SLEEP_NS_MIN) {
			int64_t since_ns = now_ns();

			sleep_ns(*debt_ns);
			*debt_ns -= now_ns() - since_ns; /* a busy machine sleeps longer: the rest of the list makes up for it */
			s = may_go_on(d);
		}
	}
	return s == STATUS_OK ? may_go_on(d) : s;
}

static enum status list_run(struct device *d, const struct device_copy *c)
{
	bool lose = d->lost_after && ++d->copies == d->lost_after + 1;
	_Atomic uint32_t *word = c->progress ? sim_at(c->progress) : NULL;
	int64_t debt_ns = 0;

	for (uint32_t part = 0; part < c->parts; part++) {
		enum status s = wait_while_held(d, part);

		if (s == STATUS_OK)
			s = copy_part(d, c, part, lose && part == c->parts / 2, &debt_ns);
		if (s != STATUS_OK)
			return s;
		if (word)
			atomic_store_explicit(word, c->progress_base + part + 1, memory_order_release);
	}
	return STATUS_OK;
}

/* ---- the queues -------------------------------------------------------------------------------------------------- */

static struct device_copy *next_list(struct sim_way *w)
{
	struct device_copy *c;

	while (!w->first && !w->device->closing)
		pthread_cond_wait(&w->more, &w->device->mutex);
	c = w->first;
	if (c) {
		w->first = c->next;
		if (!w->first)
			w->last = &w->first;
	}
	return c;
}

static void *way_run(void *way)
{
	struct sim_way *w = way;
	struct device *d = w->device;
	struct device_copy *c;

	pthread_mutex_lock(&d->mutex);
	while ((c = next_list(w)) != NULL) {
		bool cancelled = d->closing;

		pthread_mutex_unlock(&d->mutex);
		if (sim_lost(d->ordinal, d->lost_file))
			c->done(c, STATUS_UNAVAILABLE);
		else
			c->done(c, cancelled ? STATUS_CANCELLED : list_run(d, c));
		pthread_mutex_lock(&d->mutex);
	}
	pthread_mutex_unlock(&d->mutex);
	return NULL;
}

/* Mutex held. */
static bool way_start(struct sim_way *w)
{
	if (!w->started)
		w->started = pthread_create(&w->thread, NULL, way_run, w) == 0;
	return w->started;
}

enum status sim_copy(struct device *d, struct device_copy *c, const char **why)
{
	const char *problem = list_problem(c);
	enum status s = STATUS_OK;
	struct sim_way *w;

	if (sim_lost(d->ordinal, d->lost_file))
		return sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is lost");
	if (problem)
		return sim_refuse(STATUS_INVALID, why, problem);
	list_check(d, c);
	w = &d->ways[c->way];
	pthread_mutex_lock(&d->mutex);
	if (d->closing) {
		s = sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is being closed");
	} else if (!way_start(w)) {
		s = sim_refuse(STATUS_EXHAUSTED, why, "no thread");
	} else {
		c->next = NULL;
		*w->last = c;
		w->last = &c->next;
		pthread_cond_signal(&w->more);
	}
	pthread_mutex_unlock(&d->mutex);
	return s;
}

void sim_copy_end(struct device *d)
{
	pthread_mutex_lock(&d->mutex);
	d->close_by_ns = now_ns() + SIM_CLOSE_WAIT_S * 1000000000ll;
	d->closing = true;
	for (uint32_t i = 0; i < SIM_WAYS; i++)
		pthread_cond_signal(&d->ways[i].more);
	pthread_mutex_unlock(&d->mutex);
	for (uint32_t i = 0; i < SIM_WAYS; i++)
		if (d->ways[i].started)
			pthread_join(d->ways[i].thread, NULL);
}
