/* What is made of a driver that has no memory, and which thread puts lists in: over the driver that is none (fake_driver.h), since a real
 * one cannot be asked for this. `driver_faults starved` and `driver_faults rests` are the parts that take some seconds. */
#include "tests/gpu/device_rig.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/fake_driver.h"

enum { SCATTERED = 900, PIECE = 4096, SETTLE_MS = 40 };

static const struct device_ops *ops;
static void (*memory)(int64_t copies, int64_t things);
static uint32_t (*copier)(void), (*kernels)(void), (*rows)(void);
static void (*late)(uint32_t ms);

static void load(void)
{
	const char *words;
	void *plugin;

	ops = rig_load(&words);
	CHECK(ops);
	plugin = dlopen("libterrace_cuda.so.0", RTLD_NOW | RTLD_NOLOAD);
	*(void **)&memory = dlsym(plugin, "fake_driver_memory");
	*(void **)&copier = dlsym(plugin, "fake_driver_copier");
	*(void **)&kernels = dlsym(plugin, "fake_driver_kernels");
	*(void **)&late = dlsym(plugin, "fake_driver_late");
	*(void **)&rows = dlsym(plugin, "fake_driver_rows");
	CHECK(memory && copier && kernels && late && rows);
}

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Up, to places at no equal distances. */
static struct rig_copy scattered(const struct device_rig *r, struct device_pair *pairs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		pairs[i] = (struct device_pair){ r->host_address + i * PIECE, r->range + i * PIECE };
	for (uint32_t i = count; i > 1; i--) {
		uint32_t other = (uint32_t)(rig_random() % i);
		uint64_t swapped = pairs[i - 1].to;

		pairs[i - 1].to = pairs[other].to;
		pairs[other].to = swapped;
	}
	return (struct rig_copy){ .list = { .pairs = pairs, .count = count, .parts = 1, .part_bytes = PIECE, .way = DEVICE_UP } };
}

static struct rig_copy neighbours(const struct device_rig *r, struct device_pair *pairs, uint32_t count, uint32_t parts)
{
	for (uint32_t i = 0; i < count; i++)
		pairs[i] = (struct device_pair){ r->host_address + i * PIECE, r->range + i * PIECE };
	return (struct rig_copy){ .list = { .pairs = pairs, .count = count, .parts = parts, .part_bytes = PIECE / parts, .way = DEVICE_UP,
					    .progress = r->words_address } };
}

static void expect_sound(struct device_rig *r)
{
	rig_fill(r->host, r->bytes / 2);
	EXPECT(rig_copy_one(r, DEVICE_UP, r->host_address, r->range, r->bytes / 2), STATUS_OK);
	EXPECT(rig_copy_one(r, DEVICE_ACROSS, r->range, r->range + r->bytes / 2, r->bytes / 2), STATUS_OK);
	EXPECT(rig_copy_one(r, DEVICE_DOWN, r->range + r->bytes / 2, r->host_address + r->bytes / 2, r->bytes / 2), STATUS_OK);
	CHECK(memcmp(r->host, r->host + r->bytes / 2, r->bytes / 2) == 0);
	CHECK(!ops->lost(r->device));
}

/* ---- no memory ----------------------------------------------------------------------------------------------------- */

/* An engine has filled the GPU before the first list of any way. */
static void test_full_after_open(void)
{
	struct device_rig r;

	rig_open(&r, ops, 0);
	memory(FAKE_DRIVER_ALWAYS, 0);
	expect_sound(&r);
	memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
	rig_close(&r);
}

/* Full before, too: it is not opened, and nothing is kept of the attempt. */
static void test_full_at_open(void)
{
	enum { MOST = 200 };
	struct device *d = NULL;
	enum status s = STATUS_EXHAUSTED;
	struct device_rig r;
	const char *why;
	int things = 0;

	for (; things < MOST && s == STATUS_EXHAUSTED; things++) {
		memory(FAKE_DRIVER_ALWAYS, things);
		s = ops->open(0, &d, &why);
		CHECK(s == STATUS_EXHAUSTED ? !d && *why : s == STATUS_OK);
	}
	CHECK(things > 2 && s == STATUS_OK);
	ops->close(d);
	memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
	rig_open(&r, ops, 0);
	expect_sound(&r);
	rig_close(&r);
}

