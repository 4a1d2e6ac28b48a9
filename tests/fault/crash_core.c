/* Kills caches, and looks whether they keep their word: `crash_core KILLS [SEED [units]]`, `crash_core list`.
 * With `units` the sessions' blocks cover several keys and have keep rules.
 *
 * A campaign is a set of folders on which life follows life, each a process of its own that first checks what the lives before it had
 * promised (crash_life.h). A life is killed at a named point (store/crash_point.h), each in its turn, or at any time; before the next
 * the catalog may be cut, zeroed or deleted, and in some campaigns the power as well: what was not synced is not there (tests/daemon/disk/power_log.h).
 * Exit code 0: every promise was kept, and every point was reached.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/crash_point.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "tests/fault/crash_life.h"

enum { LIVES = 14, LIFE_MS_MAX = 300000 };

enum mischief { NONE, GONE, CUT, ZEROED, REBUILD, MARKED, TWIN };

/* What a point wants of a life, to be passed in it. */
static const struct {
	const char *prefix;
	enum mischief mischief;
	bool write_fails, settle, first;
} wants[] = {
	{ .prefix = "draft_", .mischief = GONE },	 { .prefix = "catalog_make", .mischief = GONE },
	{ .prefix = "aside_", .mischief = CUT },	 { .prefix = "catalog_empty", .mischief = REBUILD },
	{ .prefix = "wipe_", .mischief = MARKED },	 { .prefix = "mark_", .write_fails = true },
	{ .prefix = "unit_", .write_fails = true },	 { .prefix = "clean_", .settle = true },
	{ .prefix = "restore_bury", .mischief = TWIN },	 { .prefix = "settle", .settle = true },		 { .prefix = "id_", .first = true },
};

struct run {
	struct crash_random random;
	struct crash_setting setting;
	struct crash_shadow *shadow;
	uint64_t seed;
	struct power_log *power;
	bool units;
	uint32_t cuts, forgotten;      /* of the power, and writes */
	uint32_t kills, wanted, lives, by_graph, named, ended, tries[CRASH_SITES_MAX], killed[CRASH_SITES_MAX];
	uint32_t campaign, life;       /* at present */
};

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

/* ---- between two lives ---- */

static void damage_catalog(struct run *r, enum mischief m)
{
	uint8_t zeroes[4096] = { 0 };
	char path[160];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/catalog/data.mdb", r->setting.root);
	if (stat(path, &st))
		return;
	/* A clean mark would not be true of a disk that was written to. */
	if (m == GONE || m == TWIN)
		unlink(path);
	else if (m == CUT && truncate(path, st.st_size / 2))
		perror(path);
	if (m != ZEROED)
		return;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	for (off_t at = 0; at < st.st_size; at += (off_t)sizeof(zeroes))
		if (pwrite(fd, zeroes, sizeof(zeroes), at) < 0)
			perror(path);
	close(fd);
}

static void mark_disk(struct run *r)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/disk0/quarantine", r->setting.root);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
}

/* A second copy of a block, as a crash between a spill and what it displaces may leave one: into a slot that was never written. */
static bool twin_in(int fd)
{
	static uint8_t slot[16384];
	struct disk_slab_head {
		uint64_t magic, versions, disk_id, slot_bytes;
		uint32_t number, slots;
	} h;
	off_t from = 0, to = 0;

	if (pread(fd, &h, sizeof(h), 0) != sizeof(h) || h.slot_bytes > sizeof(slot))
		return false;
	for (uint32_t i = 0; i < h.slots && (!from || !to); i++) {
		const off_t at = DISK_SLAB_HEADER_BYTES + (off_t)i * (off_t)h.slot_bytes;
		struct slot_header *s = (struct slot_header *)(void *)slot;

		if (pread(fd, slot, sizeof(*s), at) != sizeof(*s))
			return false;
		if (!s->magic)
			to = at;
		else if (!s->tombstone && !slot_header_problem(s))
			from = at;
	}
	return from && to && pread(fd, slot, h.slot_bytes, from) == (ssize_t)h.slot_bytes &&
	       pwrite(fd, slot, h.slot_bytes, to) == (ssize_t)h.slot_bytes;
}

