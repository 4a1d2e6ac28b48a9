/* Counts and times of the mixed load's engines; see mixed_tally.h. */
#include "tests/fault/mixed_tally.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char *const call_names[] = {
#define TALLY_NAME(name, text) text,
	TALLY_CALLS(TALLY_NAME)
};
static const char *const count_names[] = { TALLY_COUNTS(TALLY_NAME) };
#undef TALLY_NAME

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- stalls ------------------------------------------------------------------------------------------------------ */

#define NAP_NS 10000000u

static struct {
	pthread_mutex_t lock;
	uint64_t sum_ns, due_ns;  /* of naps that have ended; when the one under way is to end, 0: there is none */
	uint64_t began_ns;        /* stalled_ns() when the call under way began; the caller's */
} stalls = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* So far, that of the nap under way too. */
static uint64_t stalled_ns(void)
{
	uint64_t now, ns;

	pthread_mutex_lock(&stalls.lock);
	now = now_ns();
	ns = stalls.sum_ns + (stalls.due_ns && now > stalls.due_ns ? now - stalls.due_ns : 0);
	pthread_mutex_unlock(&stalls.lock);
	return ns;
}

static void nap(uint64_t due_ns)
{
	const struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	uint64_t now;

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
		;
	pthread_mutex_lock(&stalls.lock);
	now = now_ns();
	stalls.sum_ns += now > due_ns ? now - due_ns : 0;
	stalls.due_ns = now + NAP_NS;
	pthread_mutex_unlock(&stalls.lock);
}

static void *naps(void *arg)
{
	for (;;)
		nap(stalls.due_ns); /* nobody else writes it */
	return arg;
}

bool tally_meter(void)
{
	pthread_t thread;

	stalls.due_ns = now_ns() + NAP_NS;
	return pthread_create(&thread, NULL, naps, NULL) == 0 && pthread_detach(thread) == 0;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

struct tally *tally_open(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct tally *t = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (ftruncate(fd, sizeof(*t)) == 0)
		t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return t == MAP_FAILED ? NULL : t;
}

void tally_begin(struct tally *t, enum tally_call kind)
{
	t->kind = kind;
	stalls.began_ns = stalled_ns();
	t->since_ns = now_ns();
}

void tally_end(struct tally *t)
{
	const uint64_t ns = now_ns() - t->since_ns, us = ns / 1000, kind = t->kind, stalled = stalled_ns() - stalls.began_ns;
	const uint64_t own_us = ns > stalled ? (ns - stalled) / 1000 : 0;
	uint32_t b = 0;

	while (b + 1 < TALLY_BUCKETS && us >= (uint64_t)TALLY_BUCKET_US << b)
		b++;
	t->buckets[kind][b]++;
	if (us > t->worst_us[kind])
		t->worst_us[kind] = us;
	if (own_us > t->own_us[kind])
		t->own_us[kind] = own_us;
	t->since_ns = 0;
}

void tally_add(struct tally *t, enum tally_count what, uint64_t n)
{
	t->counts[what] += n;
}

static void print_call(const struct tally *t, uint32_t kind)
{
	printf("%s\"%s\": {\"worst_ms\": %.3f, \"own_ms\": %.3f, \"histogram\": [", kind ? ", " : "", call_names[kind],
	       (double)t->worst_us[kind] / 1e3, (double)t->own_us[kind] / 1e3);
	for (uint32_t b = 0; b < TALLY_BUCKETS; b++)
		printf("%s%" PRIu64, b ? ", " : "", t->buckets[kind][b]);
	printf("]}");
}

void tally_print(const struct tally *t)
{
	uint64_t since = t->since_ns, kind = t->kind;

	printf("{\"calls\": {");
	for (uint32_t k = 0; k < CALL_KINDS; k++)
		print_call(t, k);
	printf("}, \"counts\": {");
	for (uint32_t k = 0; k < COUNT_KINDS; k++)
		printf("%s\"%s\": %" PRIu64, k ? ", " : "", count_names[k], t->counts[k]);
	printf("}, \"now\": {\"call\": \"%s\", \"ms\": %.3f}}\n", since ? call_names[kind] : "",
	       since ? (double)(now_ns() - since) / 1e6 : 0.0);
}
