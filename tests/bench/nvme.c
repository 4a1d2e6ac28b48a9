/* The ring of a disk (store/ring/ring.h) against fio's io_uring engine: the same file, transfer size, depth
 * and pattern, one job, O_DIRECT. The file is written once from end to end before, so that no unwritten
 * extents are measured.
 *
 * The speed of a disk drifts, that of a virtual one by a factor of two within minutes. So the sides are
 * compared turn by turn, and the median of the turns' ratios is the ratio that counts. Who goes first
 * changes with each turn; the ring on threads has a part in each third. A disk that has rested is faster
 * by several per cent for a while: before each of its runs our side rests as long as fio takes to start
 * and to end. At random both sides visit every slot once a pass, in an order that is another one in each
 * turn.
 *
 * Both sides transfer to and from the same pages of one memfd, as the host tier's are: how far memory
 * lies together decides how many pieces the kernel makes of a transfer, and with buffers of their own
 * that lottery was most of the ratio.
 *
 * Our side keeps `depth` requests under way, each submitted again from its own completion. Both sides run
 * for a sixth of the time before they count, and count until the last transfer has ended. CPU time is that
 * of the whole process, kernel workers included; fio's is what it says of its job.
 */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "store/ring/ring.h"
#include "tests/bench/bench.h"

enum {
	DEPTH = 32,
	TURNS = 15,
	TURNS_QUICK = 3,
	THREADS_EVERY = 3,         /* turns */
	MS = 300,
	MS_QUICK = 100,
	RAMP = 6,                  /* uncounted before: 1 / RAMP of the time */
	FIO_OUTPUT_MAX = 1 << 16,
	TMPFS = 0x01021994,
};
#define KIB 1024u
#define MIB (1024u * KIB)
#define SLOT_MAX (2 * MIB)
#define FILL_BYTES (16 * MIB)

struct nvme_case {
	uint32_t bytes;            /* of a transfer */
	bool write, random;
};

struct measure {
	double rate;               /* GB/s */
	double cpu;                /* seconds a GB */
};

/* The turns of one of our sides, each with fio's beside it. */
struct side {
	const char *name;
	double target[2];          /* of reads, writes */
	unsigned turns;
	double rate[TURNS], cpu[TURNS], fio_rate[TURNS], fio_cpu[TURNS];
};

struct nvme_bench {
	char path[128];
	int fd;
	uint64_t file_bytes;
	unsigned ms;
	int memory_fd;             /* a memfd; of a case */
	uint8_t *memory;           /* DEPTH transfers */
	uint64_t memory_bytes;
	uint32_t *order;           /* of the slots at random; of a turn */
	uint64_t turn, rest_ns;    /* counts over all cases; what fio takes beyond its measuring */
	bool uring, fixed;         /* the kernel allows io_uring; registers that memory */
};

/* ---- ours ---- */

struct nvme_run;

struct nvme_slot {
	struct ring_request ring;  /* first */
	struct nvme_run *run;
};

struct nvme_run {
	struct ring *ring;
	const struct nvme_case *c;
	const uint32_t *order;
	uint64_t slots, begin_ns, end_ns; /* begin: transfers that end later are counted */
	_Atomic uint64_t next, bytes, all_bytes, last_ns;
	_Atomic unsigned under_way;
	sem_t ended;
	struct nvme_slot all[DEPTH];
};

static bool slot_start(struct nvme_run *run, struct nvme_slot *s)
{
	uint64_t n = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed) % run->slots;

	s->ring.offset = (run->c->random ? run->order[n] : n) * run->c->bytes;
	return ring_submit(run->ring, &s->ring) == STATUS_OK;
}

