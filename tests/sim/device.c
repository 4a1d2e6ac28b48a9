/* The memory of a device that is none: see sim/device.h. */
#include "tests/sim/private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define EXPORTED __attribute__((visibility("default")))

enum { DRIVER_POLL_NS = 200000 };

static _Atomic bool lost_devices[DEVICES_MAX];
static pthread_mutex_t driver_mutex = PTHREAD_MUTEX_INITIALIZER; /* held by an extent_drop that waits for streams */
static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device *open_devices; /* under open_mutex */

enum status sim_refuse(enum status s, const char **why, const char *words)
{
	*why = words;
	return s;
}

static uint64_t number_of(const char *name, uint64_t without)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : without;
}

static void file_of(const char *name, uint32_t ordinal, char *out, size_t room)
{
	const char *text = getenv(name);

	out[0] = 0;
	if (text && *text)
		snprintf(out, room, "%s.%u", text, ordinal);
}

bool sim_lost(uint32_t ordinal, const char *lost_file)
{
	if (!lost_devices[ordinal] && lost_file[0] && access(lost_file, F_OK) == 0)
		lost_devices[ordinal] = true;
	return lost_devices[ordinal];
}

void sim_lose(struct device *d)
{
	lost_devices[d->ordinal] = true;
	if (d->lost_file[0])
		close(open(d->lost_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static bool is_lost(struct device *d)
{
	return sim_lost(d->ordinal, d->lost_file);
}

static void drop_wait(const struct device *d)
{
	if (!d->drop_waits)
		return;
	pthread_mutex_lock(&driver_mutex);
	pthread_mutex_unlock(&driver_mutex);
}

/* What calls that a driver may take long over begin with. */
static void driver_wait(const struct device *d)
{
	while (d->stuck_file[0] && access(d->stuck_file, F_OK) == 0)
		nanosleep(&(struct timespec){ .tv_nsec = DRIVER_POLL_NS }, NULL);
	drop_wait(d);
}

/* And those that it answers at once, unless it answers nothing. */
static void driver_dead_wait(const struct device *d)
{
	struct stat st;

	while (d->stuck_file[0] && stat(d->stuck_file, &st) == 0 && st.st_size > 0)
		nanosleep(&(struct timespec){ .tv_nsec = DRIVER_POLL_NS }, NULL);
}

static bool lost(struct device *d)
{
	driver_dead_wait(d);
	drop_wait(d);
	return is_lost(d);
}

static bool reaches(struct device *d, struct device *other)
{
	return d != other && !d->no_peers;
}

static enum status refuse_lost(const char **why)
{
	return sim_refuse(STATUS_UNAVAILABLE, why, "the simulated device is lost");
}

static uint32_t count(void)
{
	uint64_t n = number_of("SIM_GPU_DEVICES", 1);

	return n < DEVICES_MAX ? (uint32_t)n : DEVICES_MAX;
}

static void read_environment(struct device *d)
{
	d->bytes = number_of("SIM_GPU_BYTES", 1ull << 30);
	d->limit = number_of("SIM_GPU_FREE", d->bytes);
	if (d->limit > d->bytes)
		d->limit = d->bytes;
	d->us_per_mib = number_of("SIM_GPU_US_PER_MIB", 0);
	d->lost_after = d->ordinal == 0 ? number_of("SIM_GPU_LOST_AFTER", 0) : 0;
	d->no_export = getenv("SIM_GPU_NO_EXPORT") != NULL;
	d->no_register = getenv("SIM_GPU_NO_REGISTER") != NULL;
	d->no_peers = getenv("SIM_GPU_NO_PEERS") != NULL;
	d->no_kernel = getenv("SIM_GPU_NO_KERNEL") != NULL;
	file_of("SIM_GPU_HOLD_FILE", d->ordinal, d->hold_file, sizeof(d->hold_file));
	file_of("SIM_GPU_SUMS_HOLD_FILE", d->ordinal, d->sums_hold_file, sizeof(d->sums_hold_file));
	d->drop_waits = getenv("SIM_GPU_DROP_WAITS") != NULL;
	file_of("SIM_GPU_LOST_FILE", d->ordinal, d->lost_file, sizeof(d->lost_file));
	file_of("SIM_GPU_STUCK_FILE", d->ordinal, d->stuck_file, sizeof(d->stuck_file));
}

static enum status open_device(uint32_t ordinal, struct device **out, const char **why)
{
	struct device *d;

	if (ordinal >= count())
		return sim_refuse(STATUS_INVALID, why, "there is no such simulated device");
	if (number_of("SIM_GPU_SHUT", DEVICES_MAX) == ordinal) {
		fprintf(stderr, "simulated device: %u is opened\n", ordinal);
		abort();
	}
	d = calloc(1, sizeof(*d));
	if (!d)
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory");
	d->ordinal = ordinal;
	read_environment(d);
	if (is_lost(d)) {
		free(d);
		return refuse_lost(why);
	}
	pthread_mutex_init(&d->mutex, NULL);
	for (uint32_t i = 0; i < SIM_WAYS; i++) {
		d->ways[i].device = d;
		d->ways[i].last = &d->ways[i].first;
		pthread_cond_init(&d->ways[i].more, NULL);
	}
	d->sums_last = &d->sums_first;
	pthread_cond_init(&d->sums_more, NULL);
	pthread_mutex_lock(&open_mutex);
	d->next_open = open_devices;
	open_devices = d;
	pthread_mutex_unlock(&open_mutex);
	*out = d;
	return STATUS_OK;
}

static void region_free(struct sim_region *r)
{
	if (r->kind == SIM_RANGE)
		munmap(r->map, r->map_bytes);
	else if (r->kind != SIM_HOST) /* back to nothing */
		mmap((void *)r->at, r->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	free(r);
}

/* Memory before the ranges that hold it. */
static void regions_free(struct device *d)
{
	for (int ranges = 0; ranges < 2; ranges++) {
		struct sim_region **at = &d->regions;

		while (*at) {
			struct sim_region *r = *at;

			if (ranges == 0 && r->kind == SIM_RANGE) {
				at = &r->next;
			} else {
				*at = r->next;
				region_free(r);
			}
		}
	}
}

static void close_device(struct device *d)
{
	if (!d)
		return;
	driver_dead_wait(d);
	sim_copy_end(d);
	sim_sums_end(d);
	pthread_mutex_lock(&open_mutex);
	for (struct device **at = &open_devices; *at; at = &(*at)->next_open) {
		if (*at == d) {
			*at = d->next_open;
			break;
		}
	}
	pthread_mutex_unlock(&open_mutex);
	regions_free(d);
	for (uint32_t i = 0; i < SIM_WAYS; i++)
		pthread_cond_destroy(&d->ways[i].more);
	pthread_cond_destroy(&d->sums_more);
	pthread_mutex_destroy(&d->mutex);
	free(d);
}

static void uuid_of(uint32_t ordinal, uint8_t out[DEVICE_UUID_BYTES])
{
	memset(out, 0, DEVICE_UUID_BYTES);
	snprintf((char *)out, DEVICE_UUID_BYTES, "simulated-%u", ordinal);
}

static enum status uuid(uint32_t ordinal, uint8_t out[DEVICE_UUID_BYTES], const char **why)
{
	if (ordinal >= count())
		return sim_refuse(STATUS_INVALID, why, "there is no such simulated device");
	uuid_of(ordinal, out);
	return STATUS_OK;
}

static enum status info(struct device *d, struct device_info *out, const char **why)
{
	struct device_info i = { .bytes = d->bytes, .granularity = SIM_GRANULARITY };

	if (is_lost(d))
		return refuse_lost(why);
	uuid_of(d->ordinal, i.uuid);
	snprintf(i.name, sizeof(i.name), "simulated device %u", d->ordinal);
	strcpy(i.no_kernel, d->no_kernel ? "the simulated device has no such code" : "");
	pthread_mutex_lock(&d->mutex);
	i.free_bytes = d->limit - d->used;
	pthread_mutex_unlock(&d->mutex);
	*out = i;
	return STATUS_OK;
}

static bool within(const struct sim_region *r, uintptr_t at, uint64_t bytes)
{
	return at >= r->at && bytes <= r->bytes && at - r->at <= r->bytes - bytes;
}

const struct sim_region *sim_region_of(const struct device *d, uint64_t address, uint64_t bytes)
{
	uintptr_t at = (uintptr_t)sim_at(address);

	for (const struct sim_region *r = d->regions; r; r = r->next)
		if (r->kind != SIM_RANGE && within(r, at, bytes))
			return r;
	return NULL;
}

bool sim_elsewhere(const struct device *d, uint64_t address, uint64_t bytes, bool write)
{
	bool there = false;

	pthread_mutex_lock(&open_mutex);
	for (struct device *other = open_devices; other && !there; other = other->next_open) {
		const struct sim_region *r;

		if (other == d)
			continue;
		pthread_mutex_lock(&other->mutex);
		r = sim_region_of(other, address, bytes);
		there = r && r->kind != SIM_HOST && (r->write || !write);
		pthread_mutex_unlock(&other->mutex);
	}
	pthread_mutex_unlock(&open_mutex);
	return there;
}

/* Adds a region; NULL: no memory. */
static struct sim_region *region_add(struct device *d, struct sim_region as)
{
	struct sim_region *r = malloc(sizeof(*r));

	if (!r)
		return NULL;
	*r = as;
	pthread_mutex_lock(&d->mutex);
	r->next = d->regions;
	d->regions = r;
	pthread_mutex_unlock(&d->mutex);
	return r;
}

/* Takes the region of this kind that begins at `at` out of the list; NULL: there is none. */
static struct sim_region *region_take(struct device *d, uintptr_t at, bool range, bool host)
{
	struct sim_region **place, *r = NULL;

	pthread_mutex_lock(&d->mutex);
	for (place = &d->regions; *place; place = &(*place)->next) {
		if ((*place)->at == at && ((*place)->kind == SIM_RANGE) == range && ((*place)->kind == SIM_HOST) == host) {
			r = *place;
			*place = r->next;
			if (r->kind == SIM_MADE)
				d->used -= r->bytes;
			break;
		}
	}
	pthread_mutex_unlock(&d->mutex);
	return r;
}

static bool whole(uint64_t bytes)
{
	return bytes > 0 && bytes % SIM_GRANULARITY == 0 && bytes < (uint64_t)SIM_MARK / 2;
}

static enum status range_reserve(struct device *d, uint64_t bytes, uint64_t *address, const char **why)
{
	struct sim_region r = { .kind = SIM_RANGE, .bytes = bytes, .map_bytes = bytes + SIM_GRANULARITY };

	if (is_lost(d))
		return refuse_lost(why);
	if (!whole(bytes))
		return sim_refuse(STATUS_INVALID, why, "a range is a multiple of the granularity");
	r.map = mmap(NULL, r.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r.map == MAP_FAILED)
		return sim_refuse(STATUS_EXHAUSTED, why, "no address space");
	r.at = ((uintptr_t)r.map + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
	if (!region_add(d, r)) {
		munmap(r.map, r.map_bytes);
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory");
	}
	*address = (uint64_t)(uintptr_t)sim_mark((void *)r.at);
	return STATUS_OK;
}

static void range_free(struct device *d, uint64_t address, uint64_t bytes)
{
	struct sim_region *r = region_take(d, (uintptr_t)sim_at(address), true, false);

	if (r && r->bytes == bytes) {
		region_free(r);
		return;
	}
	fprintf(stderr, "simulated device: range_free of what is no range\n");
	abort();
}

/* Whether an extent may be put there: inside a range, beside the others; mutex held. */
static bool place_free(const struct device *d, uintptr_t at, uint64_t bytes)
{
	bool in_range = false;

	for (const struct sim_region *r = d->regions; r; r = r->next) {
		if (r->kind == SIM_RANGE)
			in_range = in_range || within(r, at, bytes);
		else if (r->kind != SIM_HOST && at < r->at + r->bytes && r->at < at + bytes)
			return false;
	}
	return in_range;
}

/* Maps a memfd as an extent. Two callers with one place are a mistake of theirs that nothing here orders. */
static enum status extent_map(struct device *d, int fd, uint64_t address, uint64_t bytes, bool write, int kind,
			      struct device_extent *out, const char **why)
{
	struct sim_region r = { .at = (uintptr_t)sim_at(address), .bytes = bytes, .write = write, .kind = kind }, *added;
	bool ok;

	pthread_mutex_lock(&d->mutex);
	ok = r.at % SIM_GRANULARITY == 0 && place_free(d, r.at, bytes);
	pthread_mutex_unlock(&d->mutex);
	if (!ok)
		return sim_refuse(STATUS_INVALID, why, "an extent goes into a range, beside the others");
	if (mmap((void *)r.at, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return sim_refuse(STATUS_EXHAUSTED, why, "mmap of a memfd");
	(void)madvise((void *)r.at, bytes, MADV_DONTFORK); /* children of a process have none of its GPU's memory */
	added = region_add(d, r);
	if (!added)
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory");
	*out = (struct device_extent){ .address = address, .bytes = bytes, .handle = added };
	return STATUS_OK;
}

/* A descriptor that tells what it is by its name, so that one of another device, or of host memory, is noticed. */
static int memory_make(const struct device *d, uint64_t bytes)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "simulated-device-%u", d->ordinal);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
		return fd;
	close(fd);
	return -1;
}

static bool memory_taken(struct device *d, uint64_t bytes)
{
	bool ok;

	pthread_mutex_lock(&d->mutex);
	ok = bytes <= d->limit - d->used;
	if (ok)
		d->used += bytes;
	pthread_mutex_unlock(&d->mutex);
	return ok;
}

static enum status extent_make(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd, const char **why)
{
	enum status s = STATUS_EXHAUSTED;
	int made;

	driver_dead_wait(d);
	if (is_lost(d))
		return refuse_lost(why);
	if (d->no_export)
		return sim_refuse(STATUS_UNSUPPORTED, why, "the simulated device cannot share its memory");
	if (!whole(bytes))
		return sim_refuse(STATUS_INVALID, why, "an extent is a multiple of the granularity");
	if (!memory_taken(d, bytes))
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory on the simulated device");
	made = memory_make(d, bytes);
	if (made >= 0)
		s = extent_map(d, made, at, bytes, true, SIM_MADE, out, why);
	else
		*why = "no descriptor for memory of the simulated device";
	if (s == STATUS_OK) {
		*fd = made;
		return STATUS_OK;
	}
	if (made >= 0)
		close(made);
	pthread_mutex_lock(&d->mutex);
	d->used -= bytes;
	pthread_mutex_unlock(&d->mutex);
	return s;
}

static bool is_memory_of(const struct device *d, int fd, uint64_t bytes)
{
	char path[64], name[128], expected[64];
	struct stat st;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	if (n < 0)
		return false;
	name[n] = 0;
	snprintf(expected, sizeof(expected), "/memfd:simulated-device-%u (deleted)", d->ordinal);
	return strcmp(name, expected) == 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size == bytes;
}

static enum status extent_import(struct device *d, int fd, uint64_t at, uint64_t bytes, bool write, struct device_extent *out,
				 const char **why)
{
	driver_wait(d);
	if (is_lost(d))
		return refuse_lost(why);
	if (!whole(bytes) || !is_memory_of(d, fd, bytes))
		return sim_refuse(STATUS_INVALID, why, "the descriptor is not of so much memory of this device");
	return extent_map(d, fd, at, bytes, write, SIM_IMPORTED, out, why);
}

static void extent_drop(struct device *d, const struct device_extent *e)
{
	struct sim_region *r;

	driver_wait(d);
	if (d->drop_waits) {
		pthread_mutex_lock(&driver_mutex);
		while (sim_streams_wait())
			nanosleep(&(struct timespec){ .tv_nsec = DRIVER_POLL_NS }, NULL);
		pthread_mutex_unlock(&driver_mutex);
	}
	r = region_take(d, (uintptr_t)sim_at(e->address), false, false);
	if (r && r == e->handle && r->bytes == e->bytes) {
		region_free(r);
		return;
	}
	fprintf(stderr, "simulated device: extent_drop of what is no extent\n");
	abort();
}

/* Whether a registered piece overlaps; mutex held. */
static bool registered(const struct device *d, uintptr_t at, uint64_t bytes)
{
	for (const struct sim_region *r = d->regions; r; r = r->next)
		if (r->kind == SIM_HOST && at < r->at + r->bytes && r->at < at + bytes)
			return true;
	return false;
}

/* Pages that are not mapped are noticed here; those that cannot be written, at the first copy to them. */
static enum status host_register(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why)
{
	struct sim_region r = { .kind = SIM_HOST, .at = (uintptr_t)memory, .bytes = bytes, .write = write };
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	bool twice;

	driver_wait(d);
	if (is_lost(d))
		return refuse_lost(why);
	if (d->no_register)
		return sim_refuse(STATUS_EXHAUSTED, why, "the simulated device cannot pin host memory");
	if (bytes == 0 || r.at == 0 || r.at % page != 0 || sim_marked(memory) || msync(memory, bytes, MS_ASYNC) != 0)
		return sim_refuse(STATUS_INVALID, why, "no such host memory");
	pthread_mutex_lock(&d->mutex);
	twice = registered(d, r.at, bytes);
	pthread_mutex_unlock(&d->mutex);
	if (twice)
		return sim_refuse(STATUS_INVALID, why, "the host memory is registered already");
	if (!region_add(d, r))
		return sim_refuse(STATUS_EXHAUSTED, why, "no memory");
	*address = (uint64_t)(uintptr_t)sim_mark(memory);
	return STATUS_OK;
}

static void host_unregister(struct device *d, void *memory)
{
	struct sim_region *r;

	driver_wait(d);
	r = region_take(d, (uintptr_t)memory, false, true);
	if (r) {
		region_free(r);
		return;
	}
	fprintf(stderr, "simulated device: host_unregister of what is not registered\n");
	abort();
}

static void ready(struct device *d, enum device_way way)
{
	(void)way;
	driver_dead_wait(d);
}

#define TABLE(name, sums_function)                                                                                                      \
	static const struct device_ops name = {                                                                                         \
		.version = DEVICE_OPS_VERSION, .bytes = sizeof(name), .count = count, .uuid = uuid, .open = open_device,                \
		.close = close_device, .info = info, .lost = lost, .reaches = reaches, .range_reserve = range_reserve,                  \
		.range_free = range_free, .extent_make = extent_make, .extent_import = extent_import, .extent_drop = extent_drop,       \
		.host_register = host_register, .host_unregister = host_unregister, .copy = sim_copy, .ready = ready,                   \
		.sums = sums_function, .stream_wait = sim_stream_wait, .stream_then = sim_stream_then,                                  \
	}

TABLE(with_sums, sim_sums);
TABLE(without_sums, NULL);

EXPORTED const struct device_ops *terrace_device_ops(void)
{
	return getenv("SIM_GPU_NO_SUMS") ? &without_sums : &with_sums;
}
