/* See process/folders.h.
 *
 * Two folders are compared by their real names: links, "..", mounts of one folder in two places do not hide that they are one. A folder that is not
 * there yet has the real name of the nearest one above it that is, and the rest as it is written.
 */
#include "daemon/process/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/log.h"
#include "proto/tls.h"

enum { TEXT_BYTES = 3 * PATH_MAX };

struct place {
	const char *name;              /* as it is configured */
	const char *what;              /* "data_dir", "disks: disk 1" */
	char label[24];
	char real[PATH_MAX];
	uint64_t bytes;                /* of a disk */
	bool there, reached;           /* reached: the folder above it is there */
	struct stat st;                /* if it is there; else of the nearest folder above it */
};

struct check {
	void (*found)(void *arg, enum place_fault fault, const char *text);
	void *arg;
	struct place place[1 + CONFIG_DISKS_MAX]; /* data_dir first */
	uint32_t count;
};

static void __attribute__((format(printf, 3, 4))) tell(struct check *k, enum place_fault fault, const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	k->found(k->arg, fault, text);
}

/* ---- real names ---- */

/* Moves the last part of `path` to the front of `rest`. A ".." and the part before it both vanish. */
static void part_off(char *path, char rest[PATH_MAX], uint32_t *ups)
{
	char *slash = strrchr(path, '/'), before[PATH_MAX];
	const char *part = slash + 1;

	if (!strcmp(part, "..")) {
		++*ups;
	} else if (*ups) {
		--*ups;
	} else if (*part && strcmp(part, ".") != 0) {
		strcpy(before, rest);
		snprintf(rest, PATH_MAX, "/%.*s%.*s", NAME_MAX, part, PATH_MAX - NAME_MAX - 2, before);
	}
	*slash = 0;
}

static void real_name(const char *name, char out[PATH_MAX])
{
	char path[CONFIG_TEXT_MAX], rest[PATH_MAX] = "", found[PATH_MAX] = "";
	uint32_t ups = 0;

	snprintf(path, sizeof path, "%s", name);
	while (*path && (ups || !realpath(path, found)))
		part_off(path, rest, &ups);
	snprintf(out, PATH_MAX, "%.*s%.*s", *path && strcmp(found, "/") != 0 ? PATH_MAX / 2 : 0, found, PATH_MAX / 2, rest);
	if (!*out)
		strcpy(out, "/");
}

/* The nearest folder above that is there. */
static bool nearest(const char *real, struct stat *st)
{
	char path[PATH_MAX];

	strcpy(path, real);
	while (*path && stat(path, st))
		*strrchr(path, '/') = 0;
	return *path || !stat("/", st);
}

static bool parent_is_there(const char *real)
{
	char path[PATH_MAX];
	struct stat st;

	strcpy(path, real);
	*strrchr(path, '/') = 0;
	return !stat(*path ? path : "/", &st);
}

static void place_add(struct check *k, const char *what, const char *name, uint64_t bytes)
{
	struct place *p = &k->place[k->count++];

	*p = (struct place){ .name = name, .bytes = bytes };
	snprintf(p->label, sizeof p->label, "%s", what);
	p->what = p->label;
	real_name(name, p->real);
	p->there = !stat(p->real, &p->st);
	p->reached = parent_is_there(p->real);
	if (!p->there)
		nearest(p->real, &p->st);
}

/* ---- overlaps ---- */

static bool is_same(const struct place *a, const struct place *b)
{
	return !strcmp(a->real, b->real) || (a->there && b->there && a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino);
}

/* Whether b is a, or one of the folders above a. */
static bool is_inside(const struct place *a, const struct place *b)
{
	char path[PATH_MAX];
	struct stat st;

	strcpy(path, a->real);
	for (char *slash = path + strlen(path); slash; slash = strrchr(path, '/')) {
		*slash = 0;
		if (!strcmp(*path ? path : "/", b->real))
			return true;
		if (b->there && !stat(*path ? path : "/", &st) && st.st_dev == b->st.st_dev && st.st_ino == b->st.st_ino)
			return true;
	}
	return false;
}

static void overlaps(struct check *k)
{
	for (uint32_t i = 0; i < k->count; i++)
		for (uint32_t j = 0; j < i; j++) {
			const struct place *a = &k->place[i], *b = &k->place[j];

			if (is_same(a, b))
				tell(k, PLACE_REFUSED, "%s: %s is the same folder as %s, %s: give each a folder of its own", a->what, a->name, b->what, b->name);
			else if (is_inside(a, b))
				tell(k, PLACE_REFUSED, "%s: %s is inside %s, %s: give each a folder of its own, side by side", a->what, a->name, b->what, b->name);
			else if (is_inside(b, a))
				tell(k, PLACE_REFUSED, "%s: %s is inside %s, %s: give each a folder of its own, side by side", b->what, b->name, a->what, a->name);
		}
}

/* ---- one folder ---- */

/* Why the folder cannot be written, or made in the nearest folder above that exists: an errno; 0: it can. */
static int write_problem(const char *real)
{
	char path[PATH_MAX];
	struct stat st;

	strcpy(path, real);
	while (*path && stat(path, &st) && errno == ENOENT)
		*strrchr(path, '/') = 0;
	if (stat(*path ? path : "/", &st))
		return errno;
	if (!S_ISDIR(st.st_mode))
		return ENOTDIR;
	return faccessat(AT_FDCWD, *path ? path : "/", R_OK | W_OK | X_OK, AT_EACCESS) ? errno : 0;
}

