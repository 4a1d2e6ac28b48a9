/* See wire.h. Lengths of nested messages are written as five bytes, which every parser must take. */
#include "tests/hostile/wire.h"

#include <string.h>

#include "terrace.pb-c.h"

enum { VARINT = 0, EIGHT = 1, DELIMITED = 2, GROUP = 3, GROUP_END = 4, FOUR = 5, LENGTH_BYTES = 5, DEPTH_MAX = 6, KEY_BYTES = 16, KEYS_POOL = 48 };

struct writer {
	uint8_t *at;
	size_t n, room;
	enum shape shape;
	struct rng *rng;
	struct book *book;
	struct opened *of;
	uint32_t keys, depth;
	bool grants; /* the message names leases, reservations or an attachment */
};

/* ---- bytes ---- */

static void put(struct writer *w, const void *bytes, size_t n)
{
	if (n > w->room - w->n)
		n = w->room - w->n;
	memcpy(w->at + w->n, bytes, n);
	w->n += n;
}

static void put_varint(struct writer *w, uint64_t v)
{
	uint8_t b[10];
	size_t n = 0;

	for (; v >= 0x80; v >>= 7)
		b[n++] = (uint8_t)(v | 0x80);
	b[n++] = (uint8_t)v;
	put(w, b, n);
}

static void put_tag(struct writer *w, uint32_t id, uint32_t type)
{
	put_varint(w, (uint64_t)id << 3 | type);
}

static void put_random(struct writer *w, size_t n)
{
	while (n) {
		const uint64_t word = rng_next(w->rng);
		const size_t some = n < sizeof word ? n : sizeof word;

		put(w, &word, some);
		n -= some;
	}
}

static void put_fill(struct writer *w, size_t n)
{
	if (n > w->room - w->n)
		n = w->room - w->n;
	memset(w->at + w->n, 'h', n);
	w->n += n;
}

/* What end_delimited makes the length of. */
static size_t begin_delimited(struct writer *w, uint32_t id)
{
	static const uint8_t zero[LENGTH_BYTES];

	put_tag(w, id, DELIMITED);
	put(w, zero, sizeof zero);
	return w->n;
}

