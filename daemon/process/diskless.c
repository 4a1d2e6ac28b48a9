/* See process/diskless.h. */
#include "daemon/process/diskless.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/process/config.h"
#include "store/shortage.h"

enum { PATH_BYTES = CONFIG_TEXT_MAX + 16 };

static bool is_there(const struct config *c, const char *name, char path[PATH_BYTES])
{
	struct stat st;

	snprintf(path, PATH_BYTES, "%s/%s", c->data_dir, name);
	return !lstat(path, &st);
}

static bool folder_sync(const char *folder)
{
	const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const bool synced = fd >= 0 && !fsync(fd);

	if (fd >= 0)
		close(fd);
	return synced;
}

static void unmark(const struct diskless *l)
{
	char path[PATH_BYTES];

	if (is_there(l->config, "diskless", path) && !unlink(path))
		folder_sync(l->config->data_dir);
}

enum status diskless_begin(struct diskless *l, const struct config *c, char *why, size_t size)
{
	char path[PATH_BYTES], words[SHORTAGE_WORDS_MAX];
	const bool disks_before = is_there(c, "catalog", path), marked = is_there(c, "diskless", path);
	int fd;

	*l = (struct diskless){ .config = c, .distrust = c->disks[0] && marked };
	if (c->disks[0] || !disks_before || marked)
		return STATUS_OK;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	l->made = fd >= 0 && !fsync(fd) && folder_sync(c->data_dir);
	if (!l->made)
		snprintf(why, size, "cannot note in %s that this run has no disks: %s: make data_dir writable", path, shortage_words(errno, words, sizeof words));
	if (fd >= 0)
		close(fd);
	return l->made ? STATUS_OK : STATUS_IO;
}

void diskless_opened(const struct diskless *l)
{
	if (l->config->disks[0])
		unmark(l);
}

void diskless_end(const struct diskless *l, bool ended)
{
	if (ended && l->made && !atomic_load(&l->deleted))
		unmark(l);
}