static void writable(struct check *k, const struct place *p, enum place_fault fault)
{
	const int error = write_problem(p->real);

	switch (error) {
	case 0:
		break;
	case ENOTDIR:
		tell(k, fault, "%s: %s: it, or what it is to be made in, is not a folder: name another, or move the file away", p->what, p->name);
		break;
	case EROFS:
		tell(k, fault, "%s: %s: its file system is mounted read-only: look for its errors in the kernel's log, and mount it for writing", p->what,
		     p->name);
		break;
	case EACCES:
		tell(k, fault, "%s: %s: user %u may not write there: chown it to the user that the daemon runs as", p->what, p->name, (unsigned)geteuid());
		break;
	default:
		tell(k, fault, "%s: %s: %s: the folder must be there, readable and writable", p->what, p->name, strerror(error));
	}
}

static void disk_check(struct check *k, const struct place *p)
{
	if (p->reached)
		writable(k, p, PLACE_BROKEN);
	else
		tell(k, PLACE_BROKEN, "%s: %s: the folder above it is not there: mount the disk, or make that folder", p->what, p->name);
}

/* ---- sizes ---- */

/* The bytes of the file system that are not reserved for root; 0: not known. */
static uint64_t size_of(const struct place *p)
{
	char path[PATH_MAX];
	struct statvfs fs;

	strcpy(path, p->real);
	while (*path && statvfs(path, &fs) && errno == ENOENT)
		*strrchr(path, '/') = 0;
	return statvfs(*path ? path : "/", &fs) ? 0 : (uint64_t)fs.f_blocks * fs.f_frsize;
}

/* Checks that all disks on the file system of the i-th place fit there. Once a file system, with its first disk. */
static void size_check(struct check *k, uint32_t i)
{
	const struct place *p = &k->place[i];
	uint64_t wanted = 0, size;
	uint32_t disks = 0;

	for (uint32_t j = 1; j < k->count; j++) {
		if (!k->place[j].reached || k->place[j].st.st_dev != p->st.st_dev)
			continue;
		if (j < i)
			return;
		wanted += k->place[j].bytes;
		disks++;
	}
	size = p->reached ? size_of(p) : 0;
	if (!size || wanted <= size)
		return;
	if (disks == 1)
		tell(k, PLACE_SMALL, "%s: %s: its size of %" PRIu64 " MiB is more than its file system has, %" PRIu64 " MiB: give a smaller size, or mount a larger disk",
		     p->what, p->name, wanted >> 20, size >> 20);
	else
		tell(k, PLACE_SMALL, "%s: %s: with %" PRIu32 " more disks on its file system their sizes are %" PRIu64 " MiB, more than it has, %" PRIu64
		     " MiB: give smaller sizes, or mount each disk", p->what, p->name, disks - 1, wanted >> 20, size >> 20);
}

void places_check(const struct config *c, void (*found)(void *arg, enum place_fault fault, const char *text), void *arg)
{
	static struct config_disk disks[CONFIG_DISKS_MAX];
	static struct check k; /* large: the check runs once, before any thread */
	const char *problem;
	const uint32_t n = config_disks(c->disks, disks, &problem);

	k.found = found;
	k.arg = arg;
	k.count = 0;
	place_add(&k, "data_dir", c->data_dir, 0);
	for (uint32_t i = 0; i < n; i++) {
		char what[24];

		snprintf(what, sizeof what, "disks: disk %u", i);
		place_add(&k, what, disks[i].folder, disks[i].bytes);
	}
	overlaps(&k);
	writable(&k, &k.place[0], PLACE_CLOSED);
	for (uint32_t i = 1; i < k.count; i++) {
		disk_check(&k, &k.place[i]);
		size_check(&k, i);
	}
}

struct refusal {
	const struct config *config;
	struct config_errors *errors;
};

static void refuse(void *arg, enum place_fault fault, const char *text)
{
	static const char *const effect[] = {
		[PLACE_REFUSED] = "the daemon does not start so",
		[PLACE_CLOSED] = "the daemon does not start so",
		[PLACE_BROKEN] = "the daemon would start without this disk, degraded",
		[PLACE_SMALL] = "the daemon would use what there is",
	};
	const struct refusal *r = arg;

	if (fault == PLACE_REFUSED || r->config->check)
		config_complain(r->errors, "%s (%s)", text, effect[fault]);
}

/* Checks the certificates of `listen`, as the start does when it makes the TLS (rpc/tls.h). */
static void check_certificates(const struct config *c, struct config_errors *errors)
{
	const struct tls_files files = { .cert = c->listen_cert, .key = c->listen_key, .ca = c->listen_ca };
	char why[TLS_WORDS_MAX];

	if (c->check && config_listen_tls(c) && !tls_files_usable(&files, why))
		config_complain(errors, "listen: %s", why);
}

enum status places_refuse(const struct config *c, enum status s, struct config_errors *errors)
{
	struct refusal r = { c, errors };

	if (s || c->help || c->version || c->print)
		return s;
	places_check(c, refuse, &r);
	check_certificates(c, errors);
	return errors->count ? STATUS_INVALID : STATUS_OK;
}

static void warn_small(void *arg, enum place_fault fault, const char *text)
{
	(void)arg;
	if (fault == PLACE_SMALL)
		log_warn("disk_small", LOG_TEXT("reason", text));
}

void places_warn(const struct config *c)
{
	places_check(c, warn_small, NULL);
}