static void end_delimited(struct writer *w, size_t began)
{
	size_t bytes = w->n - began;

	if (began < LENGTH_BYTES)
		return;
	for (unsigned i = 0; i < LENGTH_BYTES; i++, bytes >>= 7)
		w->at[began - LENGTH_BYTES + i] = (uint8_t)((bytes & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}

/* ---- handles ---- */

static uint64_t any_of(struct writer *w, const uint64_t *list, uint32_t count)
{
	return count ? list[rng_below(w->rng, count)] : 0;
}

static uint64_t wrong_handle(struct writer *w, uint64_t right)
{
	const uint64_t away = 1 + rng_below(w->rng, 8);

	switch (rng_below(w->rng, 9)) {
	case 0: return 0;
	case 1: return right + away;
	case 2: return right - away;
	case 3: return 1 + rng_below(w->rng, 64);
	case 4: return UINT64_MAX;
	case 5: return 1ull << 63;
	case 6: return any_of(w, w->of->leases, w->of->lease_count);
	case 7: return w->of->attachment;
	default: return rng_next(w->rng);
	}
}

static uint64_t handle(struct writer *w, uint64_t right, const uint64_t *foreign, uint32_t foreign_count)
{
	if (w->shape == SHAPE_FOREIGN)
		return any_of(w, foreign, foreign_count);
	if (w->shape == SHAPE_WRONG && rng_one_in(w->rng, 2))
		return wrong_handle(w, right);
	return right;
}

static uint64_t session_handle(struct writer *w)
{
	const struct foreign *f = w->book->foreign;

	/* Another's lease is asked for under a session of ours, which is more than nothing. */
	if (w->shape == SHAPE_FOREIGN && w->grants && !rng_one_in(w->rng, 4))
		return w->of->session;
	return handle(w, w->of->session, f->session, f->sessions);
}

static uint64_t pop(uint64_t *list, uint32_t *count)
{
	return *count ? list[--*count] : 0;
}

static uint64_t lease_handle(struct writer *w)
{
	const struct foreign *f = w->book->foreign;

	return handle(w, w->shape == SHAPE_VALID ? pop(w->of->leases, &w->of->lease_count) : any_of(w, w->of->leases, w->of->lease_count), f->lease,
		      f->leases);
}

static uint64_t reservation_handle(struct writer *w)
{
	const struct foreign *f = w->book->foreign;

	return handle(w, w->shape == SHAPE_VALID ? pop(w->of->reservations, &w->of->reservation_count) :
						   any_of(w, w->of->reservations, w->of->reservation_count), f->reservation, f->reservations);
}

static void grant(uint64_t *list, uint32_t *count, uint64_t handle)
{
	if (!handle)
		return;
	if (*count == GRANTS_MAX)
		memmove(list, list + 1, --*count * sizeof *list);
	list[(*count)++] = handle;
}

/* ---- values ---- */

static bool is(const ProtobufCFieldDescriptor *f, const char *name)
{
	return !strcmp(f->name, name);
}

/* Numbers that make a valid message. */
static uint64_t valid_number(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	if (is(f, "session"))
		return session_handle(w);
	if ((is(f, "lease") && f->type != PROTOBUF_C_TYPE_BOOL) || is(f, "leases"))
		return lease_handle(w);
	if (is(f, "reservation") || is(f, "reservations"))
		return reservation_handle(w);
	if (is(f, "attachment"))
		return handle(w, w->of->attachment, w->book->foreign->attachment, w->book->foreign->attachments);
	if (is(f, "call") || is(f, "calls"))
		return 1 + rng_below(w->rng, 8);
	if (is(f, "layout") || is(f, "layout_id") || is(f, "from") || is(f, "disk") || is(f, "has_crc") || is(f, "keep_open") ||
	    is(f, "max_bytes_per_second"))
		return 0;
	if (is(f, "gpu"))
		return rng_one_in(w->rng, 4);
	if (is(f, "rebuild") || is(f, "open"))
		return rng_one_in(w->rng, 16);
	if (is(f, "tokens"))
		return 1 + rng_below(w->rng, 16);
	if (is(f, "unit_tokens")) /* of the layout's block, which put_layout has */
		return 16 * rng_below(w->rng, 2);
	if (is(f, "max_bytes"))
		return 8 << 20;
	return rng_below(w->rng, f->type == PROTOBUF_C_TYPE_BOOL ? 2 : 16);
}

static uint64_t boundary_number(struct writer *w)
{
	static const uint64_t ends[] = {
		0, 1, 2, 63, 64, 65, 127, 128, 255, 256, 1023, 1024, 1025, 4095, 4096, 4097, UINT16_MAX, 1 << 16, 1 << 20, (1 << 20) + 1, INT32_MAX,
		1ull << 31, UINT32_MAX, 1ull << 32, (1ull << 32) + 1, INT64_MAX, 1ull << 63, UINT64_MAX - 4095, UINT64_MAX - 1, UINT64_MAX,
	};

	return ends[rng_below(w->rng, sizeof ends / sizeof ends[0])];
}

/* Whether this field gets another value than a valid one. */
static bool at_its_end(struct writer *w)
{
	return w->shape == SHAPE_BOUNDARY && rng_one_in(w->rng, 2);
}

static uint64_t number(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	if (at_its_end(w))
		return boundary_number(w);
	if (f->type == PROTOBUF_C_TYPE_ENUM) {
		const ProtobufCEnumDescriptor *e = f->descriptor;

		return (uint64_t)(int64_t)e->values[rng_below(w->rng, e->n_values)].value;
	}
	return valid_number(w, f);
}

static void put_number(struct writer *w, const ProtobufCFieldDescriptor *f, bool tagged)
{
	const uint64_t v = number(w, f);

	switch (f->type) {
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		if (tagged)
			put_tag(w, f->id, EIGHT);
		put(w, &v, 8);
		break;
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_FLOAT:
		if (tagged)
			put_tag(w, f->id, FOUR);
		put(w, &v, 4);
		break;
	default:
		if (tagged)
			put_tag(w, f->id, VARINT);
		put_varint(w, v);
		break;
	}
}

static void put_key(struct writer *w, uint32_t bytes)
{
	uint8_t key[KEY_BYTES] = "hostile key";

	key[KEY_BYTES - 1] = (uint8_t)rng_below(w->rng, KEYS_POOL);
	if (bytes <= KEY_BYTES)
		put(w, key + KEY_BYTES - bytes, bytes);
	else
		put_fill(w, bytes);
}

static const uint32_t lengths[] = { 0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 4096 };

static void put_text(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	static const char *const odd[] = { "..", "../escaped", "/absolute", ".", "a/b", "\xff\xfe\xfd", "a\nb", "%s%n", "\x1b[31m" };
	char name[] = "hostile-000";
	const char *text = is(f, "tenant") || is(f, "service") ? "" : is(f, "name") ? name : "hostile";

	for (int i = 8; i < 11; i++)
		name[i] = (char)('0' + rng_below(w->rng, 10));
	if (at_its_end(w)) {
		text = odd[rng_below(w->rng, sizeof odd / sizeof odd[0])];
		if (rng_one_in(w->rng, 2)) {
			put_fill(w, lengths[rng_below(w->rng, sizeof lengths / sizeof lengths[0])]);
			return;
		}
	}
	put(w, text, strlen(text));
}

static void put_bytes(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	static const uint8_t zero[TOKEN_BYTES];

	if (at_its_end(w))
		put_fill(w, lengths[rng_below(w->rng, sizeof lengths / sizeof lengths[0])]);
	else if (is(f, "token") && w->shape == SHAPE_WRONG)
		put_random(w, TOKEN_BYTES);
	else if (is(f, "token") && w->shape == SHAPE_FOREIGN) { /* the number of another's session, as if that were its token */
		const uint64_t shown = any_of(w, w->book->foreign->session, w->book->foreign->sessions);

		put(w, &shown, sizeof shown);
		put(w, zero, TOKEN_BYTES - sizeof shown);
	} else if (is(f, "token"))
		put(w, w->of->token, TOKEN_BYTES);
	else if (is(f, "data"))
		put_fill(w, w->of->block_bytes[0]);
	else
		put_key(w, KEY_BYTES);
}

/* ---- messages that are valid as a whole only ---- */

static void message_fields(struct writer *w, const ProtobufCMessageDescriptor *type);

static const ProtobufCFieldDescriptor *field(const ProtobufCMessageDescriptor *type, const char *name)
{
	return protobuf_c_message_descriptor_get_field_by_name(type, name);
}

static void put_keys(struct writer *w, const ProtobufCMessageDescriptor *type)
{
	static const uint32_t counts[] = { 0, 1, 255, 4095, 4096, 4097 };
	const bool odd = w->shape == SHAPE_BOUNDARY && rng_one_in(w->rng, 2);
	const uint32_t bytes = odd ? lengths[rng_below(w->rng, 11)] : KEY_BYTES;
	size_t began;

	w->keys = odd && rng_one_in(w->rng, 4) ? counts[rng_below(w->rng, 6)] : 1 + rng_below(w->rng, 4);
	put_tag(w, field(type, "key_bytes")->id, VARINT);
	put_varint(w, odd && rng_one_in(w->rng, 4) ? boundary_number(w) : bytes);
	began = begin_delimited(w, field(type, "keys")->id);
	for (uint32_t i = 0; i < w->keys; i++)
		put_key(w, bytes);
	if (odd && rng_one_in(w->rng, 4))
		put_fill(w, 1);
	end_delimited(w, began);
}

struct field_value {
	const char *name;
	uint64_t value;
};

static void put_layout(struct writer *w, const ProtobufCMessageDescriptor *type)
{
	static const struct field_value values[] = {
		{ "layers", 1 }, { "heads", 1 }, { "total_heads", 1 }, { "head_dim_k", 64 }, { "head_dim_v", 64 }, { "block_tokens", 16 },
		{ "rotation_version", 1 }, { "codebook_version", 1 }, { "layout_version", 1 },
	};
	uint8_t print[32] = "hostile";
	const uint64_t formats[] = { 5, 3, 7 }; /* tq4, fp8, tq2 */
	const uint64_t format = formats[rng_below(w->rng, 3)];
	size_t began = begin_delimited(w, field(type, "fingerprint")->id);

	put(w, print, sizeof print);
	end_delimited(w, began);
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		put_tag(w, field(type, values[i].name)->id, VARINT);
		put_varint(w, values[i].value);
	}
	put_tag(w, field(type, "k_format")->id, VARINT);
	put_varint(w, format);
	put_tag(w, field(type, "v_format")->id, VARINT);
	put_varint(w, format);
	if (w->shape == SHAPE_BOUNDARY) { /* the last one of a field counts */
		const ProtobufCFieldDescriptor *f = &type->fields[rng_below(w->rng, type->n_fields)];

		if (f->type != PROTOBUF_C_TYPE_BYTES)
			put_number(w, f, true);
	}
}

static void put_nested(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	const ProtobufCMessageDescriptor *type = f->descriptor;
	const size_t began = begin_delimited(w, f->id);

	if (!strcmp(type->short_name, "Keys"))
		put_keys(w, type);
	else if (!strcmp(type->short_name, "Layout"))
		put_layout(w, type);
	else if (w->depth < DEPTH_MAX) {
		w->depth++;
		message_fields(w, type);
		w->depth--;
	}
	end_delimited(w, began);
}

/* ---- fields ---- */

static bool is_length_delimited(const ProtobufCFieldDescriptor *f)
{
	return f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_BYTES || f->type == PROTOBUF_C_TYPE_MESSAGE;
}

static void put_one(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	size_t began;

	if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
		put_nested(w, f);
	} else if (is_length_delimited(f)) {
		began = begin_delimited(w, f->id);
		if (f->type == PROTOBUF_C_TYPE_STRING)
			put_text(w, f);
		else
			put_bytes(w, f);
		end_delimited(w, began);
	} else {
		put_number(w, f, true);
	}
}

