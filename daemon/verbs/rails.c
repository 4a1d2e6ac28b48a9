/* See verbs/rails.h. */
#include "daemon/verbs/rails.h"

#include "daemon/verbs/table.h"
#include "store/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK_NONE = 0 };

const char *rail_state_text(enum rail_state s)
{
	static const char *const texts[] = { "usable", "down", "unusable", "lost" };

	return texts[s];
}

/* ---- addresses ---- */

static bool is_zero(const uint8_t *bytes, size_t n)
{
	while (n && !bytes[n - 1])
		n--;
	return !n;
}

/* An IPv4 address in the form of IPv6: ::ffff:10.0.0.1. */
static bool is_ipv4(const struct verbs_gid *g)
{
	return is_zero(g->bytes, 10) && g->bytes[10] == 0xff && g->bytes[11] == 0xff;
}

/* An IPv6 address that is valid on one link only: fe80::/10. */
static bool is_of_link(const struct verbs_gid *g)
{
	return g->bytes[0] == 0xfe && (g->bytes[1] & 0xc0) == 0x80;
}

/* The higher, the better; RANK_NONE: it is no address. */
static int rank_of(const struct verbs_gid *g)
{
	if (is_zero(g->bytes, sizeof g->bytes))
		return RANK_NONE;
	switch (g->kind) {
	case VERBS_GID_ROCE_V2:
		return is_ipv4(g) ? 5 : is_of_link(g) ? 3 : 4;
	case VERBS_GID_INFINIBAND:
		return 2;
	case VERBS_GID_ROCE_V1:
		return 1;
	}
	return RANK_NONE;
}

/* The best address of the port; of equal ones the first. NULL: it has none. */
static const struct verbs_gid *gid_of(const struct verbs_gid *gids, uint32_t count, uint32_t port)
{
	const struct verbs_gid *best = NULL;

	for (uint32_t i = 0; i < count; i++)
		if (gids[i].port == port && rank_of(&gids[i]) > (best ? rank_of(best) : RANK_NONE))
			best = &gids[i];
	return best;
}

/* ---- a device ---- */

/* Sets rail i, and tells of it if it is another one than before. */
static void rail_set(struct rails *r, struct rail_device *d, uint32_t i, const struct rail *now)
{
	struct rail *before = &d->rail[i];
	const bool same = i < d->rails && before->state == now->state && before->port == now->port &&
			  !strcmp(before->why, now->why) && !memcmp(before->gid.bytes, now->gid.bytes, VERBS_GID_BYTES);

	*before = *now;
	if (i >= d->rails)
		d->rails = i + 1;
	if (!same)
		r->changed(r->arg, before);
}

static struct rail rail_of(const struct rail_device *d, uint32_t i)
{
	struct rail rail = { .port = 0 };

	if (i < d->rails)
		rail = d->rail[i];
	memcpy(rail.device, d->name, sizeof rail.device);
	rail.why[0] = 0;
	rail.gid = (struct verbs_gid){ .port = 0 };
	return rail;
}

/* Closes the device: all its rails are in that state, for that reason. */
static void device_fail(struct rails *r, struct rail_device *d, enum rail_state state, const char *why)
{
	const uint32_t rails = d->rails ? d->rails : 1;

	if (d->open)
		r->ops->close(d->open);
	d->open = NULL;
	r->losses += state == RAIL_LOST;
	for (uint32_t i = 0; i < rails; i++) {
		struct rail rail = rail_of(d, i);

		rail.state = state;
		snprintf(rail.why, sizeof rail.why, "%s", why);
		rail_set(r, d, i, &rail);
	}
}

/* What became of an open device that does not answer: it counts as lost. */
static void device_lose(struct rails *r, struct rail_device *d, const char *why)
{
	char text[RAIL_WHY_MAX];

	snprintf(text, sizeof text, "it is tried again: %.200s", why);
	device_fail(r, d, RAIL_LOST, text);
}

static const char *problem_of(const struct verbs_gid *gid, bool active, enum rail_state *state)
{
	*state = active ? RAIL_UNUSABLE : RAIL_DOWN;
	if (!active)
		return "the port is down: look at its cable, its switch and its network interface (rdma link)";
	if (!gid)
		return "the port has no address (GID): give its network interface one (ip address)";
	*state = RAIL_USABLE;
	return "";
}

