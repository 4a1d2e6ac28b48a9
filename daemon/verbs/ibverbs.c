/* See verbs/ibverbs.h. The header's macros and inline functions that would call the library by name are not used here:
 * each function of the library is reached by the pointer that ibverbs_load has found. */
#include "daemon/verbs/ibverbs.h"

#include "daemon/verbs/table.h"
#include "store/status.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libibverbs.so.1"

enum { QUEUE_ENTRIES = 256, WHY_MAX = 256 };

/* The library's functions; the versions are those that every release since rdma-core 33 (Debian 11) has. */
static struct {
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *out);
	int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out);
	ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *out, size_t max, uint32_t flags,
				   size_t entry_bytes);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *own,
				    struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *out);
	void (*ack_async_event)(struct ibv_async_event *event);
} lib;

static const struct {
	const char *name;
	void **to;
} symbols[] = {
	{ "ibv_get_device_list", (void **)&lib.get_device_list },
	{ "ibv_free_device_list", (void **)&lib.free_device_list },
	{ "ibv_open_device", (void **)&lib.open_device },
	{ "ibv_close_device", (void **)&lib.close_device },
	{ "ibv_query_device", (void **)&lib.query_device },
	{ "ibv_query_port", (void **)&lib.query_port },
	{ "_ibv_query_gid_table", (void **)&lib.query_gid_table },
	{ "ibv_alloc_pd", (void **)&lib.alloc_pd },
	{ "ibv_dealloc_pd", (void **)&lib.dealloc_pd },
	{ "ibv_create_comp_channel", (void **)&lib.create_comp_channel },
	{ "ibv_destroy_comp_channel", (void **)&lib.destroy_comp_channel },
	{ "ibv_create_cq", (void **)&lib.create_cq },
	{ "ibv_destroy_cq", (void **)&lib.destroy_cq },
	{ "ibv_get_async_event", (void **)&lib.get_async_event },
	{ "ibv_ack_async_event", (void **)&lib.ack_async_event },
};

struct verbs_device {
	struct ibv_context *context;
	struct ibv_pd *domain;
	struct ibv_comp_channel *channel;
	struct ibv_cq *queue;
};

static _Thread_local char words[WHY_MAX];

/* What a failed call means; error: its errno. */
static enum status failed(const char *what, int error, const char **why)
{
	snprintf(words, sizeof words, "%s: %s", what, strerror(error));
	*why = words;
	switch (error) {
	case EIO: /* of a device that has been taken away */
	case ENODEV:
	case ENOENT:
		return STATUS_UNAVAILABLE;
	case EACCES:
	case EPERM:
		return STATUS_DENIED;
	case EAGAIN:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case ENOSPC:
		return STATUS_EXHAUSTED;
	case EOPNOTSUPP:
	case ENOSYS:
	case EPROTONOSUPPORT:
		return STATUS_UNSUPPORTED;
	default:
		return STATUS_INTERNAL;
	}
}

/* errno of a call that has failed without saying why is EIO: a pointer that is NULL needs a reason. */
static int error_of_call(void)
{
	return errno ? errno : EIO;
}

/* ---- the list ---- */

static enum status list(char names[][VERBS_NAME_MAX], uint32_t *count, const char **why)
{
	struct ibv_device **devices;
	uint32_t n = 0;
	int there = 0;

	errno = 0;
	devices = lib.get_device_list(&there);
	if (!devices && (errno == ENOSYS || !errno)) { /* the kernel has no RDMA, or none is loaded */
		*count = 0;
		return STATUS_OK;
	}
	if (!devices)
		return failed("the list of devices cannot be read", errno, why);
	for (int i = 0; i < there && n < VERBS_DEVICES_MAX; i++)
		snprintf(names[n++], VERBS_NAME_MAX, "%s", devices[i]->name);
	lib.free_device_list(devices);
	*count = n;
	return STATUS_OK;
}

static struct ibv_context *context_open(const char *name, int *error)
{
	struct ibv_context *context = NULL;
	struct ibv_device **devices;
	int there = 0;

	errno = 0;
	devices = lib.get_device_list(&there);
	*error = devices ? ENODEV : error_of_call();
	for (int i = 0; i < there && devices && !context; i++) {
		if (strcmp(devices[i]->name, name))
			continue;
		errno = 0;
		context = lib.open_device(devices[i]);
		*error = context ? 0 : error_of_call();
		break;
	}
	if (devices)
		lib.free_device_list(devices);
	return context;
}

static void device_close(struct verbs_device *d)
{
	if (d->queue)
		lib.destroy_cq(d->queue);
	if (d->channel)
		lib.destroy_comp_channel(d->channel);
	if (d->domain)
		lib.dealloc_pd(d->domain);
	if (d->context)
		lib.close_device(d->context);
	free(d);
}