static void make_twin(struct run *r)
{
	char path[160];
	bool made = false;

	for (int n = 1; n < 200 && !made; n++) {
		int fd;

		snprintf(path, sizeof(path), "%s/disk0/slab-%06d.trc", r->setting.root, n);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		made = twin_in(fd);
		close(fd);
	}
}

/* ---- plans ---- */

static int want_of(const char *name)
{
	for (size_t i = 0; i < sizeof(wants) / sizeof(wants[0]); i++)
		if (!strncmp(name, wants[i].prefix, strlen(wants[i].prefix)))
			return (int)i;
	return -1;
}

static bool fits(const struct run *r, const char *name)
{
	int w = want_of(name);

	if (!strcmp(name, "catalog_grow"))
		return false;
	if (w < 0)
		return true;
	if (wants[w].first)
		return r->life == 0;
	return !r->setting.flush_kept || (wants[w].mischief != MARKED && !wants[w].write_fails);
}

static bool reached(const struct run *r, uint32_t point)
{
	return atomic_load(&r->shadow->passed[point]) > 0;
}

/* The point that was tried least, of those that this life can pass; -1: none. Behind the kills that are wanted, one that was not reached. */
static int choose_point(struct run *r)
{
	uint32_t n = crash_point_count(), from = crash_below(&r->random, n);
	int best = -1;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = (from + i) % n;

		if (!fits(r, crash_point_name(k)) || (r->kills >= r->wanted && reached(r, k)))
			continue;
		if (best < 0 || r->tries[k] < r->tries[best])
			best = (int)k;
	}
	return best;
}

static enum mischief choose_mischief(struct run *r)
{
	uint32_t x = crash_below(&r->random, 100);

	return x < 6 ? GONE : x < 12 ? CUT : x < 16 ? ZEROED : x < 22 ? REBUILD : x < 26 ? TWIN : NONE;
}

struct plan {
	struct crash_life life;
	int point;                     /* -1: any time */
	uint32_t passage;
	enum mischief mischief;
	bool cut;                      /* of the power, before it */
	bool early;                    /* counted from the start, not from the first work */
	uint32_t after_us;
};

static void make_plan(struct run *r, struct plan *p)
{
	*p = (struct plan){ .point = -1, .after_us = crash_below(&r->random, 60000),
			    .early = crash_below(&r->random, 4) == 0, .mischief = choose_mischief(r) };
	p->life = (struct crash_life){ .seed = r->seed * 1000003 + r->lives, .steps = 150,
				       .settle = crash_below(&r->random, 2) };
	if (!r->setting.flush_kept && crash_below(&r->random, 4) == 0) {
		p->life.fault = crash_below(&r->random, 2) ? ENOSPC : EIO;
		p->life.fault_at = 1 + crash_below(&r->random, 60);
	}
	if (crash_below(&r->random, 10) < 7 || r->kills >= r->wanted)
		p->point = choose_point(r);
	if (p->point >= 0) {
		const char *name = crash_point_name((uint32_t)p->point);
		int w = want_of(name);
		uint32_t often = r->lives ? atomic_load(&r->shadow->passed[p->point]) / (r->life + 1) : 0;

		p->passage = 1 + crash_below(&r->random, often > 60 ? 60 : often + 1);
		if (w >= 0) {
			p->mischief = wants[w].mischief;
			p->life.settle |= wants[w].settle;
			p->passage = 1;
		}
		if (w >= 0 && wants[w].write_fails) {
			p->life.fault = EIO;
			p->life.fault_at = 1 + crash_below(&r->random, 10);
		}
		r->tries[p->point]++;
	}
	p->cut = r->setting.power && crash_below(&r->random, 2);
	p->life.rebuild = p->mischief == REBUILD;
	p->life.graph = crash_below(&(struct crash_random){ p->life.seed * 31 }, 2);
}

/* ---- one life ---- */

