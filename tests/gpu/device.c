/* Whether a device's table keeps what store/device.h promises: CUDA's on a GPU machine, the simulated one anywhere. Importers are other
 * processes: this program again, `device import MODE BYTES`, with the memory as descriptor 3. Exits 77 where there is no GPU. */
#include "tests/gpu/device_rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY_FD = 3, TELL_FD = 4, ASK_FD = 5, WORD_SETTLE_MS = 30 };

static const struct device_ops *ops;
static const char *self;

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* Waits until the word has reached the value. */
static void await_word(const _Atomic uint32_t *word, uint32_t value)
{
	for (int i = 0; i < RIG_WAIT_S * 10000; i++) {
		if ((int32_t)(atomic_load_explicit(word, memory_order_acquire) - value) >= 0)
			return;
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	}
	CHECK(!"a word came in time");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void test_info(void)
{
	static const uint8_t none[DEVICE_UUID_BYTES];
	struct device *d = (struct device *)&none;
	uint8_t uuid[DEVICE_UUID_BYTES] = { 7 };
	struct device_info i;

	EXPECT(ops->uuid(ops->count(), uuid, &why), STATUS_INVALID);
	CHECK(uuid[0] == 7 && memcmp(uuid + 1, none, sizeof(none) - 1) == 0);
	EXPECT(ops->uuid(0, uuid, &why), STATUS_OK);
	EXPECT(ops->open(ops->count(), &d, &why), STATUS_INVALID);
	CHECK(d == (struct device *)&none);
	EXPECT(ops->open(0, &d, &why), STATUS_OK);
	EXPECT(ops->info(d, &i, &why), STATUS_OK);
	CHECK(memcmp(i.uuid, uuid, sizeof(uuid)) == 0);
	CHECK(memcmp(i.uuid, none, sizeof(none)) != 0 && i.name[0] && memchr(i.name, 0, sizeof(i.name)));
	CHECK(i.bytes > 0 && i.free_bytes <= i.bytes);
	CHECK(i.granularity >= 4096 && (i.granularity & (i.granularity - 1)) == 0);
	CHECK(!ops->lost(d));
	ops->close(d);
	ops->close(NULL);
}

static void test_extents(void)
{
	struct device_rig r;
	struct device_extent beside, none = { 0 };
	struct device_info after;
	uint64_t huge, step;
	int fd = -5;

	rig_open(&r, ops, 0);
	step = r.info.granularity;
	EXPECT(ops->range_reserve(r.device, step + 1, &huge, &why), STATUS_INVALID);
	EXPECT(ops->range_reserve(r.device, 0, &huge, &why), STATUS_INVALID);
	EXPECT(ops->extent_make(r.device, r.range + r.bytes, step / 2, &none, &fd, &why), STATUS_INVALID);
	EXPECT(ops->extent_make(r.device, r.range, step, &none, &fd, &why), STATUS_INVALID);             /* taken */
	EXPECT(ops->extent_make(r.device, r.range + 4 * r.bytes, step, &none, &fd, &why), STATUS_INVALID); /* beyond */
	huge = (r.info.bytes + step) / step * step;
	EXPECT(ops->range_reserve(r.device, huge, &huge, &why), STATUS_OK);
	EXPECT(ops->extent_make(r.device, huge, (r.info.bytes + step) / step * step, &none, &fd, &why), STATUS_EXHAUSTED);
	ops->range_free(r.device, huge, (r.info.bytes + step) / step * step);
	CHECK(fd == -5 && !none.handle);

	EXPECT(ops->extent_make(r.device, r.range + r.bytes, step, &beside, &fd, &why), STATUS_OK);
	CHECK(beside.address == r.range + r.bytes && beside.bytes == step);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT(ops->info(r.device, &after, &why), STATUS_OK);
	CHECK(after.free_bytes < r.info.free_bytes);
	rig_fill(r.host, step);
	EXPECT(rig_copy_one(&r, DEVICE_DOWN, beside.address, r.host_address, step), STATUS_OK);
	for (uint64_t i = 0; i < step; i++)
		CHECK(r.host[i] == 0);
	ops->extent_drop(r.device, &beside);
	close(fd);
	EXPECT(ops->extent_make(r.device, r.range + r.bytes, step, &beside, &fd, &why), STATUS_OK); /* the place is free again */
	ops->extent_drop(r.device, &beside);
	close(fd);
	rig_close(&r);
}

/* Memory that is let go can be had again, as often as one likes. */
static void test_memory_comes_back(void)
{
	struct device_extent e;
	struct device_info i;
	struct device_rig r;
	uint64_t most, range;
	int fd;

	rig_open(&r, ops, 0);
	EXPECT(ops->info(r.device, &i, &why), STATUS_OK);
	most = i.free_bytes * 5 / 8 / i.granularity * i.granularity;
	EXPECT(ops->range_reserve(r.device, most, &range, &why), STATUS_OK);
	for (int n = 0; n < 4; n++) {
		EXPECT(ops->extent_make(r.device, range, most, &e, &fd, &why), STATUS_OK);
		ops->extent_drop(r.device, &e);
		close(fd);
	}
	ops->range_free(r.device, range, most);
	rig_close(&r);
}

/* A piece that spans two extents side by side is one piece. */
static void test_side_by_side(void)
{
	struct device_rig r;
	struct device_extent beside;
	uint8_t *sent;
	int fd;

	rig_open(&r, ops, 0);
	EXPECT(ops->extent_make(r.device, r.range + r.bytes, r.bytes, &beside, &fd, &why), STATUS_OK);
	rig_fill(r.host, r.bytes);
	sent = malloc(r.bytes);
	memcpy(sent, r.host, r.bytes);
	EXPECT(rig_copy_one(&r, DEVICE_UP, r.host_address, r.range + r.bytes / 2, r.bytes / 2), STATUS_OK);
	EXPECT(rig_copy_one(&r, DEVICE_UP, r.host_address + r.bytes / 2, r.range + r.bytes, r.bytes / 2), STATUS_OK);
	memset(r.host, 0, r.bytes);
	EXPECT(rig_copy_one(&r, DEVICE_DOWN, r.range + r.bytes / 2, r.host_address, r.bytes / 2), STATUS_OK);
	EXPECT(rig_copy_one(&r, DEVICE_DOWN, r.range + r.bytes, r.host_address + r.bytes / 2, r.bytes / 2), STATUS_OK);
	CHECK(memcmp(sent, r.host, r.bytes) == 0);
	free(sent);
	ops->extent_drop(r.device, &beside);
	close(fd);
	rig_close(&r);
}

static void test_host_memory(void)
{
	struct device_rig r;
	uint64_t bytes = 1 << 20, address = 5;
	void *memory = rig_memory(bytes, NULL), *gone = rig_memory(bytes, NULL);

	rig_open(&r, ops, 0);
	munmap(gone, bytes);
	EXPECT(ops->host_register(r.device, NULL, bytes, true, &address, &why), STATUS_INVALID);
	EXPECT(ops->host_register(r.device, gone, bytes, true, &address, &why), STATUS_INVALID);
	EXPECT(ops->host_register(r.device, r.host, 4096, true, &address, &why), STATUS_INVALID); /* twice */
	CHECK(address == 5);
	EXPECT(ops->host_register(r.device, memory, bytes, false, &address, &why), STATUS_OK);
	rig_fill(memory, bytes);
	EXPECT(rig_copy_one(&r, DEVICE_UP, address, r.range, bytes), STATUS_OK);
	EXPECT(rig_copy_one(&r, DEVICE_DOWN, r.range, r.host_address, bytes), STATUS_OK);
	CHECK(memcmp(memory, r.host, bytes) == 0);
	ops->host_unregister(r.device, memory);
	EXPECT(ops->host_register(r.device, memory, bytes, true, &address, &why), STATUS_OK);
	ops->host_unregister(r.device, memory);
	munmap(memory, bytes);
	rig_close(&r);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* `count` pieces of the first `bytes` of two memories, in random places. */
static void shuffle(struct device_pair *pairs, uint32_t count, uint64_t from, uint64_t to, uint64_t piece)
{
	for (uint32_t i = 0; i < count; i++)
		pairs[i] = (struct device_pair){ from + i * piece, to + i * piece };
	for (uint32_t i = count; i > 1; i--) {
		uint32_t other = (uint32_t)(rig_random() % i);
		uint64_t swapped = pairs[i - 1].to;

		pairs[i - 1].to = pairs[other].to;
		pairs[other].to = swapped;
	}
}

/* Up in random places, across, and down again: every byte is where it belongs, and none elsewhere. */
static void test_lists(void)
{
	static const struct {
		uint32_t count, parts;
		uint64_t part_bytes;
	} rows[] = { { 1, 1, 16 }, { 3, 2, 48 }, { 700, 1, 16 }, { 50, 4, 4096 }, { 17, 3, 8192 + 48 }, { 3, 8, 65536 }, { 2, 1, 1 << 19 } };
	struct device_pair *up = malloc(1000 * sizeof(*up)), *across = malloc(1000 * sizeof(*up)), *down = malloc(1000 * sizeof(*up));
	struct device_rig r;
	uint8_t *sent;
	uint64_t half;

	rig_open(&r, ops, 0);
	half = r.bytes / 2;
	sent = malloc(half);
	for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
		uint64_t piece = rows[k].parts * rows[k].part_bytes, bytes = rows[k].count * piece;
		struct rig_copy c = { .list = { .count = rows[k].count, .parts = rows[k].parts, .part_bytes = rows[k].part_bytes } };

		CHECK(bytes <= half);
		rig_fill(r.host, bytes);
		memcpy(sent, r.host, bytes);
		shuffle(up, rows[k].count, r.host_address, r.range, piece);
		for (uint32_t i = 0; i < rows[k].count; i++) {
			across[i] = (struct device_pair){ up[i].to, up[i].to + half };
			down[i] = (struct device_pair){ up[i].to + half, up[i].from };
		}
		c.list.pairs = up;
		c.list.way = DEVICE_UP;
		for (int way = 0; way < 3 && k % 2; way++)
			ops->ready(r.device, (enum device_way)way);
		rig_begin(&r, &c);
		CHECK(rig_end(&c) == STATUS_OK);
		memset(r.host, 0x5a, half);
		c.list.pairs = across;
		c.list.way = DEVICE_ACROSS;
		rig_begin(&r, &c);
		CHECK(rig_end(&c) == STATUS_OK);
		c.list.pairs = down;
		c.list.way = DEVICE_DOWN;
		rig_begin(&r, &c);
		CHECK(rig_end(&c) == STATUS_OK);
		CHECK(memcmp(sent, r.host, bytes) == 0);
		for (uint64_t i = bytes; i < half; i++)
			CHECK(r.host[i] == 0x5a);
	}
	free(sent);
	free(up);
	free(across);
	free(down);
	rig_close(&r);
}

static void test_wrong_lists(void)
{
	struct device_rig r;
	struct device_pair good, odd;
	struct device_copy base, bad;

	rig_open(&r, ops, 0);
	good = (struct device_pair){ r.host_address, r.range };
	base = (struct device_copy){ .pairs = &good, .count = 1, .parts = 1, .part_bytes = 4096, .way = DEVICE_UP };
	for (int k = 0; k < 8; k++) {
		bad = base;
		odd = good;
		switch (k) {
		case 0: bad.count = 0; break;
		case 1: bad.parts = 0; break;
		case 2: bad.part_bytes = 0; break;
		case 3: bad.part_bytes = 24; break;
		case 4: odd.from += 8; break;
		case 5: odd.to += 4; break;
		case 6: bad.progress = r.words_address + 2; break;
		case 7: bad.way = (enum device_way)3; break;
		}
		bad.pairs = &odd;
		EXPECT(ops->copy(r.device, &bad, &why), STATUS_INVALID);
	}
	rig_close(&r);
}

/* Each time the word says that a part is there it is looked at, while the others still come; the word passes 2^32 on the way. */
static void test_parts(void)
{
	enum { PARTS = 8, PAIRS = 16 };
	const uint32_t base = UINT32_MAX - 3;
	struct device_pair pairs[PAIRS], part[PAIRS];
	struct device_rig r;
	uint64_t bytes, seen;

	rig_open(&r, ops, 0);
	bytes = r.bytes / 2 / PAIRS / PARTS / 16 * 16;
	seen = r.bytes / 2; /* of the host's memory: where parts are looked at */
	rig_fill(r.host, seen);
	shuffle(pairs, PAIRS, r.host_address, r.range, PARTS * bytes);
	for (int round = 0; round < 4; round++) {
		struct rig_copy up = { .list = { .pairs = pairs, .count = PAIRS, .parts = PARTS, .part_bytes = bytes, .way = DEVICE_UP,
						 .progress = r.words_address + 8, .progress_base = base } };

		atomic_store(&r.words[2], base);
		rig_begin(&r, &up);
		for (uint32_t p = 0; p < PARTS; p++) {
			struct rig_copy down = { .list = { .pairs = part, .count = PAIRS, .parts = 1, .part_bytes = bytes,
							   .way = DEVICE_DOWN } };

			await_word(&r.words[2], base + p + 1);
			for (uint32_t i = 0; i < PAIRS; i++)
				part[i] = (struct device_pair){ pairs[i].to + p * bytes, r.host_address + seen + i * bytes };
			rig_begin(&r, &down);
			CHECK(rig_end(&down) == STATUS_OK);
			for (uint32_t i = 0; i < PAIRS; i++)
				CHECK(memcmp(r.host + seen + i * bytes, r.host + (pairs[i].from - r.host_address) + p * bytes,
					     bytes) == 0);
		}
		CHECK(rig_end(&up) == STATUS_OK);
		CHECK(atomic_load(&r.words[2]) == base + PARTS && atomic_load(&r.words[1]) == 0 && atomic_load(&r.words[3]) == 0);
		rig_fill(r.host, seen);
	}
	rig_close(&r);
}

/* Lists of one way in their order: what is written last stays. */
static void test_order(void)
{
	enum { LISTS = 20 };
	struct device_pair pairs[LISTS];
	struct rig_copy c[LISTS];
	struct device_rig r;
	const uint64_t bytes = 64 << 10;

	rig_open(&r, ops, 0);
	rig_fill(r.host, LISTS * bytes);
	for (uint32_t i = 0; i < LISTS; i++) {
		pairs[i] = (struct device_pair){ r.host_address + i * bytes, r.range };
		c[i] = (struct rig_copy){ .list = { .pairs = &pairs[i], .count = 1, .parts = 4, .part_bytes = bytes / 4, .way = DEVICE_UP,
						    .progress = r.words_address, .progress_base = 4 * i } };
		rig_begin(&r, &c[i]);
	}
	for (uint32_t i = 0; i < LISTS; i++)
		CHECK(rig_end(&c[i]) == STATUS_OK);
	CHECK(atomic_load(&r.words[0]) == 4 * LISTS);
	EXPECT(rig_copy_one(&r, DEVICE_DOWN, r.range, r.host_address, bytes), STATUS_OK);
	CHECK(memcmp(r.host, r.host + (LISTS - 1) * bytes, bytes) == 0);
	rig_close(&r);
}

struct chain {
	struct device_rig *rig;
	struct rig_copy copy;
	uint32_t left;
};

static void chain_next(struct device_copy *list, enum status s)
{
	struct chain *k = list->arg;

	CHECK(s == STATUS_OK);
	if (k->left-- == 0)
		sem_post(&k->copy.ended);
	else
		EXPECT(ops->copy(k->rig->device, list, &why), STATUS_OK);
}

struct feeder {
	struct device_rig *rig;
	uint32_t number;
	uint64_t bytes;
};

static void *feed(void *arg)
{
	struct feeder *f = arg;

	for (uint32_t i = 0; i < 40; i++) {
		enum device_way way = i % 2 ? DEVICE_DOWN : DEVICE_UP;
		uint64_t host = f->rig->host_address + f->number * f->bytes, there = f->rig->range + f->number * f->bytes;

		if (i % 4 < 2) /* beside what the others begin */
			ops->ready(f->rig->device, way);
		CHECK(rig_copy_one(f->rig, way, way == DEVICE_UP ? host : there, way == DEVICE_UP ? there : host, f->bytes) ==
		      STATUS_OK);
	}
	return NULL;
}

/* done() begins the next list; several threads begin lists of their own. */
static void test_threads(void)
{
	enum { THREADS = 4 };
	struct device_pair pair;
	struct feeder feeders[THREADS];
	pthread_t threads[THREADS];
	struct device_rig r;
	struct chain k = { .rig = &r, .left = 50 };

	rig_open(&r, ops, 0);
	pair = (struct device_pair){ r.range + r.bytes - 4096, r.range + r.bytes / 2 };
	k.copy.list = (struct device_copy){ .pairs = &pair, .count = 1, .parts = 1, .part_bytes = 4096, .way = DEVICE_ACROSS,
					    .done = chain_next, .arg = &k };
	CHECK(sem_init(&k.copy.ended, 0, 0) == 0);
	EXPECT(ops->copy(r.device, &k.copy.list, &why), STATUS_OK);
	for (uint32_t i = 0; i < THREADS; i++) {
		feeders[i] = (struct feeder){ &r, i, 64 << 10 };
		CHECK(pthread_create(&threads[i], NULL, feed, &feeders[i]) == 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	k.copy.status = STATUS_OK;
	CHECK(rig_end(&k.copy) == STATUS_OK);
	rig_close(&r);
}

static void end_early(struct device_copy *list, enum status s)
{
	_Atomic int *ends = list->arg;

	CHECK(s == STATUS_OK || s == STATUS_CANCELLED);
	atomic_fetch_add(&ends[s == STATUS_OK ? 0 : 1], 1);
}

/* Lists that have not begun are cancelled, those that have end; all ends are told before close() returns. */
static void test_close(void)
{
	enum { LISTS = 400 };
	struct device_copy *lists = calloc(LISTS, sizeof(*lists));
	_Atomic int ends[2] = { 0, 0 };
	struct device_pair pair[2];
	struct device_rig r;

	rig_open(&r, ops, 0);
	pair[0] = (struct device_pair){ r.host_address, r.range };
	pair[1] = (struct device_pair){ r.range + r.bytes / 2, r.host_address + r.bytes / 2 };
	for (uint32_t i = 0; i < LISTS; i++) {
		lists[i] = (struct device_copy){ .pairs = &pair[i % 2], .count = 1, .parts = 2, .part_bytes = r.bytes / 4,
						 .way = i % 2 ? DEVICE_DOWN : DEVICE_UP, .done = end_early, .arg = ends };
		EXPECT(ops->copy(r.device, &lists[i], &why), STATUS_OK);
	}
	ops->close(r.device);
	CHECK(ends[0] + ends[1] == LISTS);
	printf("close: %d lists ended, %d cancelled\n", ends[0], ends[1]);
	free(lists);
	munmap(r.host, r.bytes + RIG_WORDS_BYTES);
	close(r.fd);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void count_call(void *arg)
{
	atomic_fetch_add((_Atomic int *)arg, 1);
}

/* Work behind a wait begins when the word has come, by the CPU's hand here, and counts modulo 2^32. */
static void test_stream_word(void)
{
	static const struct {
		uint32_t before, value, enough;
	} rows[] = { { 0, 1, 1 }, { 5, 8, 9 }, { UINT32_MAX - 1, 2, 2 }, { UINT32_MAX - 5, UINT32_MAX, 3 } };
	struct device_rig r;
	void *stream = rig_stream();
	_Atomic int calls = 0;

	rig_open(&r, ops, 0);
	for (int i = 0; i < (int)(sizeof(rows) / sizeof(rows[0])); i++) {
		atomic_store(&r.words[4], rows[i].before);
		EXPECT(ops->stream_wait(r.device, stream, r.words_address + 16, rows[i].value, &why), STATUS_OK);
		EXPECT(ops->stream_then(r.device, stream, count_call, &calls, &why), STATUS_OK);
		sleep_ms(WORD_SETTLE_MS);
		CHECK(calls == 2 * i);
		atomic_store(&r.words[4], rows[i].enough);
		rig_stream_wait(stream);
		EXPECT(ops->stream_wait(r.device, stream, r.words_address + 16, rows[i].value, &why), STATUS_OK); /* already there */
		EXPECT(ops->stream_then(r.device, stream, count_call, &calls, &why), STATUS_OK);
		rig_stream_wait(stream);
		for (int ms = 0; ms < 10000 && calls < 2 * i + 2; ms++)
			sleep_ms(1);
		CHECK(calls == 2 * i + 2);
	}
	rig_stream_end(stream);
	rig_close(&r);
}

/* A stream takes the layers of a list as they come, put in before the list begins, and each has what was sent. */
static void test_stream_layers(void)
{
	enum { LAYERS = 6, BLOCKS = 5, BASE = 77 };
	struct device_pair pairs[BLOCKS];
	struct device_rig r;
	void *stream = rig_stream();
	uint64_t bytes = 64 << 10, half;
	_Atomic int calls = 0;
	struct rig_copy up;

	rig_open(&r, ops, 0);
	half = r.bytes / 2;
	bytes = half / 2 / LAYERS / BLOCKS / 16 * 16;
	rig_fill(r.host, half);
	shuffle(pairs, BLOCKS, r.host_address, r.range, LAYERS * bytes);
	atomic_store(&r.words[0], BASE);
	for (uint32_t l = 0; l < LAYERS; l++) {
		EXPECT(ops->stream_wait(r.device, stream, r.words_address, BASE + l + 1, &why), STATUS_OK);
		for (uint32_t i = 0; i < BLOCKS; i++)
			rig_stream_copy(stream, r.range + half + (i * LAYERS + l) * bytes, pairs[i].to + l * bytes, bytes);
	}
	EXPECT(ops->stream_then(r.device, stream, count_call, &calls, &why), STATUS_OK);
	sleep_ms(WORD_SETTLE_MS);
	CHECK(calls == 0);
	up = (struct rig_copy){ .list = { .pairs = pairs, .count = BLOCKS, .parts = LAYERS, .part_bytes = bytes, .way = DEVICE_UP,
					  .progress = r.words_address, .progress_base = BASE } };
	rig_begin(&r, &up);
	CHECK(rig_end(&up) == STATUS_OK);
	rig_stream_wait(stream);
	CHECK(calls == 1);
	EXPECT(rig_copy_one(&r, DEVICE_DOWN, r.range + half, r.host_address + half, half / 2), STATUS_OK);
	for (uint32_t i = 0; i < BLOCKS; i++)
		CHECK(memcmp(r.host + half + i * LAYERS * bytes, r.host + (pairs[i].from - r.host_address), LAYERS * bytes) == 0);
	rig_stream_end(stream);
	rig_close(&r);
}

/* ---- other processes --------------------------------------------------------------------------------------------- */

struct importer {
	pid_t pid;
	int tell, ask; /* pipes: what it says, what it is told */
};

/* Starts this program anew with a descriptor of device memory. */
static struct importer importer_start(const char *mode, int fd, uint64_t bytes)
{
	struct importer i;
	char number[32];
	int tell[2], ask[2];

	snprintf(number, sizeof(number), "%llu", (unsigned long long)bytes);
	CHECK(pipe2(tell, O_CLOEXEC) == 0 && pipe2(ask, O_CLOEXEC) == 0);
	i = (struct importer){ .pid = fork(), .tell = tell[0], .ask = ask[1] };
	CHECK(i.pid >= 0);
	if (i.pid == 0) {
		/* out of the way of the numbers that they are to have */
		int memory = fcntl(fd, F_DUPFD_CLOEXEC, 50), said = fcntl(tell[1], F_DUPFD_CLOEXEC, 50),
		    told = fcntl(ask[0], F_DUPFD_CLOEXEC, 50);

		if (dup2(memory, MEMORY_FD) < 0 || dup2(said, TELL_FD) < 0 || dup2(told, ASK_FD) < 0)
			_exit(99);
		execl(self, self, "import", mode, number, (char *)NULL);
		_exit(99);
	}
	close(tell[1]);
	close(ask[0]);
	return i;
}

static void importer_said(const struct importer *i)
{
	char c;

	CHECK(read(i->tell, &c, 1) == 1);
}

/* Its exit status, as wait() gives it. */
static int importer_end(struct importer *i)
{
	int status;

	close(i->ask);
	CHECK(waitpid(i->pid, &status, 0) == i->pid);
	close(i->tell);
	return status;
}

static void importer_tell(void)
{
	CHECK(write(TELL_FD, "x", 1) == 1);
}

/* Until the parent closes its end. */
static void importer_ask(void)
{
	char c;

	CHECK(read(ASK_FD, &c, 1) == 0);
}

/* What the parent put there: a simple pattern, so that both know it. */
static uint8_t pattern(uint64_t i, uint8_t seed)
{
	return (uint8_t)(i * 31 + i / 4096 + seed);
}

static void expect_pattern(struct device_rig *r, uint64_t address, uint8_t seed)
{
	memset(r->host, 0, r->bytes);
	EXPECT(rig_copy_one(r, DEVICE_DOWN, address, r->host_address, r->bytes), STATUS_OK);
	for (uint64_t i = 0; i < r->bytes; i++)
		CHECK(r->host[i] == pattern(i, seed));
}

static void put_pattern(struct device_rig *r, uint64_t address, uint8_t seed)
{
	for (uint64_t i = 0; i < r->bytes; i++)
		r->host[i] = pattern(i, seed);
	EXPECT(rig_copy_one(r, DEVICE_UP, r->host_address, address, r->bytes), STATUS_OK);
}

static void import_refusals(struct device_rig *r, uint64_t at)
{
	struct device_extent e;
	int host = -1, null = open("/dev/null", O_RDWR | O_CLOEXEC);
	void *memory = rig_memory(r->bytes, &host);

	EXPECT(ops->extent_import(r->device, null, at, r->bytes, false, &e, &why), STATUS_INVALID);
	EXPECT(ops->extent_import(r->device, host, at, r->bytes, false, &e, &why), STATUS_INVALID);
	EXPECT(ops->extent_import(r->device, MEMORY_FD, at, r->bytes + r->info.granularity, false, &e, &why), STATUS_INVALID);
	EXPECT(ops->extent_import(r->device, MEMORY_FD, r->range, r->bytes, false, &e, &why), STATUS_INVALID); /* taken */
	munmap(memory, r->bytes);
	close(host);
	close(null);
}

/* The other process. Modes: read: looks, holds on until told, looks again; write: changes the pattern; scribble: writes to what it may only
 * read, which must not come out as success; dies: waits to be killed. */
static int import_main(const char *mode, uint64_t bytes)
{
	bool write = strcmp(mode, "write") == 0;
	struct device_rig r;
	struct device_extent e;
	uint64_t at;

	rig_open(&r, ops, bytes);
	at = r.range + r.bytes;
	import_refusals(&r, at);
	EXPECT(ops->extent_import(r.device, MEMORY_FD, at, bytes, write, &e, &why), STATUS_OK);
	close(MEMORY_FD);
	expect_pattern(&r, at, 1);
	if (strcmp(mode, "scribble") == 0)
		return rig_copy_one(&r, DEVICE_UP, r.host_address, at, 4096) == STATUS_OK ? 9 : 1;
	if (write)
		put_pattern(&r, at, 2);
	importer_tell();
	importer_ask();
	expect_pattern(&r, at, write ? 2 : 1);
	ops->extent_drop(r.device, &e);
	rig_close(&r);
	return 0;
}

static void test_importers(void)
{
	struct importer readers[2], writer, killed;
	struct device_rig r;

	rig_open(&r, ops, 0);
	put_pattern(&r, r.range, 1);
	for (int i = 0; i < 2; i++)
		readers[i] = importer_start("read", r.fd, r.bytes);
	killed = importer_start("dies", r.fd, r.bytes);
	for (int i = 0; i < 2; i++)
		importer_said(&readers[i]);
	importer_said(&killed);
	kill(killed.pid, SIGKILL);
	importer_end(&killed);
	for (int i = 0; i < 2; i++)
		CHECK(importer_end(&readers[i]) == 0);
	writer = importer_start("write", r.fd, r.bytes);
	importer_said(&writer);
	expect_pattern(&r, r.range, 2);
	CHECK(importer_end(&writer) == 0);
	rig_close(&r);
}

/* Who may only read does not write, whatever becomes of him. */
static void test_read_only(void)
{
	struct importer scribbler;
	struct device_rig r;

	rig_open(&r, ops, 0);
	put_pattern(&r, r.range, 1);
	scribbler = importer_start("scribble", r.fd, r.bytes);
	CHECK(importer_end(&scribbler) != 0);
	expect_pattern(&r, r.range, 1);
	rig_close(&r);
}

/* The memory is there for as long as somebody has it, though its maker has let go. */
static void test_maker_goes_first(void)
{
	struct importer reader;
	struct device_rig r;

	rig_open(&r, ops, 0);
	put_pattern(&r, r.range, 1);
	reader = importer_start("read", r.fd, r.bytes);
	importer_said(&reader);
	rig_close(&r);
	CHECK(importer_end(&reader) == 0);
}

static void never(void *arg)
{
	(void)arg;
	CHECK(!"called on a lost device");
}

/* A device that is lost among copies: all lists end, those after the third, from some on, with UNAVAILABLE, and then nothing else can be had. */
static void test_lost(void)
{
	enum { LISTS = 60 };
	static struct rig_copy lists[LISTS];
	struct device_pair pair;
	struct device_info i;
	struct device_rig r;
	const char *reason;
	uint32_t begun = 0, lost = 0;
	void *stream = rig_stream();

	rig_open(&r, ops, 0);
	pair = (struct device_pair){ r.host_address, r.range };
	EXPECT(ops->stream_wait(r.device, stream, r.words_address + 4 * LISTS, 1, &why), STATUS_OK);
	EXPECT(ops->stream_then(r.device, stream, never, NULL, &why), STATUS_OK);
	for (; begun < LISTS; begun++) {
		enum status s;

		lists[begun].list = (struct device_copy){ .pairs = &pair, .count = 1, .parts = 2, .part_bytes = 4096, .way = DEVICE_UP,
							  .progress = r.words_address + 4 * begun };
		s = rig_try(&r, &lists[begun]);
		if (s != STATUS_OK) {
			CHECK(s == STATUS_UNAVAILABLE && begun > 3);
			break;
		}
		if (begun < 3)
			CHECK(rig_end(&lists[begun]) == STATUS_OK);
	}
	for (uint32_t k = 3; k < begun; k++) {
		enum status s = rig_end(&lists[k]);

		CHECK(s == STATUS_UNAVAILABLE || (s == STATUS_OK && lost == 0 && atomic_load(&r.words[k]) == 2));
		lost += s == STATUS_UNAVAILABLE;
	}
	CHECK(lost > 0 && ops->lost(r.device));
	CHECK(ops->info(r.device, &i, &reason) == STATUS_UNAVAILABLE);
	CHECK(ops->copy(r.device, &lists[0].list, &reason) == STATUS_UNAVAILABLE);
	ops->ready(r.device, DEVICE_UP);
	CHECK(ops->stream_then(r.device, stream, never, NULL, &reason) == STATUS_UNAVAILABLE);
	rig_stream_end(stream);
	rig_close(&r);
	printf("lost: %u lists of %u\n", lost, begun);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {
		{ "info", test_info },
		{ "extents", test_extents },
		{ "memory comes back", test_memory_comes_back },
		{ "side by side", test_side_by_side },
		{ "host memory", test_host_memory },
		{ "lists", test_lists },
		{ "wrong lists", test_wrong_lists },
		{ "parts", test_parts },
		{ "rows", rig_test_rows },
		{ "scattered", rig_test_scattered },
		{ "sums", rig_test_sums },
		{ "order", test_order },
		{ "threads", test_threads },
		{ "close", test_close },
		{ "a stream and a word", test_stream_word },
		{ "a stream and layers", test_stream_layers },
		{ "importers", test_importers },
		{ "the maker goes first", test_maker_goes_first },
		{ "read only", test_read_only },
	};
	const char *words;

	self = "/proc/self/exe";
	ops = rig_load(&words);
	if (!ops) {
		printf("skipped: %s\n", words);
		return 77;
	}
	alarm(600);
	if (argc > 3 && strcmp(argv[1], "import") == 0)
		return import_main(argv[2], strtoull(argv[3], NULL, 10));
	if (argc > 1 && strcmp(argv[1], "lost") == 0) { /* of a device that will be: see sim_device.h, gpu/without_gpu.sh */
		test_lost();
		return 0;
	}
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		tests[i].run();
		printf("ok   %s\n", tests[i].name);
		fflush(stdout);
	}
	printf("device: all good\n");
	return 0;
}
