/* The folder of a disk: disk.id, slab files, marker, all by name.
 *
 * A file that must survive a power cut is written, synced, and only then given its name. The folder is synced after
 * each name that is added or removed. Two files are written in place. disk.id is written once, when nothing depends on
 * it yet: an empty one in a folder without slabs is a creation that was cut off. `run` is the other; its loss costs a
 * scan (slab/run.c).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "store/slab/private.h"
#include "store/clock.h"
#include "store/slot.h"
#include "store/crash_point.h"
#include "store/shortage.h"

#define ID_MAGIC 0x3144444945435254ull   /* "TRCEIDD1" */
#define SLAB_MAGIC 0x3142414c45435254ull /* "TRCELAB1" */

/* The file disk.id. These 64 bytes keep their form in every version. */
struct id_record {
	uint64_t magic;
	uint32_t version;
	uint32_t crc;              /* CRC-32C of the 64 bytes with this field 0 */
	uint64_t id;
	uint64_t made_unix_ms;
	uint8_t reserved[32];
};

struct slab_header {
	uint64_t magic;
	uint32_t version;
	uint32_t crc;              /* CRC-32C of the page with this field 0; version 1: 0 */
	uint64_t disk_id;
	uint64_t slot_bytes;
	uint32_t number, slots;
	uint64_t made_unix_ms;
	uint8_t reserved[DISK_SLAB_HEADER_BYTES - 48];
};

_Static_assert(sizeof(struct id_record) == 64, "disk format");
_Static_assert(sizeof(struct slab_header) == DISK_SLAB_HEADER_BYTES, "disk format");

enum { NAME_BYTES = 32 };

static void slab_name(char *name, uint32_t number, const char *ending)
{
	snprintf(name, NAME_BYTES, "slab-%06u.%s", number, ending);
}

/* The number in a file name of the form that slab_name makes, or 0. */
static uint32_t name_number(const char *name, const char *ending)
{
	char again[NAME_BYTES], *end;
	unsigned long long n;

	if (strncmp(name, "slab-", 5) != 0 || name[5] < '0' || name[5] > '9')
		return 0;
	n = strtoull(name + 5, &end, 10);
	if (n == 0 || n > UINT32_MAX)
		return 0;
	slab_name(again, (uint32_t)n, ending);
	return strcmp(again, name) == 0 ? (uint32_t)n : 0;
}

/* Ignores a file system that cannot sync folders: it has nothing to make durable. */
int disk_folder_sync(const struct disk_folder *f)
{
	return fsync(f->fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
}

/* Calls visit for every name, until it returns an errno. */
static int folder_each(const struct disk_folder *f, int (*visit)(void *arg, const char *name), void *arg)
{
	int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!dir) {
		error = errno;
		if (fd >= 0)
			close(fd);
		return error;
	}
	while (error == 0 && (errno = 0, e = readdir(dir)) != NULL)
		error = visit(arg, e->d_name);
	if (error == 0)
		error = errno;
	closedir(dir);
	return error;
}

/* ---- listing ---- */

struct listing {
	uint32_t *numbers, count, room, last;
};

