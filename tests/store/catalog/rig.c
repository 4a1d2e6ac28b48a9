#include "tests/store/catalog/rig.h"

#include "tests/held_folder.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void rig_init(struct rig *r)
{
	const char *tmp = getenv("TMPDIR");

	/* Memory, where syncs cost nothing; TMPDIR for a disk. */
	if (!tmp)
		tmp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
	memset(r, 0, sizeof(*r));
	ck_assert(held_folder_make(tmp, r->folder, sizeof(r->folder)));
	r->options.folder = r->folder;
	r->options.batch_ms = 5;
	r->options.queue_bytes_max = 8 << 20;
	r->options.check_timeout_ms = 20000;
}

void rig_path(const struct rig *r, const char *name, char path[128])
{
	ck_assert_int_lt(snprintf(path, 128, "%s/%s", r->folder, name), 128);
}

void rig_fini(struct rig *r)
{
	struct dirent *e;
	DIR *dir;

	rig_close(r);
	dir = opendir(r->folder);
	while (dir && (e = readdir(dir)))
		unlinkat(dirfd(dir), e->d_name, strncmp(e->d_name, "sub", 3) == 0 ? AT_REMOVEDIR : 0);
	if (dir)
		closedir(dir);
	rmdir(r->folder);
}

enum status rig_try(struct rig *r)
{
	return catalog_open(&r->options, &r->c, &r->state, r->why, sizeof(r->why));
}

void rig_open(struct rig *r, enum catalog_state expected)
{
	enum status s = rig_try(r);

	ck_assert_msg(s == STATUS_OK, "catalog_open: %s: %s", status_name(s), r->why);
	ck_assert_msg(r->state == expected, "state %d, not %d: %s", (int)r->state, (int)expected, r->why);
}

void rig_close(struct rig *r)
{
	catalog_close(r->c);
	r->c = NULL;
}

struct told {
	sem_t sem;
	enum status s;
};

static void tell(void *arg, enum status s)
{
	struct told *t = arg;

	t->s = s;
	sem_post(&t->sem);
}

enum status rig_flush(struct rig *r)
{
	struct told t;

	sem_init(&t.sem, 0, 0);
	ck_assert_int_eq(catalog_flush(r->c, tell, &t), STATUS_OK);
	while (sem_wait(&t.sem) != 0)
		continue;
	sem_destroy(&t.sem);
	return t.s;
}

void rig_put(struct rig *r, enum catalog_table t, const char *key, const char *value)
{
	ck_assert_int_eq(catalog_put(r->c, t, key, strlen(key), value, strlen(value)), STATUS_OK);
}

const char *rig_get(struct rig *r, enum catalog_table t, const char *key)
{
	static char text[CATALOG_VALUE_MAX + 1];
	size_t n = CATALOG_VALUE_MAX;
	enum status s = catalog_get(r->c, t, key, strlen(key), text, &n);

	ck_assert_msg(s == STATUS_OK || s == STATUS_MISS, "catalog_get: %s", status_name(s));
	text[s == STATUS_OK ? n : 0] = 0;
	return text;
}

uint8_t *rig_read(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "rb");
	struct stat st;
	uint8_t *data;

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fstat(fileno(f), &st), 0);
	data = malloc((size_t)st.st_size + 1);
	ck_assert_ptr_nonnull(data);
	*bytes = fread(data, 1, (size_t)st.st_size, f);
	ck_assert_uint_eq(*bytes, (size_t)st.st_size);
	fclose(f);
	return data;
}

void rig_write(const char *path, const void *data, size_t bytes)
{
	FILE *f = fopen(path, "wb");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(data, 1, bytes, f), bytes);
	ck_assert_int_eq(fclose(f), 0);
}

bool rig_exists(const struct rig *r, const char *name)
{
	char path[128];

	rig_path(r, name, path);
	return access(path, F_OK) == 0;
}

uint64_t rig_rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}
