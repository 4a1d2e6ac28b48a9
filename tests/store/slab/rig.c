/* See store/slab/rig.h. */
#include "tests/store/slab/rig.h"

#include "store/slab/private.h" /* for its ring */
#include "tests/held_folder.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <dirent.h>

const enum ring_engine rig_engines[2] = { RING_URING, RING_THREADS };

int rig_engine_first(void)
{
	const struct ring_options o = { .engine = RING_URING, .depth = 1, .queue_max = 1 };
	struct ring *ring;
	enum status s = ring_create(&o, &ring);

	if (s == STATUS_OK) {
		ring_destroy_by(ring, UINT64_MAX);
		return 0;
	}
	printf("without io_uring: %s\n", ring_refusal(NULL));
	return 1;
}

static int fault(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct rig_fault *f = arg;
	int times;

	if (f->op != 0 && f->op != (int)q->op + 1)
		return 0;
	f->asked++;
	while (f->shut)
		usleep(100);
	if (f->delay_ms > 0)
		usleep(f->delay_ms * 1000);
	if (f->most > 0)
		*most = f->most;
	times = f->times;
	while (times != 0)
		if (times < 0 || atomic_compare_exchange_weak(&f->times, &times, times - 1))
			return f->error;
	return 0;
}

void rig_begin(struct rig *r, enum ring_engine engine, const char *parent)
{
	const char *tmp = getenv("TMPDIR");

	memset(r, 0, sizeof(*r));
	if (!parent)
		parent = tmp ? tmp : "/tmp";
	ck_assert(held_folder_make(parent, r->folder, sizeof(r->folder)));
	r->calls = (struct ring_calls){ .fault = fault, .arg = &r->fault };
	r->options = (struct disk_options){
		.folder = r->folder,
		.budget_bytes = 64 << 20,
		.slab_bytes = 1 << 20,
		.ring = { .engine = engine, .depth = 32, .threads = 8, .queue_max = 1024, .calls = &r->calls },
	};
}

enum status rig_try(struct rig *r)
{
	return disk_open(&r->options, &r->disk, r->why, sizeof(r->why));
}

void rig_open(struct rig *r)
{
	enum status s = rig_try(r);

	ck_assert_msg(s == STATUS_OK, "%s: %s", status_name(s), r->why);
}

void rig_close(struct rig *r)
{
	disk_close(r->disk);
	r->disk = NULL;
}

/* A ring that is being closed says so before it looks at a request. */
static void *open_at_the_end(void *arg)
{
	struct ring_request nonsense = { 0 };
	uint64_t until = rig_now_ms() + RIG_NET_MS;
	struct rig *r = arg;

	while (ring_submit(r->disk->ring, &nonsense) != STATUS_UNAVAILABLE && rig_now_ms() < until)
		usleep(100);
	r->fault.shut = false;
	return NULL;
}

void rig_close_over(struct rig *r)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, open_at_the_end, r), 0);
	disk_close(r->disk);
	pthread_join(thread, NULL);
	r->disk = NULL;
}

void rig_end(struct rig *r)
{
	DIR *dir;
	struct dirent *e;
	uint64_t until;

	rig_close(r);
	dir = opendir(r->folder);
	if (!dir)
		return;
	while ((e = readdir(dir)) != NULL)
		if (e->d_name[0] != '.')
			unlinkat(dirfd(dir), e->d_name, 0);
	closedir(dir);
	/* Over FUSE a deleted file has a hidden name until the kernel has let go of the ring's files. */
	until = rig_now_ms() + RIG_NET_MS;
	while (rmdir(r->folder) != 0 && errno == ENOTEMPTY && rig_now_ms() < until)
		usleep(5000);
}

struct disk_view rig_look(struct rig *r)
{
	struct disk_view v;

	disk_look(r->disk, &v);
	return v;
}

const char *rig_path(const struct rig *r, const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", r->folder, name);
	return path;
}

void rig_asked(struct rig *r, uint32_t n)
{
	uint64_t until = rig_now_ms() + RIG_NET_MS;

	while (r->fault.asked < n) {
		ck_assert_uint_lt(rig_now_ms(), until);
		usleep(100);
	}
}