/* Looks at the ports of an open device. */
static void device_look(struct rails *r, struct rail_device *d)
{
	struct verbs_gid *gids = calloc(VERBS_GIDS_MAX, sizeof gids[0]);
	const char *why = "no memory for its addresses";
	struct verbs_info info;
	uint32_t count = 0;
	enum status s = gids ? r->ops->look(d->open, &info, &why) : STATUS_EXHAUSTED;

	if (!s)
		s = r->ops->gids(d->open, gids, &count, &why);
	if (!s && !info.ports) {
		s = STATUS_UNSUPPORTED;
		why = "it has no ports";
	}
	for (uint32_t i = 0; !s && i < info.ports && i < VERBS_PORTS_MAX; i++) {
		struct rail rail = rail_of(d, i);
		const struct verbs_gid *gid = gid_of(gids, count, i + 1);
		bool active;

		s = r->ops->port_active(d->open, i + 1, &active, &why);
		if (s)
			break;
		rail.port = i + 1;
		rail.info = info;
		snprintf(rail.why, sizeof rail.why, "%s", problem_of(gid, active, &rail.state));
		if (rail.state == RAIL_USABLE)
			rail.gid = *gid;
		rail_set(r, d, i, &rail);
	}
	if (s)
		device_lose(r, d, why);
	free(gids);
}

static const char *remedy_of(enum status s)
{
	switch (s) {
	case STATUS_DENIED:
		return "; give the daemon's user /dev/infiniband, and the service DeviceAllow=char-infiniband_verbs rw";
	case STATUS_EXHAUSTED:
		return "; raise LimitMEMLOCK (ulimit -l), or the cgroup's rdma.max";
	default:
		return "; look at its driver (rdma link, dmesg)";
	}
}

static void device_open(struct rails *r, struct rail_device *d)
{
	const char *why = "";
	const enum status s = r->ops->open(d->name, &d->open, &why);
	char text[RAIL_WHY_MAX];

	if (s) {
		d->open = NULL;
		snprintf(text, sizeof text, "%.200s%s", why, remedy_of(s));
		device_fail(r, d, RAIL_UNUSABLE, text);
	}
}

/* ---- all of them ---- */

/* The device of that name, or a place for it: a free one, else that of a device that is not in use and not on the list.
 * NULL: there is none. */
static struct rail_device *device_of(struct rails *r, const char *name, const bool *listed)
{
	struct rail_device *place = NULL;

	for (uint32_t i = 0; i < VERBS_DEVICES_MAX; i++)
		if (!strcmp(r->device[i].name, name))
			return &r->device[i];
	for (uint32_t i = 0; i < VERBS_DEVICES_MAX; i++)
		if (!r->device[i].open && !listed[i] && (!place || (place->name[0] && !r->device[i].name[0])))
			place = &r->device[i];
	if (place) {
		*place = (struct rail_device){ .open = NULL };
		snprintf(place->name, sizeof place->name, "%s", name);
	}
	return place;
}

void rails_look(struct rails *r)
{
	char names[VERBS_DEVICES_MAX][VERBS_NAME_MAX];
	bool listed[VERBS_DEVICES_MAX] = { false };
	const char *why = "";
	uint32_t count = 0;
	const enum status s = r->ops->list(names, &count, &why);

	snprintf(r->why, sizeof r->why, "%s", s ? why : "");
	if (s)
		count = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct rail_device *d = device_of(r, names[i], listed);

		if (!d)
			continue;
		listed[d - r->device] = true;
		if (!d->open)
			device_open(r, d);
	}
	for (uint32_t i = 0; i < VERBS_DEVICES_MAX; i++) {
		struct rail_device *d = &r->device[i];

		if (d->open && !s && !listed[i])
			device_lose(r, d, "the device is gone from this machine");
		else if (d->open)
			device_look(r, d);
	}
}

void rails_events(struct rails *r, struct rail_device *d, bool hung_up)
{
	enum verbs_event e = r->ops->event(d->open);
	bool changed = false;

	for (; e == VERBS_EVENT_CHANGED; e = r->ops->event(d->open))
		changed = true;
	if (e == VERBS_EVENT_LOST)
		device_lose(r, d, "its driver says that it has failed");
	else if (hung_up)
		device_lose(r, d, "its driver has ended the connection for events");
	else if (changed)
		device_look(r, d);
}

uint32_t rails_copy(const struct rails *r, struct rail out[RAILS_MAX])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < VERBS_DEVICES_MAX; i++)
		for (uint32_t k = 0; k < r->device[i].rails; k++)
			out[n++] = r->device[i].rail[k];
	return n;
}

void rails_close(struct rails *r)
{
	for (uint32_t i = 0; i < VERBS_DEVICES_MAX; i++) {
		if (r->device[i].open)
			r->ops->close(r->device[i].open);
		r->device[i] = (struct rail_device){ .open = NULL };
	}
}