/* Nothing of a list can be begun: its bringer gets it back, and may bring it again. */
static void test_refused(void)
{
	struct device_pair pairs[4];
	struct rig_copy c;
	struct device_rig r;

	rig_open(&r, ops, 0);
	for (enum device_way way = DEVICE_UP; way <= DEVICE_ACROSS; way++) {
		c = scattered(&r, pairs, 4);
		c.list.way = way;
		for (uint32_t i = 0; i < 4; i++)
			pairs[i] = (struct device_pair){ (way == DEVICE_UP ? r.host_address : r.range) + i * PIECE,
							 (way == DEVICE_DOWN ? r.host_address : r.range) + r.bytes / 2 + i * PIECE };
		memory(0, 0);
		CHECK(rig_try(&r, &c) == STATUS_EXHAUSTED && rig_try(&r, &c) == STATUS_EXHAUSTED);
		CHECK(!ops->lost(r.device));
		memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
		rig_begin(&r, &c);
		CHECK(rig_end(&c) == STATUS_OK);
	}
	expect_sound(&r);
	rig_close(&r);
}

/* Lists in the queue wait for memory, in their order. */
static void test_queue_waits(void)
{
	struct device_pair first[SCATTERED], second[1];
	struct rig_copy c[2];
	struct device_rig r;
	int ended;

	rig_open(&r, ops, 0);
	rig_fill(r.host, SCATTERED * PIECE);
	memory(0, 0);
	c[0] = scattered(&r, first, SCATTERED);
	c[1] = neighbours(&r, second, 1, 1);
	rig_begin(&r, &c[0]);
	rig_begin(&r, &c[1]);
	sleep_ms(SETTLE_MS);
	for (int i = 0; i < 2; i++)
		CHECK(sem_getvalue(&c[i].ended, &ended) == 0 && ended == 0);
	CHECK(atomic_load(&r.words[0]) == 0);
	memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
	for (int i = 0; i < 2; i++)
		CHECK(rig_end(&c[i]) == STATUS_OK);
	CHECK(atomic_load(&r.words[0]) == 1);
	expect_sound(&r);
	rig_close(&r);
}

/* The memory goes while a list is put in: it fails when what was begun of it has ended, and nothing is lost. By its bringer, and queued. */
static void test_in_part(void)
{
	struct device_pair pairs[SCATTERED];
	struct rig_copy c;
	struct device_rig r;

	rig_open(&r, ops, 0);
	for (int queued = 0; queued < 2; queued++) {
		c = scattered(&r, pairs, queued ? SCATTERED : 3);
		c.list.parts = 4;
		c.list.part_bytes = PIECE / 4;
		c.list.progress = r.words_address;
		atomic_store(&r.words[0], 0);
		memory(2, 0);
		rig_begin(&r, &c);
		CHECK(rig_end(&c) == STATUS_EXHAUSTED);
		CHECK(atomic_load(&r.words[0]) < 4);
		CHECK(!ops->lost(r.device));
		memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
		expect_sound(&r);
	}
	rig_close(&r);
}

/* The same of a list that the kernel and the engines share: what the kernel copies of it has ended, too. */
static void test_beside(void)
{
	enum { PIECES = 1024, BYTES = 16 << 10 };
	static struct device_pair pairs[PIECES];
	struct device_rig r;
	int failed = 0;
	enum status s = STATUS_EXHAUSTED;

	rig_open(&r, ops, PIECES * BYTES);
	for (; failed < 10 && s != STATUS_OK; failed++) {
		struct rig_copy c = scattered(&r, pairs, PIECES);

		for (uint32_t i = 0; i < PIECES; i++)
			pairs[i] = (struct device_pair){ r.host_address + (pairs[i].from - r.host_address) / PIECE * BYTES,
							 r.range + (pairs[i].to - r.range) / PIECE * BYTES };
		c.list.part_bytes = BYTES;
		memory(failed, FAKE_DRIVER_ALWAYS);
		rig_begin(&r, &c);
		if (failed == 0)
			sleep_ms(SETTLE_MS);
		else
			s = rig_end(&c);
		CHECK(s == STATUS_OK || s == STATUS_EXHAUSTED);
		CHECK(!ops->lost(r.device));
		memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
		if (failed == 0) /* nothing was begun: it has waited */
			CHECK(rig_end(&c) == STATUS_OK);
		expect_sound(&r);
	}
	CHECK(s == STATUS_OK && failed > 2);
	rig_close(&r);
}

struct passed {
	struct device_copy list;
	const _Atomic uint32_t *word;
	_Atomic uint32_t seen;
	sem_t ended;
};

static void look(struct device_copy *c, enum status s)
{
	struct passed *p = c->arg;

	CHECK(s == STATUS_EXHAUSTED);
	sleep_ms(1);
	atomic_store(&p->seen, atomic_load(p->word));
	sem_post(&p->ended);
}

