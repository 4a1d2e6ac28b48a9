/* See peers/fetch.h. A message is GetChunk{header, data}; it is read field by field out of gRPC's slices, so that each
 * byte of data is copied once, to its slot.
 */
#include "daemon/peers/fetch.h"

#include "daemon/peers/links.h"
#include "store/clock.h"
#include "store/status.h"
#include "terrace.pb-c.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

enum {
	HEADER_MAX = 256,              /* bytes of a packed GetHeader: one of today has 30 */
	FIELD_HEADER = 1,
	FIELD_DATA = 2,
	/* protobuf's wire types: 0 is a varint */
	WIRE_8_BYTES = 1,
	WIRE_BYTES = 2,
	WIRE_4_BYTES = 5,
};

struct peer_stream {
	struct peer_call *call;
	struct peer_stream_ops ops;
	void *arg;
	uint64_t began_us, bytes;
	uint32_t at;                   /* the piece that comes, or comes next */
	bool inside;                   /* its header has come */
	bool broken;                   /* what came made no sense: nothing more is read */
	uint64_t filled;               /* bytes of it */
	uint32_t count;
	struct peer_piece piece[];
};

/* ---- a message's bytes ---- */

struct reader {
	grpc_byte_buffer_reader of;
	grpc_slice slice;              /* the one at hand */
	bool has;
	const uint8_t *at, *end;
};

/* Whether there is a byte at `at`: goes on to the next slice. */
static bool reader_more(struct reader *r)
{
	while (r->at == r->end) {
		if (r->has)
			grpc_slice_unref(r->slice);
		r->has = grpc_byte_buffer_reader_next(&r->of, &r->slice);
		if (!r->has)
			return false;
		r->at = GRPC_SLICE_START_PTR(r->slice);
		r->end = GRPC_SLICE_END_PTR(r->slice);
	}
	return true;
}

static bool reader_open(struct reader *r, const grpc_byte_buffer *bytes)
{
	*r = (struct reader){ .has = false };
	return grpc_byte_buffer_reader_init(&r->of, (grpc_byte_buffer *)bytes); /* it is only read */
}

static void reader_close(struct reader *r)
{
	if (r->has)
		grpc_slice_unref(r->slice);
	grpc_byte_buffer_reader_destroy(&r->of);
}

static bool read_varint(struct reader *r, uint64_t *out)
{
	*out = 0;
	for (int shift = 0; shift < 64; shift += 7) {
		if (!reader_more(r))
			return false;
		*out |= (uint64_t)(*r->at & 0x7f) << shift;
		if (!(*r->at++ & 0x80))
			return true;
	}
	return false;
}

/* Copies n bytes; to NULL: leaves them out. False: there are fewer. */
static bool read_bytes(struct reader *r, uint8_t *to, uint64_t n)
{
	while (n) {
		if (!reader_more(r))
			return false;
		const uint64_t left = (uint64_t)(r->end - r->at), part = left < n ? left : n;

		if (to) {
			memcpy(to, r->at, part);
			to += part;
		}
		r->at += part;
		n -= part;
	}
	return true;
}

/* What stands behind a tag: a varint, four or eight bytes, or the length of what follows. */
static bool read_behind(struct reader *r, uint64_t wire, uint64_t *out)
{
	*out = 0;
	if (wire == WIRE_8_BYTES || wire == WIRE_4_BYTES)
		return read_bytes(r, NULL, wire == WIRE_8_BYTES ? 8 : 4);
	return wire <= WIRE_BYTES && read_varint(r, out);
}

/* ---- what it says ---- */

static void piece_over(struct peer_stream *s, enum status status)
{
	const uint32_t own = s->piece[s->at].own;

	s->at++;
	s->inside = false;
	s->ops.came(s->arg, own, status);
}

