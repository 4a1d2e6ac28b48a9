/* See names/secret.h. */
#include "daemon/secrets/secret_file.h"

#include "proto/file_stamp.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A new derivation wants new labels: daemons that derive in different ways must not take each other's names. */
#define LABEL_NAMES "terrace 1 public names"
#define LABEL_FINGERPRINT "terrace 1 fingerprint of a secret"
#define LABEL_SAME "terrace 1 same secret"

enum { MAC_BYTES = 32, INPUT_MAX = 128, STACK_BYTES = 32 * 1024 };

/* Pages of their own, which no core dump has. */
struct bytes {
	size_t n;
	uint8_t at[SECRET_BYTES_MAX + 1];
};

static enum status refuse(char why[SECRET_WHY_MAX], enum status s, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static enum status refuse(char why[SECRET_WHY_MAX], enum status s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, SECRET_WHY_MAX, format, args);
	va_end(args);
	return s;
}

/* ---- the file ---- */

static enum status kind_problem(const char *path, const struct stat *st, char why[SECRET_WHY_MAX])
{
	if (!S_ISREG(st->st_mode))
		return refuse(why, STATUS_INVALID, "%.500s: it is no regular file: name the file that has the secret",
			      path);
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return refuse(why, STATUS_DENIED,
			      "%.500s: it is of uid %u, who could change it: give it to root, or to uid %u, the "
			      "daemon's (chown)",
			      path, (unsigned)st->st_uid, (unsigned)geteuid());
	if (st->st_mode & (S_IRWXO | S_IWGRP))
		return refuse(why, STATUS_DENIED,
			      "%.500s: it is of uid %u and has mode %04o, by which %s: chmod 0400, or 0440 for a group",
			      path, (unsigned)st->st_uid, (unsigned)st->st_mode & 07777,
			      st->st_mode & S_IRWXO ? "others may reach it" : "its group may write it");
	if (st->st_size < SECRET_BYTES_MIN || st->st_size > SECRET_BYTES_MAX)
		return refuse(why, STATUS_INVALID,
			      "%.500s: it has %lld bytes, and a secret %d to %d: make one anew (openssl rand -hex 32)",
			      path, (long long)st->st_size, SECRET_BYTES_MIN, SECRET_BYTES_MAX);
	return STATUS_OK;
}

static enum status fill(int fd, const char *path, struct bytes *b, char why[SECRET_WHY_MAX])
{
	ssize_t got;

	b->n = 0;
	do {
		got = read(fd, b->at + b->n, sizeof b->at - b->n);
		b->n += got > 0 ? (size_t)got : 0;
	} while (b->n < sizeof b->at && (got > 0 || (got < 0 && errno == EINTR)));
	return got < 0 ? refuse(why, STATUS_IO, "%.500s: %s: make the file readable", path, strerror(errno)) :
			 STATUS_OK;
}

/* Zeroes, or any other byte alone: what a crash leaves of a file, and nothing that was drawn at random. */
static bool is_one_byte(const struct bytes *b)
{
	return !memcmp(b->at, b->at + 1, b->n - 1);
}

static enum status take(int fd, const char *path, struct bytes *b, char why[SECRET_WHY_MAX])
{
	struct file_stamp before, after;
	struct stat st;
	enum status s;

	if (fstat(fd, &st))
		return refuse(why, STATUS_IO, "%.500s: %s: make the file readable", path, strerror(errno));
	s = kind_problem(path, &st, why);
	if (s == STATUS_OK)
		s = fill(fd, path, b, why);
	if (s != STATUS_OK)
		return s;
	file_stamp_of(&st, &before);
	if (fstat(fd, &st))
		return refuse(why, STATUS_IO, "%.500s: %s: make the file readable", path, strerror(errno));
	file_stamp_of(&st, &after);
	if (!file_stamp_same(&before, &after) || b->n != before.bytes)
		return refuse(why, STATUS_BUSY, "%.500s: it was being written: rename a whole file over it", path);
	if (is_one_byte(b))
		return refuse(why, STATUS_INVALID,
			      "%.500s: all its bytes are the same, as in a damaged file: make it anew (openssl rand "
			      "-hex 32)",
			      path);
	b->n -= b->at[b->n - 1] == '\n';
	return STATUS_OK;
}

/* ---- what is derived ---- */

static bool mac(const struct bytes *b, const char *label, const char *tenant, uint8_t out[MAC_BYTES])
{
	char input[INPUT_MAX];
	unsigned n = MAC_BYTES;
	/* with the zero between the two, so that no label and tenant read as another pair */
	const int used = snprintf(input, sizeof input, "%s%c%s", label, 0, tenant);

	return used > 0 && used < INPUT_MAX &&
	       HMAC(EVP_sha256(), b->at, (int)b->n, (const uint8_t *)input, (size_t)used, out, &n) && n == MAC_BYTES;
}

static bool derive(const struct bytes *b, const char *tenant, struct secret *out)
{
	uint8_t names[MAC_BYTES], shown[MAC_BYTES];
	const bool ok = mac(b, LABEL_NAMES, tenant, names) && mac(b, LABEL_FINGERPRINT, tenant, shown) &&
			mac(b, LABEL_SAME, "", out->same);

	if (ok) {
		memcpy(out->key, names, sizeof out->key);
		out->key[0] = le64toh(out->key[0]);
		out->key[1] = le64toh(out->key[1]);
		memcpy(&out->fingerprint, shown, sizeof out->fingerprint);
		out->fingerprint = be32toh(out->fingerprint);
	}
	explicit_bzero(names, sizeof names);
	explicit_bzero(shown, sizeof shown);
	return ok;
}

/* Overwrites what called functions, OpenSSL's above all, have left of the secret and of keys on this thread's stack. */
static __attribute__((noinline)) void stack_forget(void)
{
	uint8_t below[STACK_BYTES];

	explicit_bzero(below, sizeof below);
}

SECRET_CLEARS_REGISTERS
static enum status read_and_derive(const char *path, const char *tenant, struct secret *out,
				   char why[SECRET_WHY_MAX])
{
	struct bytes *b;
	struct secret found;
	enum status s;
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		return refuse(why,
			      errno == ENOENT ? STATUS_NOT_FOUND :
			      errno == EACCES ? STATUS_DENIED :
						STATUS_IO,
			      "%.500s: %s: make the secret there, readable for uid %u, the daemon's", path,
			      strerror(errno), (unsigned)geteuid());
	b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED) {
		close(fd);
		return refuse(why, STATUS_EXHAUSTED, "%.500s: no memory to read it", path);
	}
	madvise(b, sizeof *b, MADV_DONTDUMP);
	s = take(fd, path, b, why);
	if (s == STATUS_OK && !derive(b, tenant, &found))
		s = refuse(why, STATUS_INTERNAL, "%.500s: OpenSSL makes no HMAC-SHA-256: see its configuration", path);
	explicit_bzero(b, sizeof *b);
	munmap(b, sizeof *b);
	close(fd);
	if (s == STATUS_OK)
		*out = found;
	secret_forget(&found);
	return s;
}

enum status secret_read(const char *path, const char *tenant, struct secret *out, char why[SECRET_WHY_MAX])
{
	const enum status s = read_and_derive(path, tenant, out, why);

	stack_forget();
	return s;
}

void secret_forget(struct secret *s)
{
	explicit_bzero(s, sizeof *s);
}