static void wait_done(struct disk_request *q)
{
	atomic_store(&((struct rig_wait *)q)->done, 1);
}

void rig_wait_begin(struct rig_wait *w)
{
	memset(w, 0, sizeof(*w));
	w->q.done = wait_done;
}

enum status rig_wait_end(struct rig_wait *w)
{
	uint64_t until = rig_now_ms() + RIG_NET_MS;

	while (!atomic_load(&w->done)) {
		ck_assert_uint_lt(rig_now_ms(), until);
		usleep(20);
	}
	return w->q.ring.status;
}

static enum status finish(struct rig_wait *w, enum status submitted)
{
	return submitted == STATUS_OK ? rig_wait_end(w) : submitted;
}

enum status rig_read(struct rig *r, struct disk_place p, void *at, uint32_t bytes)
{
	struct rig_wait w;

	rig_wait_begin(&w);
	return finish(&w, disk_read(r->disk, p, at, bytes, RING_NONE, RING_URGENT, &w.q));
}

enum status rig_write(struct rig *r, struct disk_place p, const void *at, uint32_t bytes)
{
	struct rig_wait w;

	rig_wait_begin(&w);
	return finish(&w, disk_write(r->disk, p, at, bytes, RING_NONE, RING_URGENT, &w.q));
}

enum status rig_tombstone(struct rig *r, struct disk_place p, const void *page)
{
	struct rig_wait w;

	rig_wait_begin(&w);
	return finish(&w, disk_tombstone(r->disk, p, page, &w.q));
}

enum status rig_sync(struct rig *r)
{
	struct rig_wait w;

	rig_wait_begin(&w);
	return finish(&w, disk_sync(r->disk, &w.q));
}

struct disk_place rig_take(struct rig *r, uint64_t slot_bytes)
{
	struct disk_place p = { 0 };
	enum status s = disk_slot_take(r->disk, slot_bytes, &p);

	if (s == STATUS_MISS) {
		ck_assert_int_eq(disk_slab_prepare(r->disk, slot_bytes), STATUS_OK);
		s = disk_slot_take(r->disk, slot_bytes, &p);
	}
	ck_assert_int_eq(s, STATUS_OK);
	return p;
}

struct slot_ident rig_ident(uint64_t n, uint8_t key[SLOT_KEY_MAX])
{
	memset(key, 0x5a, SLOT_KEY_MAX);
	memcpy(key, &n, sizeof(n));
	return (struct slot_ident){
		.tenant = "default",
		.layout_id = 77,
		.key = key,
		.key_bytes = 20,
		.block_bytes = RIG_LAYERS * RIG_LAYER_BYTES,
		.layer_bytes = RIG_LAYER_BYTES,
		.layers = RIG_LAYERS,
		.layout = "a layout",
		.layout_bytes = 8,
	};
}

void rig_block(void *slot, uint64_t n, uint64_t generation)
{
	uint64_t rng = (n + 1) * 0x9e3779b97f4a7c15ull + generation, word;
	const struct slot_info info = { .tokens = 16, .position = n * 16 };
	uint8_t key[SLOT_KEY_MAX];
	const struct slot_ident ident = rig_ident(n, key);

	memset(slot, 0, RIG_SLOT);
	for (size_t i = 0; i < ident.block_bytes; i += 8) {
		word = rig_next(&rng);
		memcpy((uint8_t *)slot + SLOT_HEADER_BYTES + i, &word, 8);
	}
	slot_seal(slot, &ident, &info, generation, 1000 + n);
}

enum status rig_judge(const void *slot, uint64_t n, uint64_t generation)
{
	uint8_t key[SLOT_KEY_MAX];
	const struct slot_ident ident = rig_ident(n, key);
	enum status s = slot_header_match(slot, &ident, generation);

	return s == STATUS_OK ? slot_layers_check(slot, 0, RIG_LAYERS) : s;
}

uint64_t rig_next(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

uint64_t rig_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void *rig_pages(size_t bytes)
{
	void *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	ck_assert_ptr_nonnull(at);
	memset(at, 0, bytes);
	return at;
}