/* What comes behind a list that failed in part has not begun when that is told: a progress word of the one says nothing of the other. */
static void test_none_passes(void)
{
	struct device_pair pairs[4], behind[1];
	struct device_rig r;

	rig_open(&r, ops, 0);
	for (int round = 0; round < 50; round++) {
		struct rig_copy a = scattered(&r, pairs, 4), b = neighbours(&r, behind, 1, 1);
		struct passed p = { .list = a.list, .word = &r.words[0] };

		CHECK(sem_init(&p.ended, 0, 0) == 0);
		p.list.parts = 4;
		p.list.part_bytes = PIECE / 4;
		p.list.progress = r.words_address + sizeof(r.words[0]);
		p.list.done = look;
		p.list.arg = &p;
		atomic_store(&r.words[0], 0);
		memory(2, 0);
		EXPECT(ops->copy(r.device, &p.list, &why), STATUS_OK);
		memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
		rig_begin(&r, &b);
		CHECK(rig_end(&b) == STATUS_OK);
		CHECK(sem_wait(&p.ended) == 0);
		CHECK(atomic_load(&p.seen) == 0);
		sem_destroy(&p.ended);
	}
	rig_close(&r);
}

struct followed {
	struct device_copy list;
	struct device_rig *rig;
	struct rig_copy *behind;
	sem_t ended;
};

/* A list that is brought meanwhile is not even tried: it would pass the one whose end is being told. */
static void follow(struct device_copy *c, enum status s)
{
	struct followed *f = c->arg;

	CHECK(s == STATUS_EXHAUSTED);
	CHECK(rig_try(f->rig, f->behind) == STATUS_OK);
	sem_post(&f->ended);
}

/* No memory for some seconds: lists in the queue end, those that stand behind them there at once. What comes later has its own time. */
static void test_starved(void)
{
	struct device_pair pairs[4][SCATTERED], behind[1];
	struct rig_copy c[3], b;
	struct device_rig r;
	struct followed f = { .rig = &r, .behind = &b };
	double began = now_s();
	int ended;

	rig_open(&r, ops, 0);
	memory(0, 0);
	for (int i = 0; i < 3; i++) {
		c[i] = scattered(&r, pairs[i], SCATTERED);
		rig_begin(&r, &c[i]);
	}
	b = neighbours(&r, behind, 1, 1);
	f.list = scattered(&r, pairs[3], SCATTERED).list;
	f.list.done = follow;
	f.list.arg = &f;
	CHECK(sem_init(&f.ended, 0, 0) == 0);
	EXPECT(ops->copy(r.device, &f.list, &why), STATUS_OK);
	for (int i = 0; i < 3; i++) {
		CHECK(rig_end(&c[i]) == STATUS_EXHAUSTED);
		if (i == 0) {
			CHECK(now_s() - began > 1);
			began = now_s();
		}
	}
	CHECK(sem_wait(&f.ended) == 0);
	sem_destroy(&f.ended);
	CHECK(now_s() - began < 1);
	CHECK(!ops->lost(r.device));
	sleep_ms(SETTLE_MS);
	CHECK(sem_getvalue(&b.ended, &ended) == 0 && ended == 0);
	memory(FAKE_DRIVER_ALWAYS, FAKE_DRIVER_ALWAYS);
	CHECK(rig_end(&b) == STATUS_OK);
	memory(0, 0); /* closed meanwhile */
	c[0] = scattered(&r, pairs[0], SCATTERED);
	rig_begin(&r, &c[0]);
	rig_close(&r);
	CHECK(rig_end(&c[0]) == STATUS_CANCELLED);
}

/* ---- who puts a list in -------------------------------------------------------------------------------------------- */

static bool puts_in_itself(struct device_rig *r, struct rig_copy c)
{
	rig_begin(r, &c);
	CHECK(rig_end(&c) == STATUS_OK);
	return copier() == (uint32_t)gettid();
}

/* Its bringer, if it takes few copies, however many blocks lie side by side in them; a thread, if it takes many. */
static void test_who_puts_in(void)
{
	struct device_pair *pairs = malloc(SCATTERED * sizeof(*pairs));
	struct rig_copy c;
	struct device_rig r;

	rig_open(&r, ops, 0);
	CHECK(puts_in_itself(&r, neighbours(&r, pairs, 1, 1)));
	CHECK(puts_in_itself(&r, neighbours(&r, pairs, 42, 32)));
	CHECK(puts_in_itself(&r, neighbours(&r, pairs, 128, 32)));
	CHECK(puts_in_itself(&r, neighbours(&r, pairs, 512, 32)));
	CHECK(puts_in_itself(&r, scattered(&r, pairs, 200)));
	CHECK(!puts_in_itself(&r, scattered(&r, pairs, SCATTERED)));
	c = scattered(&r, pairs, 200);
	c.list.parts = 32;
	c.list.part_bytes = PIECE / 32;
	c.list.progress = r.words_address;
	CHECK(!puts_in_itself(&r, c));
	expect_sound(&r);
	free(pairs);
	rig_close(&r);
}