static void report(const struct run *r, const struct plan *p, const char *what)
{
	fprintf(stderr, "seed %llu campaign %u life %u (%u in all), killed at %s:%u, mischief %d, power cut %d, fault %d@%u, rebuild %d, graph %d: %s\n",
		(unsigned long long)r->seed, r->campaign, r->life, r->lives, p->point < 0 ? "any time" : crash_point_name((uint32_t)p->point),
		p->passage, (int)p->mischief, p->cut, p->life.fault, p->life.fault_at, p->life.rebuild, p->life.graph, what);
	fprintf(stderr, "the folders are left in %s\n", r->setting.root);
}

static pid_t begin(struct run *r, const struct plan *p, bool grow)
{
	pid_t pid = fork();
	char folder[160];

	if (pid)
		return pid;
	crash_point_watch(r->shadow->passed);
	if (p->point >= 0)
		crash_point_arm(crash_point_name((uint32_t)p->point), p->passage);
	if (!grow)
		crash_live(&r->setting, &p->life, r->shadow);
	snprintf(folder, sizeof(folder), "%s/grow", r->setting.root);
	crash_grow(folder, r->shadow);
}

/* False: a promise was broken. */
static bool judge(struct run *r, const struct plan *p, int how)
{
	char text[64];

	if (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) {
		r->kills++;
		return true;
	}
	if (WIFEXITED(how) && WEXITSTATUS(how) == 0) {
		r->ended++;
		return true;
	}
	snprintf(text, sizeof(text), "it ended with %s %d", WIFSIGNALED(how) ? "signal" : "code",
		 WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
	report(r, p, r->shadow->failure[0] ? r->shadow->failure : text);
	return false;
}

static bool live(struct run *r, const struct plan *p, bool grow)
{
	uint64_t since = now_ms(), working = 0;
	pid_t pid, got;
	int how;

	atomic_store(&r->shadow->phase, CRASH_OPENING);
	pid = begin(r, p, grow);
	while ((got = waitpid(pid, &how, WNOHANG)) == 0) {
		uint64_t now = now_ms();

		if (!working && (p->early || grow || atomic_load(&r->shadow->phase) >= CRASH_WORKING))
			working = now;
		if (now - since > LIFE_MS_MAX) {
			kill(pid, getenv("CRASH_ABORT") ? SIGABRT : SIGKILL);
			waitpid(pid, &how, 0);
			report(r, p, "it does not come back");
			return false;
		}
		if (p->point < 0 && working && (now - working) * 1000 >= p->after_us)
			kill(pid, SIGKILL);
		nanosleep(&(struct timespec){ .tv_nsec = 300000 }, NULL);
	}
	r->lives++;
	r->by_graph += p->life.graph;
	if (getenv("CRASH_VERBOSE"))
		fprintf(stderr, "campaign %u life %u: %s:%u after %u us, mischief %d, fault %d@%u, settle %d: status %x in phase %d\n",
			r->campaign, r->life, p->point < 0 ? "any time" : crash_point_name((uint32_t)p->point), p->passage,
			p->after_us, (int)p->mischief, p->life.fault, p->life.fault_at, p->life.settle, (unsigned)how,
			atomic_load(&r->shadow->phase));
	if (p->point >= 0 && WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) {
		r->named++;
		r->killed[p->point]++;
	}
	return judge(r, p, how);
}

/* ---- campaigns ---- */

static void campaign_begin(struct run *r)
{
	struct crash_setting *s = &r->setting;
	uint32_t kind = r->campaign % 4;

	*s = (struct crash_setting){ .flush_kept = kind % 2 == 0, .disks = kind < 2 ? 1 : 2,
				     .threads = crash_below(&r->random, 2), .host_slots = 64 + crash_below(&r->random, 64),
				     .depth = kind == 0 ? 1 : 2 + crash_below(&r->random, 15) };
	power_log_forget(r->power);
	s->units = r->units;
	s->power = s->threads ? r->power : NULL;
	s->disk_slots = s->flush_kept ? 2000 : 80 + crash_below(&r->random, 80);
	snprintf(s->root, sizeof(s->root), "%s/terrace-crash-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	if (!mkdtemp(s->root)) {
		perror(s->root);
		exit(2);
	}
	memset(r->shadow->key, 0, sizeof(r->shadow->key));
	for (uint32_t i = 0; i < CRASH_CLASSES * CRASH_KEYS; i++)
		r->shadow->key[i / CRASH_KEYS][i % CRASH_KEYS].floor = 1;
	r->shadow->grow_acked = 0;
}

static int point_named(const char *name)
{
	for (uint32_t i = 0; i < crash_point_count(); i++)
		if (!strcmp(crash_point_name(i), name))
			return (int)i;
	return -1;
}

static uint32_t points_reached(const struct run *r)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < crash_point_count(); i++)
		count += reached(r, i);
	return count;
}

