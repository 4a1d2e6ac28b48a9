/* See sim/verbs.h. */
#include "tests/sim/verbs.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

pthread_mutex_t sim_verbs_lock = PTHREAD_MUTEX_INITIALIZER;

static struct sim_verbs devices[SIM_DEVICES];
static uint32_t count;
static enum status list_status;

static struct sim_verbs *of(struct verbs_device *d)
{
	return (struct sim_verbs *)d;
}

void sim_verbs_reset(void)
{
	for (uint32_t i = 0; i < count; i++)
		close(devices[i].event_fd);
	memset(devices, 0, sizeof devices);
	count = 0;
	list_status = STATUS_OK;
}

void sim_verbs_list_is(enum status s)
{
	list_status = s;
}

struct sim_verbs *sim_verbs_add(const char *name)
{
	struct sim_verbs *d = &devices[count++];

	snprintf(d->name, sizeof d->name, "%s", name);
	d->there = true;
	d->info = (struct verbs_info){ .ports = 1, .numa_node = -1, .windows = true };
	d->active[0] = true;
	d->gid[0] = (struct verbs_gid){ .port = 1, .kind = VERBS_GID_ROCE_V2,
					.bytes = { [10] = 0xff, 0xff, 10, 0, 0, (uint8_t)count } };
	d->gids = 1;
	d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return d;
}

void sim_verbs_tell(struct sim_verbs *d, enum verbs_event event)
{
	d->event = event;
	eventfd_write(d->event_fd, 1);
}

void sim_verbs_hang_up(struct sim_verbs *d)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return;
	close(ends[1]);
	dup2(ends[0], d->event_fd);
	close(ends[0]);
}

static enum status list(char names[][VERBS_NAME_MAX], uint32_t *n, const char **why)
{
	enum status s;

	pthread_mutex_lock(&sim_verbs_lock);
	s = list_status;
	*why = "the list is broken";
	if (!s)
		*n = 0;
	for (uint32_t i = 0; i < count && !s && *n < VERBS_DEVICES_MAX; i++)
		if (devices[i].there)
			strcpy(names[(*n)++], devices[i].name);
	pthread_mutex_unlock(&sim_verbs_lock);
	return s;
}

static enum status device_open(const char *name, struct verbs_device **out, const char **why)
{
	enum status s = STATUS_UNAVAILABLE;

	pthread_mutex_lock(&sim_verbs_lock);
	*why = "it cannot be opened";
	for (uint32_t i = 0; i < count; i++) {
		struct sim_verbs *d = &devices[i];

		if (!d->there || strcmp(d->name, name))
			continue;
		s = d->open;
		if (s)
			break;
		d->opened++;
		*out = (struct verbs_device *)d;
	}
	pthread_mutex_unlock(&sim_verbs_lock);
	return s;
}

static void device_close(struct verbs_device *d)
{
	pthread_mutex_lock(&sim_verbs_lock);
	of(d)->closed++;
	pthread_mutex_unlock(&sim_verbs_lock);
}

static enum status look(struct verbs_device *d, struct verbs_info *out, const char **why)
{
	enum status s;

	pthread_mutex_lock(&sim_verbs_lock);
	s = of(d)->look;
	*why = "it does not answer";
	if (!s)
		*out = of(d)->info;
	pthread_mutex_unlock(&sim_verbs_lock);
	return s;
}

static enum status port_active(struct verbs_device *d, uint32_t port, bool *active, const char **why)
{
	pthread_mutex_lock(&sim_verbs_lock);
	*active = of(d)->active[port - 1];
	pthread_mutex_unlock(&sim_verbs_lock);
	*why = "";
	return STATUS_OK;
}

static enum status gids(struct verbs_device *d, struct verbs_gid *out, uint32_t *n, const char **why)
{
	pthread_mutex_lock(&sim_verbs_lock);
	*n = of(d)->gids;
	memcpy(out, of(d)->gid, *n * sizeof out[0]);
	pthread_mutex_unlock(&sim_verbs_lock);
	*why = "";
	return STATUS_OK;
}

static int event_fd(struct verbs_device *d)
{
	return of(d)->event_fd;
}

static enum verbs_event event(struct verbs_device *d)
{
	enum verbs_event e;
	eventfd_t n;

	pthread_mutex_lock(&sim_verbs_lock);
	e = of(d)->event;
	of(d)->event = VERBS_EVENT_NONE;
	eventfd_read(of(d)->event_fd, &n);
	pthread_mutex_unlock(&sim_verbs_lock);
	return e;
}

const struct verbs_ops sim_verbs_ops = {
	.list = list,
	.open = device_open,
	.close = device_close,
	.look = look,
	.port_active = port_active,
	.gids = gids,
	.event_fd = event_fd,
	.event = event,
};