static bool take_header(struct peer_stream *s, struct reader *r, uint64_t n)
{
	Terrace__V1__GetHeader *h;
	uint8_t packed[HEADER_MAX];
	bool sound;

	if (n > sizeof packed || !read_bytes(r, packed, n) || s->inside || s->at == s->count)
		return false;
	h = terrace__v1__get_header__unpack(NULL, n, packed);
	if (!h)
		return false;
	sound = h->index == s->at && (h->status != TERRACE__V1__STATUS__OK || h->block_bytes == s->piece[s->at].bytes);
	s->inside = sound && h->status == TERRACE__V1__STATUS__OK;
	s->filled = 0;
	if (sound && !s->inside)
		piece_over(s, STATUS_MISS);
	terrace__v1__get_header__free_unpacked(h, NULL);
	return sound;
}

static bool take_data(struct peer_stream *s, struct reader *r, uint64_t n)
{
	const struct peer_piece *p = &s->piece[s->at];

	if (!s->inside || n > p->bytes - s->filled || !read_bytes(r, p->to + s->filled, n))
		return false;
	s->filled += n;
	s->bytes += n;
	if (s->filled == p->bytes)
		piece_over(s, STATUS_OK);
	return true;
}

/* Reads the fields of a message. False: it is no such message, or not one that may come now. */
static bool take_message(struct peer_stream *s, struct reader *r)
{
	bool sound = true;

	while (sound && reader_more(r)) {
		uint64_t tag, n;

		sound = read_varint(r, &tag) && read_behind(r, tag & 7, &n);
		if (!sound || (tag & 7) != WIRE_BYTES)
			continue;
		if (tag >> 3 == FIELD_HEADER)
			sound = take_header(s, r, n);
		else if (tag >> 3 == FIELD_DATA)
			sound = take_data(s, r, n);
		else
			sound = read_bytes(r, NULL, n); /* of a later version */
	}
	return sound;
}

static void stream_message(void *arg, const struct grpc_byte_buffer *bytes)
{
	struct peer_stream *s = arg;
	struct reader r;

	if (s->broken || !reader_open(&r, bytes))
		return;
	s->broken = !take_message(s, &r);
	reader_close(&r);
	if (s->broken)
		links_cancel(s->call);
}

static void stream_ended(void *arg, enum status status, const char *why)
{
	struct peer_stream *s = arg;

	(void)why;
	if (s->broken)
		status = STATUS_CORRUPT;
	else if (status == STATUS_OK && s->at < s->count)
		status = STATUS_UNAVAILABLE;
	while (s->at < s->count)
		piece_over(s, status);
	s->ops.ended(s->arg, status, s->bytes, clock_us() - s->began_us);
	free(s);
}

enum status peer_stream_begin(struct peer_links *l, const struct peer_stream_call *q, const struct peer_stream_ops *ops,
			      void *arg, struct peer_stream **out)
{
	static const struct peer_call_ops call_ops = { stream_message, stream_ended };
	Terrace__V1__FetchRequest ask = TERRACE__V1__FETCH_REQUEST__INIT;
	struct peer_stream *s = malloc(sizeof *s + q->count * sizeof s->piece[0]);
	uint32_t *index = malloc(q->count * sizeof index[0]);
	enum status status = STATUS_EXHAUSTED;

	if (s && index) {
		*s = (struct peer_stream){ .ops = *ops, .arg = arg, .began_us = clock_us(), .count = q->count };
		memcpy(s->piece, q->piece, q->count * sizeof s->piece[0]);
		for (uint32_t i = 0; i < q->count; i++)
			index[i] = q->piece[i].index;
		ask.tenant = (char *)q->tenant;
		ask.loan = q->loan;
		ask.n_index = q->count;
		ask.index = index;
		*out = s;
		status = links_call(l, q->member,
			       &(struct peer_ask){ "/terrace.v1.Peer/Fetch", &ask.base, q->deadline_us, &call_ops, s },
			       &s->call);
	}
	free(index);
	if (status)
		free(s);
	return status;
}

void peer_stream_cancel(struct peer_stream *s)
{
	links_cancel(s->call);
}