static void slot_done(struct ring_request *q)
{
	struct nvme_slot *s = (struct nvme_slot *)q;
	struct nvme_run *run = s->run;
	uint64_t now = bench_now_ns();

	if (q->status)
		bench_die("a transfer failed: %s", strerror(q->error));
	atomic_fetch_add_explicit(&run->all_bytes, q->bytes, memory_order_relaxed);
	if (now >= run->begin_ns)
		atomic_fetch_add_explicit(&run->bytes, q->bytes, memory_order_relaxed);
	if (now < run->end_ns && slot_start(run, s))
		return;
	atomic_store(&run->last_ns, now);
	if (atomic_fetch_sub(&run->under_way, 1) == 1)
		sem_post(&run->ended);
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void run_slots(struct nvme_run *run, const struct nvme_bench *b, uint32_t file, uint32_t buffer)
{
	run->under_way = DEPTH;
	sem_init(&run->ended, 0, 0);
	for (uint32_t i = 0; i < DEPTH; i++) {
		run->all[i] = (struct nvme_slot){
			.run = run,
			.ring = {.op = run->c->write ? RING_WRITE : RING_READ,
				 .file = file,
				 .buffer = buffer,
				 .bytes = run->c->bytes,
				 .at = b->memory + (size_t)i * run->c->bytes,
				 .done = slot_done},
		};
		if (!slot_start(run, &run->all[i]))
			bench_die("a transfer was refused");
	}
	while (sem_wait(&run->ended))
		;
}

static void order_shuffle(struct nvme_bench *b, uint64_t slots)
{
	uint64_t seed = b->turn;

	for (uint64_t i = 0; i < slots; i++)
		b->order[i] = (uint32_t)i;
	for (uint64_t i = slots - 1; i > 0; i--) {
		uint64_t j = bench_random(&seed) % (i + 1);
		uint32_t kept = b->order[i];

		b->order[i] = b->order[j];
		b->order[j] = kept;
	}
}

static void rest(uint64_t ns)
{
	const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	nanosleep(&t, NULL);
}

static struct measure ours(struct nvme_bench *b, const struct nvme_case *c, enum ring_engine engine)
{
	struct ring_options o = {.engine = engine, .depth = DEPTH, .queue_max = DEPTH};
	struct nvme_run *run = calloc(1, sizeof(*run));
	uint32_t file, buffer;
	struct measure m;
	double cpu;

	if (c->random)
		order_shuffle(b, b->file_bytes / c->bytes);
	rest(b->rest_ns);
	if (!run)
		bench_die("out of memory");
	run->c = c;
	run->order = b->order;
	run->slots = b->file_bytes / c->bytes;
	if (ring_create(&o, &run->ring) || ring_file_add(run->ring, b->fd, &file) ||
	    ring_buffer_add(run->ring, b->memory, (uint64_t)DEPTH * c->bytes, &buffer))
		bench_die("no ring: %s", ring_refusal(NULL));
	cpu = cpu_seconds();
	run->begin_ns = bench_now_ns() + b->ms / RAMP * 1000000ull;
	run->end_ns = run->begin_ns + b->ms * 1000000ull;
	run_slots(run, b, file, buffer);
	cpu = cpu_seconds() - cpu;
	ring_destroy_by(run->ring, UINT64_MAX);
	m.rate = (double)run->bytes / (double)(run->last_ns - run->begin_ns);
	m.cpu = cpu / ((double)run->all_bytes * 1e-9);
	free(run);
	return m;
}

/* ---- fio ---- */

/* The number behind "name" : that comes first after `from`. */
static double number_after(const char *from, const char *name)
{
	char quoted[32];

	snprintf(quoted, sizeof(quoted), "\"%s\" :", name);
	from = from ? strstr(from, quoted) : NULL;
	return from ? strtod(from + strlen(quoted), NULL) : NAN;
}

static struct measure fio(struct nvme_bench *b, const struct nvme_case *c)
{
	static char output[FIO_OUTPUT_MAX];
	uint64_t began = bench_now_ns();
	char command[512];
	struct measure m;
	double percent;
	size_t n;
	FILE *f;

	snprintf(command, sizeof(command),
		 "fio --name=t --filename='%s' --allow_file_create=0 --ioengine=io_uring --direct=1 --iodepth=%d --bs=%u "
		 "--rw=%s%s --randseed=%llu --size=%llu --time_based --ramp_time=%ums --runtime=%ums --scramble_buffers=0 "
		 "--mem=mmapshared:/proc/%d/fd/%d --output-format=json %s 2>&1",
		 b->path, DEPTH, c->bytes, c->random ? "rand" : "", c->write ? "write" : "read",
		 (unsigned long long)b->turn, (unsigned long long)(b->file_bytes / c->bytes * c->bytes), b->ms / RAMP, b->ms,
		 (int)getpid(), b->memory_fd, b->fixed ? "--fixedbufs=1 --registerfiles=1" : "");
	f = popen(command, "re");
	if (!f)
		bench_die("fio: %s", strerror(errno));
	n = fread(output, 1, sizeof(output) - 1, f);
	output[n] = '\0';
	pclose(f);
	b->rest_ns = bench_now_ns() - began - (b->ms + b->ms / RAMP) * 1000000ull;
	m.rate = number_after(strstr(output, c->write ? "\"write\" : {" : "\"read\" : {"), "bw_bytes") * 1e-9;
	percent = number_after(output, "usr_cpu") + number_after(output, "sys_cpu");
	m.cpu = percent / 100 / m.rate;
	if (!(m.rate > 0) || isnan(m.cpu))
		bench_die("fio answered: %.2000s", output);
	return m;
}

static bool fio_is_there(void)
{
	return system("fio --version >/dev/null 2>&1") == 0;
}

/* ---- all cases ---- */

static void report_side(const struct nvme_case *c, struct side *s)
{
	double rates[TURNS], cpus[TURNS];
	char name[128];
	int n = snprintf(name, sizeof(name), "%s %u KiB %s, %s / fio", c->write ? "write" : "read", c->bytes / KIB,
			 c->random ? "random" : "sequential", s->name);

	for (unsigned i = 0; i < s->turns; i++) {
		rates[i] = s->rate[i] / s->fio_rate[i];
		cpus[i] = s->cpu[i] / s->fio_cpu[i];
	}
	bench_report(&(struct bench_figure){
		.bench = "nvme",
		.name = name,
		.unit = "GB/s",
		.value = bench_median(s->rate, s->turns),
		.baseline = bench_median(s->fio_rate, s->turns),
		.ratio = bench_median(rates, s->turns),
		.goal = BENCH_AT_LEAST,
		.target = s->target[c->write],
	});
	snprintf(name + n, sizeof(name) - (size_t)n, ": CPU");
	bench_report(&(struct bench_figure){
		.bench = "nvme",
		.name = name,
		.unit = "s/GB",
		.value = bench_median(s->cpu, s->turns),
		.baseline = bench_median(s->fio_cpu, s->turns),
		.ratio = bench_median(cpus, s->turns),
	});
}

static void memory_make(struct nvme_bench *b, uint64_t bytes)
{
	uint64_t seed = 17;

	b->memory_bytes = bytes;
	b->memory_fd = memfd_create("nvme", MFD_CLOEXEC);
	if (b->memory_fd < 0 || ftruncate(b->memory_fd, (off_t)bytes))
		bench_die("no memory: %s", strerror(errno));
	b->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->memory_fd, 0);
	if (b->memory == MAP_FAILED)
		bench_die("no memory: %s", strerror(errno));
	for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t))
		*(uint64_t *)(void *)(b->memory + i) = bench_random(&seed);
}