static int list_name(void *arg, const char *name)
{
	struct listing *l = arg;
	uint32_t n = name_number(name, "trc"), gone = name_number(name, "gone");

	if (n > l->last)
		l->last = n;
	if (gone > l->last)
		l->last = gone;
	if (n == 0)
		return 0;
	if (l->count == l->room) {
		uint32_t room = l->room ? 2 * l->room : 64;
		uint32_t *more = realloc(l->numbers, room * sizeof(*more));

		if (!more)
			return ENOMEM;
		l->numbers = more;
		l->room = room;
	}
	l->numbers[l->count++] = n;
	return 0;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int disk_folder_slabs(const struct disk_folder *f, uint32_t **numbers, uint32_t *count, uint32_t *last)
{
	struct listing l = { 0 };
	int error = folder_each(f, list_name, &l);

	if (error != 0) {
		free(l.numbers);
		return error;
	}
	if (l.count > 0)
		qsort(l.numbers, l.count, sizeof(*l.numbers), by_number);
	*numbers = l.numbers;
	*count = l.count;
	*last = l.last;
	return 0;
}

/* ---- wiping and tidying ---- */

struct broom {
	const struct disk_folder *folder;
	bool all;                  /* slabs too, not only what was half made */
	uint32_t last;             /* older .gone files go */
};

/* Empties a .gone file: a crash while the slab was dropped may have left its bytes. A name that is no file is left
 * alone. */
static void drain(const struct disk_folder *f, const char *name)
{
	int fd = openat(f->fd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd >= 0)
		close(fd);
}

static int sweep(void *arg, const char *name)
{
	struct broom *b = arg;
	uint32_t gone = name_number(name, "gone");
	bool rubbish = name_number(name, "tmp") > 0 || (gone > 0 && (b->all || gone < b->last));

	if (gone > 0 && !rubbish)
		drain(b->folder, name);
	if (!rubbish && !(b->all && name_number(name, "trc") > 0))
		return 0;
	return unlinkat(b->folder->fd, name, 0) == 0 || errno == ENOENT ? 0 : errno;
}

static int folder_tidy(const struct disk_folder *f, bool all)
{
	struct broom b = { .folder = f, .all = all };
	uint32_t *numbers, count;
	int error = disk_folder_slabs(f, &numbers, &count, &b.last);

	if (error != 0)
		return error;
	free(numbers);
	CRASH_POINT("folder_tidy");
	error = folder_each(f, sweep, &b);
	return error != 0 ? error : disk_folder_sync(f);
}

void disk_folder_mark(const struct disk_folder *f, const char *why)
{
	int fd = openat(f->fd, "quarantine", O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	CRASH_POINT("mark_open");
	if (fd >= 0) {
		/* The name alone is the mark: the text may be cut off. */
		dprintf(fd, "%s\n", why);
		CRASH_POINT("mark_written");
		(void)fsync(fd);
		close(fd);
	}
	(void)disk_folder_sync(f);
}

/* ---- disk.id ---- */

static uint32_t record_crc(const void *record, size_t bytes, size_t field)
{
	static const uint8_t zero[4];
	const uint8_t *at = record;
	uint32_t crc = slot_crc32c(0, at, field);

	crc = slot_crc32c(crc, zero, sizeof(zero));
	return slot_crc32c(crc, at + field + sizeof(zero), bytes - field - sizeof(zero));
}

static int write_whole(int fd, const void *at, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pwrite(fd, (const uint8_t *)at + done, bytes - done, (off_t)done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			return n == 0 ? EIO : errno;
	}
	return 0;
}

/* *got: bytes up to the end of the file. */
static int read_whole(int fd, void *at, size_t bytes, size_t *got)
{
	*got = 0;
	while (*got < bytes) {
		ssize_t n = pread(fd, (uint8_t *)at + *got, bytes - *got, (off_t)*got);

		if (n == 0)
			return 0;
		if (n > 0)
			*got += (size_t)n;
		else if (errno != EINTR)
			return errno;
	}
	return 0;
}

size_t disk_folder_read(const struct disk_folder *f, const char *name, void *at, size_t bytes)
{
	int fd = openat(f->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), error;
	size_t got;

	if (fd < 0)
		return 0;
	error = read_whole(fd, at, bytes, &got);
	close(fd);
	return error == 0 ? got : 0;
}

int disk_folder_write(const struct disk_folder *f, const char *name, int flags, const void *at, size_t bytes)
{
	int fd = openat(f->fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0600), error;

	if (fd < 0)
		return errno;
	error = write_whole(fd, at, bytes);
	CRASH_POINT("record_written");
	if (error == 0 && fsync(fd) != 0)
		error = errno;
	close(fd);
	return error;
}

static int id_write(struct disk_folder *f, uint64_t id)
{
	struct id_record r = { .magic = ID_MAGIC, .version = DISK_VERSION, .id = id, .made_unix_ms = clock_unix_ms() };
	int error;

	r.crc = record_crc(&r, sizeof(r), offsetof(struct id_record, crc));
	error = write_whole(f->id_fd, &r, sizeof(r));
	CRASH_POINT("id_written");
	if (error == 0 && fsync(f->id_fd) != 0)
		error = errno;
	if (error == 0)
		error = disk_folder_sync(f);
	if (error == 0)
		f->id = id;
	return error;
}

static int id_new(struct disk_folder *f)
{
	uint64_t id = 0;

	while (id == 0)
		if (getrandom(&id, sizeof(id), 0) != sizeof(id))
			return errno;
	CRASH_POINT("id_new");
	return id_write(f, id);
}

static bool is_zero(const void *at, size_t bytes)
{
	const uint8_t *b = at;

	return b[0] == 0 && memcmp(b, b + 1, bytes - 1) == 0;
}

/* Why the record is no disk.id of this format, or NULL. */
static const char *id_problem(const struct id_record *r, size_t got)
{
	if (got != sizeof(*r))
		return "is too short";
	if (r->magic != ID_MAGIC)
		return "is no disk.id";
	if (r->crc != record_crc(r, sizeof(*r), offsetof(struct id_record, crc)))
		return "has a wrong checksum";
	if (r->version == 0 || r->id == 0)
		return "has a false field";
	if (r->version <= DISK_VERSION && !is_zero(r->reserved, sizeof(r->reserved)))
		return "has a false field";
	return NULL;
}

static enum status tell(enum status s, char *why, size_t bytes, const struct disk_folder *f,
			const char *file, const char *text)
{
	snprintf(why, bytes, "%s%s: %s", f->path, file, text);
	return s;
}

static enum status tell_error(int error, char *why, size_t bytes, const struct disk_folder *f,
			      const char *file)
{
	bool scarce = error == EMFILE || error == ENFILE || error == ENOMEM;
	char text[SHORTAGE_WORDS_MAX];

	return tell(scarce ? STATUS_EXHAUSTED : STATUS_IO, why, bytes, f, file, shortage_words(error, text, sizeof(text)));
}

static enum status id_read(struct disk_folder *f, bool slabs, char *why, size_t bytes)
{
	struct id_record r;
	const char *problem;
	size_t got;
	int error = read_whole(f->id_fd, &r, sizeof(r), &got);

	if (error != 0)
		return tell_error(error, why, bytes, f, "/disk.id");
	if (got == 0 && !slabs)
		error = id_new(f);
	if (got == 0 && !slabs)
		return error == 0 ? STATUS_OK : tell_error(error, why, bytes, f, "/disk.id");
	problem = id_problem(&r, got);
	if (problem)
		return tell(STATUS_CORRUPT, why, bytes, f, "/disk.id", problem);
	if (r.version > DISK_VERSION)
		return tell(STATUS_UNSUPPORTED, why, bytes, f, "/disk.id", "is of a newer version");
	f->id = r.id;
	/* From now on there will be slabs and slots that an older version does not know. */
	if (r.version < DISK_VERSION)
		error = id_write(f, r.id);
	return error == 0 ? STATUS_OK : tell_error(error, why, bytes, f, "/disk.id");
}

/* ---- opening ---- */

/* The answer for a folder where earlier runs had a disk and where none is now. A new disk there would hide the old one,
 * or would take its bytes from the file system of the mount point. */
static enum status tell_gone(char *why, size_t bytes, const struct disk_folder *f, const char *file)
{
	return tell(STATUS_NOT_FOUND, why, bytes, f, file, "is missing: earlier runs had a disk here, which is not mounted now, or was emptied");
}

static enum status id_open(struct disk_folder *f, bool slabs, bool must_exist, char *why, size_t bytes)
{
	int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;

	f->id_fd = openat(f->fd, "disk.id", flags);
	if (f->id_fd < 0 && errno == ENOENT && slabs)
		return tell(STATUS_CORRUPT, why, bytes, f, "/disk.id", "is missing, and there are slabs");
	if (f->id_fd < 0 && errno == ENOENT && must_exist)
		return tell_gone(why, bytes, f, "/disk.id");
	if (f->id_fd < 0 && errno == ENOENT)
		f->id_fd = openat(f->fd, "disk.id", flags | O_CREAT, 0600);
	if (f->id_fd < 0)
		return tell_error(errno, why, bytes, f, "/disk.id");
	if (flock(f->id_fd, LOCK_EX | LOCK_NB) != 0)
		return errno == EWOULDBLOCK ? tell(STATUS_BUSY, why, bytes, f, "", "it is in use, by another process or as another of the disks") :
					      tell_error(errno, why, bytes, f, "/disk.id");
	return STATUS_OK;
}

/* tmpfs accepts the flag and caches all the same. */
static bool direct_works(const struct disk_folder *f)
{
	struct statfs fs;
	struct statx x;
	int fd;

	if (fstatfs(f->fd, &fs) != 0 || fs.f_type == TMPFS_MAGIC)
		return false;
	fd = openat(f->fd, "disk.id", O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return false;
	close(fd);
	if (statx(f->fd, "disk.id", 0, STATX_DIOALIGN, &x) != 0 || !(x.stx_mask & STATX_DIOALIGN))
		return true;
	return x.stx_dio_offset_align > 0 && x.stx_dio_offset_align <= SLOT_HEADER_BYTES &&
	       x.stx_dio_mem_align > 0 && x.stx_dio_mem_align <= SLOT_HEADER_BYTES;
}

/* Wipes a quarantined folder: removes the slabs, then makes a new id, then removes the marker. After a crash at any
 * point the next open wipes again. */
static int folder_wipe(struct disk_folder *f)
{
	const uint64_t id = f->id;
	int error = folder_tidy(f, true);

	CRASH_POINT("wipe_swept");
	if (error == 0)
		error = id_new(f);
	CRASH_POINT("wipe_id");
	if (error == 0 && unlinkat(f->fd, "quarantine", 0) != 0)
		error = errno;
	if (error == 0)
		error = disk_folder_sync(f);
	if (error == 0)
		f->wiped_id = id;
	return error;
}

/* Makes a new folder's name durable, if its parent may be opened. */
static void parent_sync(int folder)
{
	const int parent = openat(folder, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (parent < 0)
		return;
	(void)fsync(parent);
	close(parent);
}

/* Opens the folder; makes it first if it is missing and must_exist is not set. */
static enum status path_open(struct disk_folder *f, bool must_exist, char *why, size_t bytes)
{
	const bool made = !must_exist && mkdir(f->path, 0700) == 0;

	if (!must_exist && !made && errno != EEXIST)
		return tell_error(errno, why, bytes, f, "");
	f->fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->fd < 0)
		return must_exist && errno == ENOENT ? tell_gone(why, bytes, f, "") : tell_error(errno, why, bytes, f, "");
	if (made)
		parent_sync(f->fd);
	return STATUS_OK;
}

static enum status folder_begin(struct disk_folder *f, bool must_exist, char *why, size_t bytes)
{
	uint32_t *numbers, count, last;
	enum status s = path_open(f, must_exist, why, bytes);
	int error;

	if (s != STATUS_OK)
		return s;
	error = disk_folder_slabs(f, &numbers, &count, &last);
	if (error != 0)
		return tell_error(error, why, bytes, f, "");
	free(numbers);
	s = id_open(f, count > 0, must_exist, why, bytes);
	if (s == STATUS_OK)
		s = id_read(f, count > 0, why, bytes);
	if (s != STATUS_OK)
		return s;
	f->sync_fd = openat(f->fd, "disk.id", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (f->sync_fd < 0)
		return tell_error(errno, why, bytes, f, "/disk.id");
	f->direct = direct_works(f);
	if (faccessat(f->fd, "quarantine", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		error = folder_wipe(f);
	else
		error = errno == ENOENT ? folder_tidy(f, false) : errno;
	return error == 0 ? STATUS_OK : tell_error(error, why, bytes, f, "");
}

enum status disk_folder_open(struct disk_folder *f, const char *path, bool must_exist, char *why, size_t why_bytes)
{
	enum status s;

	*f = (struct disk_folder){ .path = path, .fd = -1, .id_fd = -1, .sync_fd = -1 };
	s = folder_begin(f, must_exist, why, why_bytes);
	if (s != STATUS_OK)
		disk_folder_close(f);
	return s;
}

void disk_folder_close(struct disk_folder *f)
{
	if (f->sync_fd >= 0)
		close(f->sync_fd);
	if (f->id_fd >= 0)
		close(f->id_fd);
	if (f->fd >= 0)
		close(f->fd);
	f->sync_fd = f->id_fd = f->fd = -1;
}

/* ---- slab files ---- */

static int slab_space(int fd, uint64_t bytes, bool *sparse)
{
	int r;

	*sparse = false;
	do
		r = fallocate(fd, 0, 0, (off_t)bytes);
	while (r != 0 && errno == EINTR);
	if (r == 0)
		return 0;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return errno;
	*sparse = true;
	return ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
}

static int slab_fill(const struct disk_folder *f, struct disk_slab_file *s)
{
	_Alignas(DISK_SLAB_HEADER_BYTES) struct slab_header h = {
		.magic = SLAB_MAGIC,
		.version = DISK_VERSION,
		.disk_id = f->id,
		.slot_bytes = s->slot_bytes,
		.number = s->number,
		.slots = s->slots,
		.made_unix_ms = clock_unix_ms(),
	};
	int error = slab_space(s->fd, s->bytes, &s->sparse);

	CRASH_POINT("slab_space");
	h.crc = record_crc(&h, sizeof(h), offsetof(struct slab_header, crc));
	if (error == 0)
		error = write_whole(s->fd, &h, sizeof(h));
	CRASH_POINT("slab_header");
	return error;
}

static void slab_undo(const struct disk_folder *f, struct disk_slab_file *s, const char *ending)
{
	char name[NAME_BYTES];

	slab_name(name, s->number, ending);
	(void)unlinkat(f->fd, name, 0);
	close(s->fd);
	s->fd = -1;
}

/* Makes the file under its first name and fills it in; it is not durable yet. */
static int slab_begin(const struct disk_folder *f, struct disk_slab_file *s)
{
	int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | (f->direct ? O_DIRECT : 0), error;
	char made[NAME_BYTES];

	slab_name(made, s->number, "tmp");
	s->bytes = DISK_SLAB_HEADER_BYTES + s->slots * s->slot_bytes;
	(void)unlinkat(f->fd, made, 0);
	s->fd = openat(f->fd, made, flags, 0600);
	if (s->fd < 0)
		return errno;
	CRASH_POINT("slab_tmp_open");
	error = slab_fill(f, s);
	if (error != 0)
		slab_undo(f, s, "tmp");
	return error;
}

/* Makes the file durable and gives it its name; the name is not durable yet. */
static int slab_finish(const struct disk_folder *f, struct disk_slab_file *s)
{
	char made[NAME_BYTES], name[NAME_BYTES];
	int error = fsync(s->fd) == 0 ? 0 : errno;

	CRASH_POINT("slab_synced");
	slab_name(made, s->number, "tmp");
	slab_name(name, s->number, "trc");
	if (error == 0 && renameat(f->fd, made, f->fd, name) != 0)
		error = errno;
	CRASH_POINT("slab_renamed");
	if (error != 0)
		slab_undo(f, s, "tmp");
	return error;
}

int disk_slab_files_make(const struct disk_folder *f, struct disk_slab_file *files, uint32_t count, uint32_t *made)
{
	uint32_t begun = 0, done = 0;
	int error = 0;

	while (begun < count && (error = slab_begin(f, &files[begun])) == 0)
		begun++;
	if (begun > 0)
		error = 0;
	while (done < begun && error == 0 && (error = slab_finish(f, &files[done])) == 0)
		done++;
	for (uint32_t i = done + (error != 0); i < begun; i++)
		slab_undo(f, &files[i], "tmp");
	if (done > 0)
		error = disk_folder_sync(f);
	for (uint32_t i = 0; error != 0 && i < done; i++)
		slab_undo(f, &files[i], "trc");
	*made = error != 0 ? 0 : done;
	return error;
}

static const char *slab_problem(const struct disk_folder *f, const struct disk_slab_file *s,
				const struct slab_header *h)
{
	if (h->magic != SLAB_MAGIC)
		return "is no slab";
	if (h->version >= 2 && h->crc != record_crc(h, sizeof(*h), offsetof(struct slab_header, crc)))
		return "has a wrong checksum";
	if (h->version == 0 || h->version > DISK_VERSION)
		return "is of an unknown version";
	if (h->disk_id != f->id)
		return "is of another disk";
	if (h->number != s->number || (h->version == 1 && h->crc != 0) ||
	    !is_zero(h->reserved, sizeof(h->reserved)))
		return "has a false field";
	if (h->slot_bytes == 0 || h->slot_bytes % SLOT_HEADER_BYTES != 0 ||
	    h->slot_bytes > SLOT_BYTES_MAX || h->slots == 0)
		return "has a false slot size";
	if (s->bytes != DISK_SLAB_HEADER_BYTES + h->slots * h->slot_bytes)
		return "has not the size that its header tells";
	return NULL;
}

int disk_slab_file_open(const struct disk_folder *f, struct disk_slab_file *s, const char **problem)
{
	_Alignas(DISK_SLAB_HEADER_BYTES) struct slab_header h;
	int error = 0;
	char name[NAME_BYTES];
	struct stat st;
	size_t got;

	slab_name(name, s->number, "trc");
	s->fd = openat(f->fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (f->direct ? O_DIRECT : 0));
	if (s->fd < 0)
		return errno;
	if (fstat(s->fd, &st) != 0 || (error = read_whole(s->fd, &h, sizeof(h), &got)) != 0) {
		error = error != 0 ? error : errno;
		close(s->fd);
		s->fd = -1;
		return error;
	}
	s->bytes = (uint64_t)st.st_size;
	*problem = got < sizeof(h) ? "is too short" : slab_problem(f, s, &h);
	if (*problem) {
		close(s->fd);
		s->fd = -1;
		return 0;
	}
	s->slots = h.slots;
	s->slot_bytes = h.slot_bytes;
	s->sparse = (uint64_t)st.st_blocks * 512 < s->bytes;
	return 0;
}

int disk_slab_file_remove(const struct disk_folder *f, struct disk_slab_file *s, bool last)
{
	char name[NAME_BYTES], gone[NAME_BYTES];
	int error = 0;

	slab_name(name, s->number, "trc");
	slab_name(gone, s->number, "gone");
	CRASH_POINT("slab_remove");
	if (last)
		error = renameat(f->fd, name, f->fd, gone) == 0 && ftruncate(s->fd, 0) == 0 ? 0 : errno;
	else
		error = unlinkat(f->fd, name, 0) == 0 ? 0 : errno;
	CRASH_POINT("slab_removed");
	close(s->fd);
	s->fd = -1;
	return error != 0 ? error : disk_folder_sync(f);
}
