/* See packets.h. A packet that the daemon must answer, or hang up on, is waited for; others are not. */
#include "tests/hostile/packets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/fdsock.h"
#include "terrace.pb-c.h"

enum {
	DOORS = 6, NEARS = 6, LEFT = 24, HANG_MS = 120000, MANY = 20, PASSED_MOST = 16, PACKET_MAX = 256 << 10,
	PACKET_MOST = 200 << 10, /* what a socket takes by the kernel's defaults, and more than the daemon does */
	EXTENTS = 16, MAPPED = 16, REFUSED_MOST = 1000,
};

enum state { RAW, FD_SOCKET, NEAR, STATES };

struct connection {
	int fd; /* -1: none */
	enum state state;
	struct opened *of;
	bool answers_due; /* to calls that were not waited for */
	uint32_t mapped[MAPPED], mapped_count;
};

/* What is sent of one kind. */
struct generator {
	const char *name;
	enum state where;  /* it belongs to */
	bool answered;     /* or hung up on */
	size_t (*make)(struct packets *p, struct connection *c, uint8_t *out);
};

struct packets {
	char path[108];
	uint64_t seed;
	struct kinds kinds;
	const struct generator *generator[KINDS_MAX];
	struct connection fd_socket[DOORS], near[NEARS];
	int left[LEFT], passed;
	uint32_t left_at, keeper_count;
	const int *keepers;
	struct book book;
	struct trail trail;
	struct rng rng;
	struct kind *kind;      /* of the message under way */
	enum shape shape;
	uint8_t *packet, *answer;
};

static struct fdsock_head head(enum fdsock_type type)
{
	return (struct fdsock_head){ FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type };
}

/* ---- connections ---- */

static int dial(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const struct timeval patience = { .tv_sec = HANG_MS / 1000 };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) || connect(fd, (struct sockaddr *)&to, sizeof to)) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* The status of the WELCOME; -1 without one. */
static int greet(int fd, enum fdsock_type type, const uint8_t token[TOKEN_BYTES], uint64_t *attachment)
{
	struct fdsock_hello hello = { .head = head(type) };
	struct fdsock_welcome welcome;

	memcpy(hello.token, token, TOKEN_BYTES);
	if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello || recv(fd, &welcome, sizeof welcome, 0) != sizeof welcome ||
	    welcome.head.type != FDSOCK_WELCOME)
		return -1;
	if (attachment)
		*attachment = welcome.attachment;
	return (int)welcome.status;
}

int keeper_open(const char *fd_socket, struct opened *of)
{
	const int fd = dial(fd_socket);

	if (fd < 0 || greet(fd, FDSOCK_HELLO, of->token, &of->attachment)) {
		fprintf(stderr, "%s: no attachment: %s\n", fd_socket, strerror(errno));
		exit(1);
	}
	return fd;
}

static void hang_up(struct connection *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->answers_due = false;
	c->mapped_count = 0;
}

/* A daemon that has no room for more now has some when it has seen that others are closed. */
static bool open_as(struct packets *p, struct connection *c, enum state state)
{
	const struct timespec nap = { .tv_nsec = 10000000 };

	for (int tries = 0; tries < REFUSED_MOST; tries++) {
		int status = -1;

		c->of = &p->book.open[rng_below(&p->rng, p->book.count)];
		c->state = state;
		c->fd = dial(p->path);
		if (c->fd >= 0 && state != RAW)
			status = greet(c->fd, state == FD_SOCKET ? FDSOCK_HELLO : FDSOCK_CALLER, c->of->token, NULL);
		if (c->fd >= 0 && (state == RAW || !status))
			return true;
		hang_up(c);
		if (status > 0 && status != TERRACE__V1__STATUS__EXHAUSTED) {
			fault(&p->trail, "the right token is refused: status %d", status);
			return false;
		}
		nanosleep(&nap, NULL);
	}
	fault(&p->trail, "no connection: %s", strerror(errno));
	return false;
}

/* ---- packets, each valid but for what its shape says ---- */

static uint32_t boundary(struct packets *p)
{
	static const uint32_t ends[] = { 0, 1, 2, 63, 64, 65, 255, 256, 4096, INT32_MAX, 1u << 31,
	    FDSOCK_EXTENT_PROGRESS_PAGE, UINT32_MAX };

	return ends[rng_below(&p->rng, sizeof ends / sizeof ends[0])];
}