static bool without_waiting(int fd)
{
	const int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && !fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static enum status device_open(const char *name, struct verbs_device **out, const char **why)
{
	struct verbs_device *d = calloc(1, sizeof *d);
	const char *what = "it cannot be opened";
	int error = ENOMEM;

	if (d)
		d->context = context_open(name, &error);
	if (d && d->context) {
		what = "its driver gives no protection domain, completion queue or events";
		errno = 0;
		d->domain = lib.alloc_pd(d->context);
		d->channel = d->domain ? lib.create_comp_channel(d->context) : NULL;
		d->queue = d->channel ? lib.create_cq(d->context, QUEUE_ENTRIES, NULL, d->channel, 0) : NULL;
		if (d->queue && without_waiting(d->context->async_fd) && without_waiting(d->channel->fd)) {
			*out = d;
			return STATUS_OK;
		}
		error = error_of_call();
	}
	if (d)
		device_close(d);
	return failed(what, error, why);
}

/* ---- a device ---- */

static int32_t numa_node(const struct ibv_device *device)
{
	char path[IBV_SYSFS_PATH_MAX + 32];
	int node = -1;
	FILE *f;

	snprintf(path, sizeof path, "%s/device/numa_node", device->ibdev_path);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &node) != 1)
		node = -1;
	if (f)
		fclose(f);
	return node;
}

static enum status look(struct verbs_device *d, struct verbs_info *out, const char **why)
{
	struct ibv_device_attr a;
	const int error = lib.query_device(d->context, &a);

	if (error)
		return failed("it does not answer", error, why);
	*out = (struct verbs_info){
		.ports = a.phys_port_cnt,
		.numa_node = numa_node(d->context->device),
		.windows = a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B,
	};
	return STATUS_OK;
}

static enum status port_active(struct verbs_device *d, uint32_t port, bool *active, const char **why)
{
	struct verbs_context *extended = verbs_get_ctx_op(d->context, query_port);
	struct ibv_port_attr a;
	int error;

	memset(&a, 0, sizeof a);
	error = extended ? extended->query_port(d->context, (uint8_t)port, &a, sizeof a) :
			   lib.query_port(d->context, (uint8_t)port, &a);
	if (error)
		return failed("a port does not answer", error, why);
	*active = a.state == IBV_PORT_ACTIVE;
	return STATUS_OK;
}

static enum verbs_gid_kind kind_of(uint32_t type)
{
	return type == IBV_GID_TYPE_ROCE_V2 ? VERBS_GID_ROCE_V2 :
	       type == IBV_GID_TYPE_ROCE_V1 ? VERBS_GID_ROCE_V1 : VERBS_GID_INFINIBAND;
}

static enum status gids(struct verbs_device *d, struct verbs_gid *out, uint32_t *count, const char **why)
{
	struct ibv_gid_entry *entries = calloc(VERBS_GIDS_MAX, sizeof entries[0]);
	ssize_t n = entries ? lib.query_gid_table(d->context, entries, VERBS_GIDS_MAX, 0, sizeof entries[0]) : -ENOMEM;

	for (ssize_t i = 0; i < n; i++) {
		out[i] = (struct verbs_gid){ .port = entries[i].port_num, .index = entries[i].gid_index,
					     .kind = kind_of(entries[i].gid_type) };
		memcpy(out[i].bytes, entries[i].gid.raw, VERBS_GID_BYTES);
	}
	free(entries);
	if (n < 0)
		return failed("its addresses cannot be read", (int)-n, why);
	*count = (uint32_t)n;
	return STATUS_OK;
}

static int event_fd(struct verbs_device *d)
{
	return d->context->async_fd;
}

static enum verbs_event event(struct verbs_device *d)
{
	struct ibv_async_event e;

	if (lib.get_async_event(d->context, &e))
		return errno == EAGAIN || errno == EINTR ? VERBS_EVENT_NONE : VERBS_EVENT_LOST;
	const bool lost = e.event_type == IBV_EVENT_DEVICE_FATAL;

	lib.ack_async_event(&e);
	return lost ? VERBS_EVENT_LOST : VERBS_EVENT_CHANGED;
}

static const struct verbs_ops ops = {
	.list = list,
	.open = device_open,
	.close = device_close,
	.look = look,
	.port_active = port_active,
	.gids = gids,
	.event_fd = event_fd,
	.event = event,
};

const struct verbs_ops *ibverbs_load(const char **why)
{
	static char none[WHY_MAX];
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	*why = none;
	if (!library) {
		snprintf(none, sizeof none, "%s: install Debian's libibverbs1 and ibverbs-providers, or set rdma = off",
			 dlerror());
		return NULL;
	}
	for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
		*symbols[i].to = dlsym(library, symbols[i].name);
		if (*symbols[i].to)
			continue;
		snprintf(none, sizeof none, LIBRARY " has no %s: install rdma-core 33 or later, or set rdma = off",
			 symbols[i].name);
		dlclose(library);
		return NULL;
	}
	return &ops;
}