static uint32_t valid_count(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	if (is(f, "info"))
		return rng_one_in(w->rng, 2) ? w->keys : 0;
	if (is(f, "layouts"))
		return 1;
	if (is(f, "rules") || is(f, "cells"))
		return 0;
	if (is(f, "leases") || is(f, "calls"))
		return 1 + rng_below(w->rng, 4);
	if (is(f, "items") || is(f, "reservations")) {
		const uint32_t there = w->of->reservation_count;

		return there > 1 ? 1 + rng_below(w->rng, there < 3 ? there : 3) : 1;
	}
	return 1 + rng_below(w->rng, 3);
}

static void put_repeated(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	static const uint32_t counts[] = { 0, 1, 16, 17, 64, 65, 1024, 1025, 4097, 20000 };
	uint32_t n = valid_count(w, f);
	size_t began;

	if (at_its_end(w))
		n = counts[rng_below(w->rng, f->type == PROTOBUF_C_TYPE_MESSAGE ? 8 : 10)];
	if (is_length_delimited(f)) {
		while (n--)
			put_one(w, f);
		return;
	}
	began = begin_delimited(w, f->id);
	while (n--)
		put_number(w, f, false);
	end_delimited(w, began);
}

/* Fields that a valid message goes without: an item that closes no open block names no key, and says nothing new of the block. */
static bool is_left_out(const struct writer *w, const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *f)
{
	return w->shape == SHAPE_VALID && !strcmp(type->short_name, "CommitItem") && (is(f, "key") || is(f, "info") || is(f, "tokens"));
}