static size_t make_hello(struct packets *p, struct connection *c, uint8_t *out)
{
	struct fdsock_hello m = { .head = head(FDSOCK_HELLO) };
	const struct foreign *f = p->book.foreign;

	memcpy(m.token, c->of->token, TOKEN_BYTES);
	if (p->shape == SHAPE_WRONG)
		m.token[rng_below(&p->rng, TOKEN_BYTES)] ^= (uint8_t)(1 + rng_below(&p->rng, 255));
	if (p->shape == SHAPE_FOREIGN) {
		const uint64_t shown = f->sessions ? f->session[rng_below(&p->rng, f->sessions)] : 1;

		memset(m.token, 0, TOKEN_BYTES);
		memcpy(m.token, &shown, sizeof shown);
	}
	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static size_t make_caller(struct packets *p, struct connection *c, uint8_t *out)
{
	const size_t n = make_hello(p, c, out);
	const struct fdsock_head h = head(FDSOCK_CALLER);

	memcpy(out, &h, sizeof h);
	return n;
}

static uint32_t extent(struct packets *p, const struct opened *of)
{
	const uint32_t known = of->extent_count < GRANTS_MAX ? of->extent_count : GRANTS_MAX;

	const struct foreign *f = p->book.foreign;

	if (p->shape == SHAPE_FOREIGN && f->extents)
		return (uint32_t)f->extent[rng_below(&p->rng, f->extents)];
	if (p->shape == SHAPE_WRONG)
		return EXTENTS + (uint32_t)rng_next(&p->rng) / 2;
	if (rng_one_in(&p->rng, 8))
		return FDSOCK_EXTENT_PROGRESS_PAGE;
	return known && !rng_one_in(&p->rng, 8) ? of->extents[rng_below(&p->rng, known)] : rng_below(&p->rng, EXTENTS);
}

static size_t make_map(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct fdsock_map m = { .head = head(FDSOCK_MAP), .extent = extent(p, c->of), .write = rng_below(&p->rng, 2) };

	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static size_t make_unmapped(struct packets *p, struct connection *c, uint8_t *out)
{
	struct fdsock_unmapped m = { .head = head(FDSOCK_UNMAPPED), .extent = extent(p, c->of), .write = rng_below(&p->rng, 2) };

	if (p->shape == SHAPE_VALID && c->mapped_count)
		m.extent = c->mapped[--c->mapped_count];
	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static uint64_t lease(struct packets *p, struct opened *of)
{
	const struct foreign *f = p->book.foreign;

	if (p->shape == SHAPE_FOREIGN)
		return f->leases ? f->lease[rng_below(&p->rng, f->leases)] : 0;
	if (p->shape == SHAPE_WRONG)
		return rng_one_in(&p->rng, 2) ? 1 + rng_below(&p->rng, 4096) : rng_next(&p->rng);
	return of->lease_count ? of->leases[--of->lease_count] : 0;
}

static size_t make_release(struct packets *p, struct connection *c, uint8_t *out)
{
	struct fdsock_release m = { .head = head(FDSOCK_RELEASE), .count = 1 + rng_below(&p->rng, FDSOCK_LEASES_MAX) };

	for (uint32_t i = 0; i < m.count; i++)
		m.leases[i] = lease(p, c->of);
	memcpy(out, &m, sizeof m);
	return offsetof(struct fdsock_release, leases) + m.count * sizeof m.leases[0];
}

static size_t make_premap(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct fdsock_premap m = { .head = head(FDSOCK_PREMAP),
	    .gpu = rng_one_in(&p->rng, 2) ? FDSOCK_NO_GPU : 0 };

	(void)c;
	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static size_t make_listen(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct fdsock_head m = head(FDSOCK_LISTEN);

	(void)p;
	(void)c;
	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static size_t make_retire(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct fdsock_retire m = { .head = head(FDSOCK_RETIRE), .extent = extent(p, c->of) };

	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static size_t make_offer(struct packets *p, struct connection *c, uint8_t *out)
{
	struct fdsock_offer m = { .head = head(FDSOCK_OFFER), .count = 1 + rng_below(&p->rng, 8) };

	for (uint32_t i = 0; i < m.count; i++)
		m.extents[i] = extent(p, c->of);
	memcpy(out, &m, sizeof m);
	return offsetof(struct fdsock_offer, extents) + m.count * sizeof m.extents[0];
}

static size_t make_welcome(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct fdsock_welcome m = { .head = head(FDSOCK_WELCOME), .knows = 3, .epoch = rng_next(&p->rng), .session = c->of->session };

	memcpy(out, &m, sizeof m);
	return sizeof m;
}

static size_t make_extent(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct fdsock_extent m = { .head = head(FDSOCK_EXTENT), .extent = extent(p, c->of), .page_bytes = 4096, .bytes = 1 << 20,
					 .gpu = FDSOCK_NO_GPU };

	memcpy(out, &m, sizeof m);
	return sizeof m;
}

/* A local method's number and message; of the packet type itself, of any. */
static const struct kind *method_of(struct packets *p)
{
	const struct kind *k = p->kind;

	while (!k->in)
		k = &p->kinds.list[rng_below(&p->rng, p->kinds.count)];
	return k;
}

static enum shape message_shape(struct packets *p)
{
	if (p->shape == SHAPE_DESCRIPTORS || p->shape == SHAPE_MANY || p->shape == SHAPE_HALF_OPEN || p->shape == SHAPE_CANCELLED)
		return SHAPE_VALID;
	return p->shape;
}

static size_t make_call(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct kind *k = method_of(p);
	struct fdsock_call m = { .head = head(FDSOCK_CALL), .method = k->number };
	size_t n;

	if (p->shape == SHAPE_BOUNDARY || rng_one_in(&p->rng, 16))
		m.left_us = rng_one_in(&p->rng, 2) ? 1 + rng_below(&p->rng, 1000) : UINT64_MAX >> rng_below(&p->rng, 64);
	memcpy(out, &m, sizeof m);
	n = wire_message(out + sizeof m, PACKET_MAX - sizeof m, p->shape == SHAPE_ORDER ? k->out : k->in, message_shape(p), &p->rng, &p->book, c->of);
	return sizeof m + (n < PACKET_MOST ? n : PACKET_MOST);
}

static size_t make_reply(struct packets *p, struct connection *c, uint8_t *out)
{
	const struct kind *k = method_of(p);
	const struct fdsock_reply m = { .head = head(FDSOCK_REPLY) };
	const size_t n = wire_message(out + sizeof m, PACKET_MAX - sizeof m, k->out, SHAPE_VALID, &p->rng, &p->book, c->of);

	memcpy(out, &m, sizeof m);
	return sizeof m + (n < PACKET_MOST ? n : PACKET_MOST);
}

static const struct generator generators[] = {
	{ "FDSOCK_HELLO", RAW, true, make_hello },       { "FDSOCK_WELCOME", FD_SOCKET, false, make_welcome },
	{ "FDSOCK_MAP", FD_SOCKET, true, make_map },          { "FDSOCK_EXTENT", FD_SOCKET, false, make_extent },
	{ "FDSOCK_UNMAPPED", FD_SOCKET, false, make_unmapped }, { "FDSOCK_RELEASE", FD_SOCKET, false, make_release },
	{ "FDSOCK_CALLER", RAW, true, make_caller },     { "FDSOCK_CALL", NEAR, true, make_call },
	{ "FDSOCK_REPLY", NEAR, false, make_reply },     { "FDSOCK_PREMAP", FD_SOCKET, true, make_premap },
	{ "FDSOCK_OFFER", FD_SOCKET, false, make_offer }, { "FDSOCK_LISTEN", FD_SOCKET, false, make_listen },
	{ "FDSOCK_RETIRE", FD_SOCKET, false, make_retire },
};
static const struct generator local_call = { "", NEAR, true, make_call };

/* ---- shapes of a packet's bytes ---- */

/* Of a call the message has its shape already, and the packet has one now and then instead. */
static size_t deform(struct packets *p, uint8_t *packet, size_t n, bool is_call)
{
	struct fdsock_head h;
	const size_t words = (n - sizeof h) / sizeof(uint32_t);

	memcpy(&h, packet, sizeof h);
	if (is_call && !rng_one_in(&p->rng, 4))
		return n;
	switch (p->shape) {
	case SHAPE_BOUNDARY:
		for (size_t i = 0; i < words && i < 8; i++)
			if (rng_one_in(&p->rng, 3)) {
				const uint32_t word = boundary(p);

				memcpy(packet + sizeof h + i * sizeof word, &word, sizeof word);
			}
		return n;
	case SHAPE_WRONG_TYPE:
		if (rng_one_in(&p->rng, 3))
			h.magic ^= 1u << rng_below(&p->rng, 32);
		else if (rng_one_in(&p->rng, 2))
			h.version = (uint16_t)boundary(p);
		else
			h.type = (uint16_t)(rng_one_in(&p->rng, 2) ? rng_below(&p->rng, 20) : boundary(p));
		memcpy(packet, &h, sizeof h);
		return n;
	case SHAPE_OVERSIZED:
		return n + (rng_one_in(&p->rng, 2) ? 1 + rng_below(&p->rng, 64) : PACKET_MOST - n);
	case SHAPE_TRUNCATED:
		return rng_below(&p->rng, (uint32_t)n);
	case SHAPE_GARBAGE:
		n = 1 + rng_below(&p->rng, 400);
		for (size_t i = 0; i < n; i++)
			packet[i] = (uint8_t)rng_next(&p->rng);
		return n;
	case SHAPE_EMPTY:
		return 0;
	default:
		return n;
	}
}

/* ---- sending ---- */

static bool send_with(struct packets *p, struct connection *c, const void *bytes, size_t n)
{
	union {
		char room[CMSG_SPACE(PASSED_MOST * sizeof(int))];
		struct cmsghdr align;
	} control;
	const int count = 1 + (int)rng_below(&p->rng, PASSED_MOST);
	struct iovec part = { (void *)bytes, n };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int)) };
	struct cmsghdr *h;
	int fds[PASSED_MOST];

	memset(&control, 0, sizeof control);
	for (int i = 0; i < count; i++)
		fds[i] = p->passed;
	h = CMSG_FIRSTHDR(&m);
	*h = (struct cmsghdr){ .cmsg_len = CMSG_LEN((size_t)count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(h), fds, (size_t)count * sizeof(int));
	return sendmsg(c->fd, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

static bool send_packet(struct packets *p, struct connection *c, const void *bytes, size_t n)
{
	if (p->shape == SHAPE_DESCRIPTORS ? send_with(p, c, bytes, n) : send(c->fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n)
		return true;
	if (errno == EAGAIN)
		fault(&p->trail, "%s %s: the daemon has not read for %d s", p->kind->name, shape_name(p->shape), HANG_MS / 1000);
	return false;
}

/* ---- answers ---- */

static void close_passed(struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		const size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; h->cmsg_type == SCM_RIGHTS && i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
			close(fd);
		}
	}
}

static void on_extent(struct packets *p, struct connection *c, const struct fdsock_extent *m)
{
	if (m->status)
		return;
	if (c->mapped_count < MAPPED)
		c->mapped[c->mapped_count++] = m->extent;
	if (p->kind->number == FDSOCK_MAP && !p->kind->in && p->shape == SHAPE_VALID)
		p->kind->answered++;
}

static void on_reply(struct packets *p, struct connection *c, const struct fdsock_reply *m, size_t n)
{
	ProtobufCMessage *reply;

	if (p->shape == SHAPES)
		return;
	if (m->status) {
		if (n == sizeof *m && m->status != FDSOCK_BY_GRPC)
			fault(&p->trail, "%s %s: status %u without a word", p->kind->name, shape_name(p->shape), m->status);
		if (m->status == TERRACE__V1__STATUS__INTERNAL || m->status == TERRACE__V1__STATUS__CORRUPT)
			fault(&p->trail, "%s %s: status %u: %.*s", p->kind->name, shape_name(p->shape), m->status, (int)(n - sizeof *m), (const char *)(m + 1));
		return;
	}
	if (!p->kind->in) {
		p->kind->answered += p->shape == SHAPE_VALID;
		return;
	}
	reply = protobuf_c_message_unpack(p->kind->out, NULL, n - sizeof *m, (const uint8_t *)(m + 1));
	if (!reply) {
		if (p->shape != SHAPE_WRONG_TYPE && p->shape != SHAPE_BOUNDARY) /* these may name another method */
			fault(&p->trail, "%s %s: a reply that is no %s", p->kind->name, shape_name(p->shape), p->kind->out->name);
		return;
	}
	p->kind->answered += p->shape == SHAPE_VALID;
	if (p->shape == SHAPE_FOREIGN && reply_did_for_others(reply))
		fault(&p->trail, "%s: did something with the handle of another", p->kind->name);
	if (p->shape == SHAPE_VALID)
		book_note(c->of, reply);
	protobuf_c_message_free_unpacked(reply, NULL);
}

/* One packet. False: hung up. */
static bool read_answer(struct packets *p, struct connection *c, int flags)
{
	union {
		char room[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { p->answer, PACKET_MAX };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	const ssize_t n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC | flags);
	struct fdsock_head h;

	if (n < 0 && errno == EAGAIN && !flags)
		fault(&p->trail, "%s %s: neither an answer nor the end for %d s", p->kind->name, shape_name(p->shape), HANG_MS / 1000);
	if (n < 0 && errno == EAGAIN)
		return true;
	if (n <= 0) {
		hang_up(c);
		return false;
	}
	close_passed(&m);
	memcpy(&h, p->answer, sizeof h);
	if ((size_t)n < sizeof h || h.magic != FDSOCK_MAGIC || h.version != FDSOCK_VERSION)
		fault(&p->trail, "an answer of %zd bytes that is no packet", n);
	else if (h.type == FDSOCK_EXTENT && n == sizeof(struct fdsock_extent))
		on_extent(p, c, (const struct fdsock_extent *)p->answer);
	else if (h.type == FDSOCK_REPLY && (size_t)n >= sizeof(struct fdsock_reply))
		on_reply(p, c, (const struct fdsock_reply *)p->answer, (size_t)n);
	else if (h.type == FDSOCK_OFFER || h.type == FDSOCK_WELCOME)
		p->kind->answered += p->shape == SHAPE_VALID && (h.type == FDSOCK_OFFER || !((const struct fdsock_welcome *)p->answer)->status);
	return true;
}

/* What has come meanwhile. */
static void drain(struct packets *p, struct connection *c)
{
	struct pollfd f = { .fd = c->fd, .events = POLLIN };

	while (c->fd >= 0 && poll(&f, 1, 0) > 0)
		read_answer(p, c, MSG_DONTWAIT);
}

/* ---- one message ---- */

static struct connection *connection_for(struct packets *p, enum state state, struct connection *own)
{
	struct connection *c = state == FD_SOCKET ? &p->fd_socket[rng_below(&p->rng,
	    DOORS)] : state == NEAR ? &p->near[rng_below(&p->rng, NEARS)] : own;
	const enum shape shape = p->shape;

	if (c->answers_due)
		hang_up(c);
	p->shape = SHAPES; /* what comes now is no answer to it */
	if (c->fd >= 0)
		drain(p, c);
	p->shape = shape;
	if (c->fd < 0 && !open_as(p, c, state))
		return NULL;
	return c;
}

/* It is left as it is until as many others have been. */
static void leave(struct packets *p, struct connection *c)
{
	int *at = &p->left[p->left_at++ % LEFT];

	if (*at >= 0)
		close(*at);
	*at = c->fd;
	c->fd = -1;
	c->mapped_count = 0;
}

static bool is_waited_for(const struct packets *p, const struct generator *g)
{
	return g->answered && p->shape != SHAPE_WRONG_TYPE && p->shape != SHAPE_ORDER && p->shape != SHAPE_HALF_OPEN && p->shape != SHAPE_CANCELLED;
}

static void send_some(struct packets *p, const struct generator *g, struct connection *c)
{
	for (uint32_t n = p->shape == SHAPE_MANY ? MANY : 1; n && c->fd >= 0; n--) {
		const size_t bytes = deform(p, p->packet, g->make(p, c, p->packet), g->make == make_call);

		trail_add(&p->trail, p->kind, p->shape, p->packet, bytes);
		if (!send_packet(p, c, p->packet, bytes)) {
			hang_up(c);
			return;
		}
		p->kind->sent[p->shape]++;
	}
}

static void one(struct packets *p, struct kind *kind, enum shape shape)
{
	const struct generator *g = p->generator[kind - p->kinds.list];
	struct connection own = { .fd = -1 }, *c;
	const uint64_t number = ++p->trail.number;

	p->rng.state = p->seed ^ number * 0xd1342543de82ef95ull;
	p->kind = kind;
	p->shape = shape;
	c = connection_for(p, shape == SHAPE_ORDER ? (enum state)((g->where + 1 + rng_below(&p->rng, STATES - 1)) % STATES) : g->where, &own);
	if (!c)
		return;
	send_some(p, g, c);
	if (c->fd >= 0 && shape == SHAPE_HALF_OPEN) {
		leave(p, c);
		if (rng_one_in(&p->rng, 4) && open_as(p, c, RAW))
			leave(p, c); /* and one that says nothing */
	}
	if (shape == SHAPE_CANCELLED)
		hang_up(c);
	else if (c->fd >= 0 && is_waited_for(p, g))
		read_answer(p, c, 0);
	if (shape == SHAPE_MANY || !is_waited_for(p, g))
		c->answers_due = c->state == NEAR;
	hang_up(&own);
}

static void read_keepers(struct packets *p)
{
	char byte;

	for (uint32_t i = 0; i < p->keeper_count; i++)
		while (recv(p->keepers[i], &byte, sizeof byte, MSG_DONTWAIT) > 0)
			;
}

void packets_run(struct packets *p, uint64_t messages)
{
	static const uint8_t times[SHAPES] = {
		[SHAPE_VALID] = 12, [SHAPE_BOUNDARY] = 4, [SHAPE_WRONG_TYPE] = 2, [SHAPE_UNKNOWN] = 2, [SHAPE_OVERSIZED] = 1, [SHAPE_TRUNCATED] = 2,
		[SHAPE_GARBAGE] = 1, [SHAPE_EMPTY] = 1, [SHAPE_WRONG] = 4, [SHAPE_FOREIGN] = 4, [SHAPE_ORDER] = 2, [SHAPE_MANY] = 1,
		[SHAPE_HALF_OPEN] = 1, [SHAPE_CANCELLED] = 2, [SHAPE_DESCRIPTORS] = 2,
	};
	struct schedule order;

	schedule_init(&order, &p->kinds, times, p->seed);
	for (uint64_t n = 0; kinds_sent(&p->kinds) < messages && !faults(); n++) {
		enum shape shape;
		struct kind *kind = schedule_next(&order, &shape);

		one(p, kind, shape);
		if (n % 64 == 0)
			read_keepers(p);
	}
	schedule_fini(&order);
}

/* ---- before and after ---- */

/* A local method is named as in the service Cache, but for Release, whose name a packet has. */
static void name_method(struct kind *k)
{
	const ProtobufCServiceDescriptor *cache = &terrace__v1__cache__descriptor;
	const char *name = k->name + strlen("FDSOCK_");

	if (!strcmp(name, "GIVE_BACK"))
		name = "Release";
	for (unsigned i = 0; i < cache->n_methods; i++)
		if (!strcasecmp(cache->methods[i].name, name)) {
			k->in = cache->methods[i].input;
			k->out = cache->methods[i].output;
			return;
		}
	fprintf(stderr, "%s: no such method of Cache\n", k->name);
	exit(1);
}

static const struct generator *generator_of(const struct kind *k)
{
	for (size_t i = 0; i < sizeof generators / sizeof generators[0]; i++)
		if (!strcmp(generators[i].name, k->name))
			return &generators[i];
	fprintf(stderr, "%s: a packet type that nothing here makes\n", k->name);
	exit(1);
}

static void kinds_of_header(struct packets *p, const char *header)
{
	uint32_t types;

	kinds_of_enum(&p->kinds, header, "fdsock_type");
	types = p->kinds.count;
	kinds_of_enum(&p->kinds, header, "fdsock_method");
	for (uint32_t i = 0; i < p->kinds.count; i++) {
		struct kind *k = &p->kinds.list[i];

		if (i >= types)
			name_method(k);
		p->generator[i] = i >= types ? &local_call : generator_of(k);
		if (p->generator[i]->make != make_call)
			k->shapes &= ~SHAPE_BIT(SHAPE_UNKNOWN);
	}
}

struct packets *packets_create(const char *fd_socket, const char *header, uint64_t seed, const struct book *book, const int *keepers,
			       uint32_t keeper_count)
{
	struct packets *p = calloc(1, sizeof *p);

	if (!p || !(p->packet = calloc(1, PACKET_MAX)) || !(p->answer = malloc(PACKET_MAX)))
		abort();
	snprintf(p->path, sizeof p->path, "%s", fd_socket);
	p->seed = seed;
	p->trail = (struct trail){ .thread = "packets", .seed = seed };
	p->book = *book;
	p->keepers = keepers;
	p->keeper_count = keeper_count;
	p->passed = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int i = 0; i < DOORS; i++)
		p->fd_socket[i].fd = -1;
	for (int i = 0; i < NEARS; i++)
		p->near[i].fd = -1;
	for (int i = 0; i < LEFT; i++)
		p->left[i] = -1;
	kinds_of_header(p, header);
	return p;
}

const struct kinds *packets_kinds(const struct packets *p)
{
	return &p->kinds;
}

void packets_destroy(struct packets *p)
{
	for (int i = 0; i < DOORS; i++)
		hang_up(&p->fd_socket[i]);
	for (int i = 0; i < NEARS; i++)
		hang_up(&p->near[i]);
	for (int i = 0; i < LEFT; i++)
		if (p->left[i] >= 0)
			close(p->left[i]);
	close(p->passed);
	free(p->packet);
	free(p->answer);
	free(p);
}