static void memory_drop(struct nvme_bench *b)
{
	munmap(b->memory, b->memory_bytes);
	close(b->memory_fd);
}

static void side_note(struct side *s, struct measure m, struct measure fio_)
{
	s->rate[s->turns] = m.rate;
	s->cpu[s->turns] = m.cpu;
	s->fio_rate[s->turns] = fio_.rate;
	s->fio_cpu[s->turns++] = fio_.cpu;
}

static void run_case(struct nvme_bench *b, const struct nvme_case *c)
{
	struct side uring = {.name = "io_uring", .target = {0.95, 0.9}};
	struct side threads = {.name = "threads", .target = {0.7, 0.7}};
	unsigned turns = bench_options.quick ? TURNS_QUICK : TURNS;

	memory_make(b, (uint64_t)DEPTH * c->bytes);
	for (unsigned i = 0; i < turns; i++) {
		bool first = i % 2 && b->uring;
		struct measure m = {0}, f;

		b->turn++;
		if (first)
			m = ours(b, c, RING_URING);
		f = fio(b, c);
		if (b->uring && !first)
			m = ours(b, c, RING_URING);
		if (b->uring)
			side_note(&uring, m, f);
		if (!b->uring || i % THREADS_EVERY == 0)
			side_note(&threads, ours(b, c, RING_THREADS), f);
	}
	memory_drop(b);
	if (b->uring)
		report_side(c, &uring);
	report_side(c, &threads);
}