static void put_wrong_type(struct writer *w, const ProtobufCFieldDescriptor *f)
{
	const uint32_t type = rng_below(w->rng, 8);

	put_tag(w, f->id, type);
	switch (type) {
	case VARINT: put_random(w, 1 + rng_below(w->rng, 12)); break;
	case EIGHT: put_random(w, 8); break;
	case DELIMITED: put_varint(w, rng_one_in(w->rng, 2) ? boundary_number(w) : rng_below(w->rng, 64)); put_random(w, rng_below(w->rng, 64)); break;
	case FOUR: put_random(w, 4); break;
	default: put_random(w, rng_below(w->rng, 8)); break;
	}
}

static void message_fields(struct writer *w, const ProtobufCMessageDescriptor *type)
{
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &type->fields[i];

		if (is_left_out(w, type, f))
			continue;
		if (w->shape == SHAPE_WRONG_TYPE && rng_one_in(w->rng, 3))
			put_wrong_type(w, f);
		else if (f->label == PROTOBUF_C_LABEL_REPEATED)
			put_repeated(w, f);
		else
			put_one(w, f);
	}
}

/* ---- shapes of the whole ---- */

static void put_unknown(struct writer *w)
{
	static const uint32_t ids[] = { 0, 100, 500, 18999, 19000, 20000, (1 << 29) - 1 };
	const uint32_t type = rng_below(w->rng, 6);

	put_tag(w, ids[rng_below(w->rng, 7)], type);
	if (type == VARINT)
		put_varint(w, rng_next(w->rng));
	else if (type == GROUP)
		put_tag(w, 100, GROUP_END);
	else if (type == DELIMITED) {
		const uint32_t n = rng_below(w->rng, 200);

		put_varint(w, n);
		put_random(w, n);
	} else if (type != GROUP_END)
		put_random(w, type == EIGHT ? 8 : 4);
}

