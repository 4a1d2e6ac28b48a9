/* Counts and times of the mixed load's engines; see mixed_tally.h. */
#include "tests/fault/mixed_tally.h"

#include "store/device.h"

#include "terrace.h"

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
static const char *const where_names[] = { TALLY_WHERES(TALLY_NAME) };
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

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* What an engine's library asks of it. */
#define DRIVER_CALLS(X) X(lost) X(range_reserve) X(extent_import) X(extent_drop) X(host_register) X(host_unregister) X(stream_wait) X(stream_then)
enum driver_call {
#define DRIVER_ENUM(name) DRIVER_##name,
	DRIVER_CALLS(DRIVER_ENUM)
#undef DRIVER_ENUM
};
static const char *const driver_names[] = {
#define DRIVER_NAME(name) #name,
	DRIVER_CALLS(DRIVER_NAME)
#undef DRIVER_NAME
};

static struct {
	struct device_ops own;    /* the driver's, */
	struct device_ops timed;  /* and these around them */
	_Atomic uint64_t us, longest_us, longest; /* since a call of the engine's began */
} driver;

static void driver_took(enum driver_call which, uint64_t began_ns)
{
	const uint64_t us = (now_ns() - began_ns) / 1000;

	driver.us += us;
	if (us > driver.longest_us) {
		driver.longest_us = us;
		driver.longest = which;
	}
}

/* A function of the table, around that of the driver's. */
#define TIMED_DRIVER(type, name, parameters, arguments)                                                                             \
	static type timed_##name parameters                                                                                          \
	{                                                                                                                            \
		const uint64_t began_ns = now_ns();                                                                                  \
		type said = driver.own.name arguments;                                                                               \
		driver_took(DRIVER_##name, began_ns);                                                                                \
		return said;                                                                                                         \
	}
#define TIMED_DRIVER_VOID(name, parameters, arguments)                                                                              \
	static void timed_##name parameters                                                                                          \
	{                                                                                                                            \
		const uint64_t began_ns = now_ns();                                                                                  \
		driver.own.name arguments;                                                                                           \
		driver_took(DRIVER_##name, began_ns);                                                                                \
	}
TIMED_DRIVER(bool, lost, (struct device *d), (d))
TIMED_DRIVER(enum status, range_reserve, (struct device *d, uint64_t bytes, uint64_t *at, const char **why), (d, bytes, at, why))
TIMED_DRIVER(enum status, extent_import,
	     (struct device *d, int fd, uint64_t at, uint64_t bytes, bool write, struct device_extent *out, const char **why),
	     (d, fd, at, bytes, write, out, why))
TIMED_DRIVER_VOID(extent_drop, (struct device *d, const struct device_extent *e), (d, e))
TIMED_DRIVER(enum status, host_register,
	     (struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why),
	     (d, memory, bytes, write, address, why))
TIMED_DRIVER_VOID(host_unregister, (struct device *d, void *memory), (d, memory))
TIMED_DRIVER(enum status, stream_wait, (struct device *d, void *stream, uint64_t word, uint32_t value, const char **why),
	     (d, stream, word, value, why))
TIMED_DRIVER(enum status, stream_then, (struct device *d, void *stream, void (*call)(void *), void *arg, const char **why),
	     (d, stream, call, arg, why))

const struct device_ops *tally_driver(const struct device_ops *ops)
{
	driver.own = driver.timed = *ops;
#define DRIVER_SET(name) driver.timed.name = timed_##name;
	DRIVER_CALLS(DRIVER_SET)
#undef DRIVER_SET
	return &driver.timed;
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
	driver.us = driver.longest_us = driver.longest = 0;
	stalls.began_ns = stalled_ns();
	t->since_ns = now_ns();
}

void tally_about(struct tally *t, uint32_t keys, enum tally_where where)
{
	t->keys = keys;
	t->where = where;
}

static void late(struct tally *t, uint64_t us, uint64_t own_us, uint32_t status)
{
	struct tally_late *l = &t->late[t->late_count < TALLY_LATE ? t->late_count : 0];

	for (int i = 0; t->late_count >= TALLY_LATE && i < TALLY_LATE; i++)
		l = t->late[i].own_us < l->own_us ? &t->late[i] : l;
	if (t->late_count < TALLY_LATE)
		t->late_count++;
	else if (l->own_us >= own_us)
		return;
	l->kind = t->kind;
	l->us = us;
	l->own_us = own_us;
	l->status = status;
	l->began_ns = t->since_ns;
	l->keys = t->keys;
	l->where = t->where;
	l->driver_us = driver.us;
	l->longest_us = driver.longest_us;
	l->longest = driver.longest;
}

void tally_end(struct tally *t, uint32_t status)
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
	if (own_us > TALLY_LATE_US)
		late(t, us, own_us, status);
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

/* Times by the clock that test_mixed.py has, too. */
static void print_late(const struct tally_late *l)
{
	printf("{\"call\": \"%s\", \"keys\": %" PRIu64 ", \"where\": \"%s\", \"status\": \"%s\", \"ms\": %.1f, \"own_ms\": %.1f, "
	       "\"began_s\": %.3f, \"driver_ms\": %.1f, \"longest\": \"%s\", \"longest_ms\": %.1f}",
	       call_names[l->kind], l->keys, where_names[l->where], terrace_status_text((enum terrace_status)l->status), (double)l->us / 1e3,
	       (double)l->own_us / 1e3, (double)l->began_ns / 1e9, (double)l->driver_us / 1e3, l->longest_us ? driver_names[l->longest] : "",
	       (double)l->longest_us / 1e3);
}

void tally_print(const struct tally *t)
{
	const uint64_t lates = t->late_count;

	uint64_t since = t->since_ns, kind = t->kind;

	printf("{\"calls\": {");
	for (uint32_t k = 0; k < CALL_KINDS; k++)
		print_call(t, k);
	printf("}, \"counts\": {");
	for (uint32_t k = 0; k < COUNT_KINDS; k++)
		printf("%s\"%s\": %" PRIu64, k ? ", " : "", count_names[k], t->counts[k]);
	printf("}, \"late\": [");
	for (uint64_t i = 0; i < lates; i++) {
		printf("%s", i ? ", " : "");
		print_late(&t->late[i]);
	}
	printf("], \"now\": {\"call\": \"%s\", \"ms\": %.3f}}\n", since ? call_names[kind] : "",
	       since ? (double)(now_ns() - since) / 1e6 : 0.0);
}