/* fio gets what we get. */
static void find_what_works(struct nvme_bench *b)
{
	struct ring_options o = {.engine = RING_URING, .depth = 1, .queue_max = 1};
	uint32_t buffer = RING_NONE;
	struct ring *r;

	if (ring_create(&o, &r)) {
		fprintf(stderr, "terrace-bench: nvme: no io_uring (%s), threads only\n", ring_refusal(NULL));
		return;
	}
	b->uring = true;
	memory_make(b, (uint64_t)DEPTH * SLOT_MAX);
	ring_buffer_add(r, b->memory, b->memory_bytes, &buffer);
	b->fixed = buffer != RING_NONE;
	ring_destroy_by(r, UINT64_MAX);
	memory_drop(b);
}

/* False: there is no disk to measure. */
static bool file_make(struct nvme_bench *b)
{
	struct statfs s;

	snprintf(b->path, sizeof(b->path), "%s/nvme", bench_options.folder);
	if (statfs(bench_options.folder, &s) || s.f_type == TMPFS ||
	    (uint64_t)s.f_bavail * (uint64_t)s.f_bsize < b->file_bytes * 2)
		return false;
	b->fd = open(b->path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
	if (b->fd < 0)
		return false;
	memory_make(b, FILL_BYTES);
	for (uint64_t at = 0; at < b->file_bytes; at += FILL_BYTES)
		if (pwrite(b->fd, b->memory, FILL_BYTES, (off_t)at) != FILL_BYTES)
			bench_die("%s: %s", b->path, strerror(errno));
	memory_drop(b);
	if (fsync(b->fd))
		bench_die("%s: %s", b->path, strerror(errno));
	return true;
}

int bench_nvme(void)
{
	static const uint32_t sizes[] = {64 * KIB, 256 * KIB, 544 * KIB, SLOT_MAX};
	struct nvme_bench b = {.file_bytes = (bench_options.quick ? 256ull : 2048ull) * MIB,
			       .ms = bench_options.quick ? MS_QUICK : MS};

	if (!fio_is_there()) {
		fprintf(stderr, "terrace-bench: nvme: skipped, fio is not installed\n");
		return BENCH_SKIPPED;
	}
	if (!file_make(&b)) {
		fprintf(stderr, "terrace-bench: nvme: skipped, %s is no disk with O_DIRECT and enough room\n",
			bench_options.folder);
		return BENCH_SKIPPED;
	}
	find_what_works(&b);
	b.order = malloc(b.file_bytes / sizes[0] * sizeof(b.order[0]));
	if (!b.order)
		bench_die("out of memory");
	for (size_t i = bench_options.quick ? 3 : 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (int kind = 0; kind < 4; kind++)
			run_case(&b, &(struct nvme_case){sizes[i], kind >= 2, kind % 2});
	free(b.order);
	close(b.fd);
	unlink(b.path);
	return 0;
}