/* Neighbours that come in another order, some at a time, are one copy of rows all the same; those apart from them are not. */
static void test_joins(void)
{
	enum { CHUNK = 16, CHUNKS = 4 };
	static const uint32_t orders[][CHUNKS] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 3, 0, 1 }, { 1, 3, 0, 2 }, { 0, 2, 3, 4 } };
	struct device_pair pairs[CHUNK * CHUNKS];
	struct device_rig r;

	rig_open(&r, ops, 0);
	for (size_t k = 0; k < sizeof(orders) / sizeof(orders[0]); k++) {
		struct rig_copy c = neighbours(&r, pairs, CHUNK * CHUNKS, 1);
		const uint32_t before = rows();

		for (uint32_t i = 0; i < CHUNK * CHUNKS; i++) {
			const uint64_t at = (orders[k][i / CHUNK] * CHUNK + i % CHUNK) * PIECE;

			pairs[i] = (struct device_pair){ r.host_address + at, r.range + at };
		}
		rig_fill(r.host, r.bytes / 2);
		rig_begin(&r, &c);
		CHECK(rig_end(&c) == STATUS_OK);
		CHECK(getenv("FAKE_DRIVER_ROWS") || rows() - before == (orders[k][CHUNKS - 1] < CHUNKS ? 1u : 2u));
	}
	expect_sound(&r);
	rig_close(&r);
}

/* ---- a kernel that waits for its turns ----------------------------------------------------------------------------- */

/* Whether the list goes by the kernel; with a word, if somebody waits for its parts. */
static bool by_kernel(struct device_rig *r, bool watched)
{
	static struct device_pair pairs[SCATTERED];
	struct rig_copy c = scattered(r, pairs, SCATTERED);
	const uint32_t before = kernels();

	if (watched) {
		c.list.parts = 4;
		c.list.part_bytes = PIECE / 4;
		c.list.progress = r->words_address;
	}
	rig_begin(r, &c);
	CHECK(rig_end(&c) == STATUS_OK);
	return kernels() > before;
}

/* The engines are asked for some seconds, then twice as long; and by lists that are watched until another has shown that the kernel has its turns. */
static void test_rests(void)
{
	struct device_rig r;

	rig_open(&r, ops, 0);
	CHECK(by_kernel(&r, true));
	late(99);
	CHECK(by_kernel(&r, true));
	CHECK(!by_kernel(&r, true) && !by_kernel(&r, false));
	sleep_ms(5200);
	CHECK(!by_kernel(&r, true));
	CHECK(by_kernel(&r, false)); /* it still waits */
	late(0);
	sleep_ms(5200);
	CHECK(!by_kernel(&r, false));
	sleep_ms(5000);
	CHECK(!by_kernel(&r, true));
	CHECK(by_kernel(&r, false));
	CHECK(by_kernel(&r, true));
	rig_close(&r);
}

/* What is to know why lists go by the engines alone is told; a GPU that no kernel is for has no reason to give. */
static void test_no_kernel(void)
{
	const char *how = getenv("FAKE_DRIVER_KERNEL"), *major = getenv("FAKE_DRIVER_MAJOR");
	struct device_rig r;

	rig_open(&r, ops, 0);
	CHECK((*r.info.no_kernel != 0) == (how && !major));
	expect_sound(&r);
	CHECK(kernels() == 0 || (!how && !major));
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {
		{ "full after open", test_full_after_open },
		{ "full at open", test_full_at_open },
		{ "refused", test_refused },
		{ "the queue waits", test_queue_waits },
		{ "in part", test_in_part },
		{ "none passes", test_none_passes },
		{ "who puts in", test_who_puts_in },
		{ "joins", test_joins },
	};

	load();
	alarm(120);
	if (argc > 1 && strcmp(argv[1], "starved") == 0) {
		test_starved();
		printf("ok   starved\n");
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "rests") == 0) {
		test_rests();
		printf("ok   rests\n");
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "beside") == 0) { /* where the kernel runs */
		test_beside();
		printf("ok   beside\n");
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "kernel") == 0) { /* as FAKE_DRIVER_KERNEL and FAKE_DRIVER_MAJOR say */
		test_no_kernel();
		printf("ok   kernel\n");
		return 0;
	}
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
			continue;
		tests[i].run();
		printf("ok   %s\n", tests[i].name);
		fflush(stdout);
	}
	return 0;
}