/* The kills that are wanted; up to twice as many, until every point was reached. */
static bool goes_on(const struct run *r)
{
	return r->kills < r->wanted || (r->kills < 2 * r->wanted && points_reached(r) < crash_point_count());
}

static bool campaign(struct run *r)
{
	struct plan p;
	bool kept = true;

	campaign_begin(r);
	for (r->life = 0; kept && r->life < LIVES && goes_on(r); r->life++) {
		make_plan(r, &p);
		if (p.cut)
			r->forgotten += power_log_cut(r->power);
		r->cuts += p.cut;
		damage_catalog(r, p.mischief);
		if (p.mischief == MARKED)
			mark_disk(r);
		if (p.mischief == TWIN)
			make_twin(r);
		kept = live(r, &p, false);
	}
	for (int i = 0; kept && i < 2 && r->campaign % 3 == 0; i++) {
		p = (struct plan){ .point = i ? -1 : point_named("catalog_grow"), .passage = 1, .early = true,
				   .after_us = crash_below(&r->random, 40000) };
		kept = live(r, &p, true);
	}
	if (!kept)
		return false;
	/* What the last one left is looked at too. */
	p = (struct plan){ .point = -1, .after_us = UINT32_MAX, .life = { .seed = r->lives, .settle = true, .graph = r->lives % 2 } };
	kept = live(r, &p, false);
	if (kept)
		nftw(r->setting.root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return kept;
}

static int summary(const struct run *r, uint64_t began)
{
	const struct crash_shadow *s = r->shadow;
	uint32_t n = crash_point_count(), passed = points_reached(r), killed = 0;

	for (uint32_t i = 0; i < n; i++) {
		killed += r->killed[i] > 0;
		if (!reached(r, i))
			fprintf(stderr, "never reached: %s\n", crash_point_name(i));
	}
	printf("%u kills in %.0f s (%u at points), %u power cuts that took %u writes, %u of the lives with the graph, %u ended by themselves; %u of %u points reached, %u of them killed at; "
	       "%llu blocks, %llu flushed ones and %llu deleted ones checked; %llu puts, %llu flushes, %llu deletes; "
	       "%llu flushes and %llu deletes not acknowledged; back after at most %llu ms\n",
	       r->kills, (double)(now_ms() - began) / 1000, r->named, r->cuts, r->forgotten, r->by_graph, r->ended, passed, n, killed,
	       (unsigned long long)s->blocks_checked, (unsigned long long)s->flushes_checked,
	       (unsigned long long)s->deletes_checked, (unsigned long long)s->puts, (unsigned long long)s->flushes,
	       (unsigned long long)s->deletes, (unsigned long long)s->odd_flushes, (unsigned long long)s->odd_deletes,
	       (unsigned long long)s->reopened_ms_max);
	return passed == n ? 0 : 1;
}

int main(int argc, char **argv)
{
	static struct run run;
	struct run *r = &run;
	uint64_t began = now_ms();

	if (argc < 2 || crash_point_count() > CRASH_SITES_MAX)
		return 2;
	if (!strcmp(argv[1], "list")) {
		for (uint32_t i = 0; i < crash_point_count(); i++)
			puts(crash_point_name(i));
		return 0;
	}
	r->wanted = (uint32_t)atoi(argv[1]);
	r->seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	r->units = argc > 3 && !strcmp(argv[3], "units");
	r->random.state = r->seed;
	r->shadow = mmap(NULL, sizeof(*r->shadow), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	r->power = power_log_make();
	if (r->shadow == MAP_FAILED || !r->power)
		return 2;
	for (; goes_on(r); r->campaign++)
		if (!campaign(r))
			return 1;
	return summary(r, began);
}
