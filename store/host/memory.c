/* See host/memory.h. */
#include "store/host/memory.h"

#include <stdio.h>
#include <unistd.h>

static enum status failed(struct host_failure *f, enum status s, int error, const char *why)
{
	f->error = error;
	snprintf(f->why, sizeof(f->why), "%s", why);
	return s;
}

static enum status device_memory_open(const struct host_source *from, uint64_t address, uint64_t bytes,
				      struct host_memory *m, struct host_failure *f)
{
	enum status s = extent_open(&m->extent, 0, EXTENT_PAGE_BYTES, false);
	const char *why;

	if (s != STATUS_OK)
		return failed(f, s, m->extent.error, "");
	s = from->ops->extent_make(from->device, address, bytes, &m->device, &m->device_fd, &why);
	if (s == STATUS_OK)
		return STATUS_OK;
	extent_close(&m->extent);
	return failed(f, s, 0, why);
}

enum status host_memory_open(const struct host_source *from, uint64_t address, uint64_t bytes, uint64_t present,
			     struct host_memory *m, struct host_failure *f)
{
	enum status s;

	*m = (struct host_memory){ .bytes = bytes, .device_fd = -1 };
	if (from->ops)
		return device_memory_open(from, address, bytes, m, f);
	s = extent_open_part(&m->extent, 0, bytes, present, from->huge);
	return s == STATUS_OK ? s : failed(f, s, m->extent.error, "");
}

enum status host_memory_populate(struct host_memory *m, uint64_t at, uint64_t bytes, struct host_failure *f)
{
	enum status s = extent_populate(&m->extent, at, bytes);

	return s == STATUS_OK ? s : failed(f, s, m->extent.error, "");
}

void host_memory_close(const struct host_source *from, struct host_memory *m)
{
	if (from->ops) {
		from->ops->extent_drop(from->device, &m->device);
		close(m->device_fd);
	}
	extent_close(&m->extent);
}

enum status host_memory_reserve(const struct host_source *from, uint64_t bytes, uint64_t *address,
				struct host_failure *f)
{
	const char *why;
	enum status s = from->ops->range_reserve(from->device, bytes, address, &why);

	return s == STATUS_OK ? s : failed(f, s, 0, why);
}