/* Mostly more than a socket's packet, now and then more than gRPC takes. */
static void put_excess(struct writer *w)
{
	const size_t bytes = rng_one_in(w->rng, 32) ? (4 << 20) + rng_below(w->rng, 1 << 20) : (64 << 10) + rng_below(w->rng, 192 << 10);

	put_tag(w, 1000, DELIMITED);
	put_varint(w, bytes);
	put_fill(w, bytes);
}

static bool names_grants(const ProtobufCMessageDescriptor *type, unsigned depth)
{
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &type->fields[i];

		if (is(f, "leases") || is(f, "reservation") || is(f, "reservations") || is(f, "attachment") ||
		    (depth && f->type == PROTOBUF_C_TYPE_MESSAGE && names_grants(f->descriptor, depth - 1)))
			return true;
	}
	return false;
}

size_t wire_message(uint8_t *out, size_t room, const ProtobufCMessageDescriptor *type, enum shape shape, struct rng *rng, struct book *book,
		    struct opened *of)
{
	struct writer w = { .at = out, .room = room, .shape = shape, .rng = rng, .book = book, .of = of, .grants = names_grants(type, 2) };

	if (shape == SHAPE_EMPTY)
		return 0;
	if (shape == SHAPE_GARBAGE) {
		put_random(&w, 1 + rng_below(rng, 300));
		return w.n;
	}
	message_fields(&w, type);
	if (shape == SHAPE_WRONG_TYPE && type->n_fields)
		put_wrong_type(&w, &type->fields[rng_below(rng, type->n_fields)]);
	if (shape == SHAPE_UNKNOWN)
		for (uint32_t n = 1 + rng_below(rng, 4); n; n--)
			put_unknown(&w);
	if (shape == SHAPE_OVERSIZED)
		put_excess(&w);
	if (shape == SHAPE_TRUNCATED && w.n)
		w.n -= 1 + rng_below(rng, (uint32_t)w.n);
	return w.n;
}

/* ---- replies ---- */

static bool any_granted(const uint64_t *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (list[i])
			return true;
	return false;
}

bool reply_did_for_others(const ProtobufCMessage *reply)
{
	const ProtobufCMessageDescriptor *d = reply->descriptor;
	const ProtobufCFieldDescriptor *status = protobuf_c_message_descriptor_get_field_by_name(d, "status");

	if (d == &terrace__v1__lease_reply__descriptor)
		return ((const Terrace__V1__LeaseReply *)reply)->lease != 0;
	if (d == &terrace__v1__reserve_reply__descriptor) {
		const Terrace__V1__ReserveReply *r = (const Terrace__V1__ReserveReply *)reply;

		return any_granted(r->reservation, r->n_reservation);
	}
	if (!status || status->label != PROTOBUF_C_LABEL_REPEATED)
		return true;
	const size_t n = *(const size_t *)((const char *)reply + status->quantifier_offset);
	const Terrace__V1__Status *list = *(Terrace__V1__Status *const *)((const char *)reply + status->offset);

	for (size_t i = 0; i < n; i++)
		if (list[i] == TERRACE__V1__STATUS__OK)
			return true;
	return false;
}

static void note_places(struct opened *of, const Terrace__V1__Places *places)
{
	for (size_t i = 0; places && i < places->n_extent; i++)
		if (places->extent[i] != UINT32_MAX)
			of->extents[of->extent_count++ % GRANTS_MAX] = places->extent[i];
}

void book_note(struct opened *of, const ProtobufCMessage *reply)
{
	if (reply->descriptor == &terrace__v1__lease_reply__descriptor) {
		grant(of->leases, &of->lease_count, ((const Terrace__V1__LeaseReply *)reply)->lease);
		note_places(of, ((const Terrace__V1__LeaseReply *)reply)->places);
	} else if (reply->descriptor == &terrace__v1__commit_reply__descriptor) {
		grant(of->leases, &of->lease_count, ((const Terrace__V1__CommitReply *)reply)->lease);
		note_places(of, ((const Terrace__V1__CommitReply *)reply)->places);
	} else if (reply->descriptor == &terrace__v1__reserve_reply__descriptor) {
		const Terrace__V1__ReserveReply *r = (const Terrace__V1__ReserveReply *)reply;

		for (size_t i = 0; i < r->n_reservation; i++)
			grant(of->reservations, &of->reservation_count, r->reservation[i]);
		note_places(of, r->places);
	}
}
