/* The forms of a trace, line by line. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/policy.h"
#include "eviction/replay/read.h"

enum { MOONCAKE_TOKENS = 512, QWEN_TOKENS = 16, BLOCK_TOKENS_MAX = 1 << 20 };

#define TIME_MS_MAX (UINT64_MAX / 1000)

/* The session and turn of each chat of a Qwen-Bailian trace. */
struct chat {
	uint64_t id, session; /* session 0: free */
	uint16_t turn;
};

struct parser {
	struct trace *trace;
	enum { FORM_TEXT, FORM_MOONCAKE, FORM_QWEN } form;
	uint64_t *ids;
	size_t ids_max;
	struct chat *chats;
	size_t chat_slots, chat_count;
	const char *why;
};

static bool ids_reserve(struct parser *p, size_t n)
{
	size_t max = p->ids_max ? p->ids_max : 256;
	uint64_t *ids;

	if (n <= p->ids_max)
		return true;
	while (max < n)
		max *= 2;
	ids = realloc(p->ids, max * sizeof(*ids));
	if (!ids) {
		p->why = "no memory";
		return false;
	}
	p->ids = ids;
	p->ids_max = max;
	return true;
}

static enum status bad(struct parser *p, const char *why)
{
	p->why = why;
	return STATUS_CORRUPT;
}

static enum status add(struct parser *p, const struct trace_request *r, size_t ids)
{
	enum status s = trace_add(p->trace, r, p->ids, (uint32_t)ids);

	if (s == STATUS_INVALID)
		return bad(p, "earlier than the line before it");
	if (s)
		p->why = "no memory";
	return s;
}

/* ---- text ---- */

/* The next unsigned number of the line, at most `max`. */
static bool number(char **at, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long n;

	while (**at == ' ' || **at == '\t')
		++*at;
	if (**at < '0' || **at > '9')
		return false;
	errno = 0;
	n = strtoull(*at, &end, 10);
	if (errno || n > max || (*end && *end != ' ' && *end != '\t'))
		return false;
	*at = end;
	*out = n;
	return true;
}

static enum status text_head(struct parser *p, char *line)
{
	char name[65];
	unsigned tokens, requests, blocks;

	if (sscanf(line, "# %64s %7u %9u %9u", name, &tokens, &requests, &blocks) != 4 || tokens == 0 ||
	    tokens > BLOCK_TOKENS_MAX)
		return bad(p, "expected `# NAME TOKENS_PER_BLOCK REQUESTS BLOCKS`");
	trace_init(p->trace, tokens);
	return STATUS_OK;
}

static enum status text_line(struct parser *p, char *line)
{
	uint64_t ms, tokens, session, hint, n;
	struct trace_request r;

	if (!number(&line, TIME_MS_MAX, &ms) || !number(&line, UINT32_MAX, &tokens) ||
	    !number(&line, UINT64_MAX, &session) || !number(&line, POLICY_HINTS - 1, &hint) ||
	    !number(&line, UINT32_MAX / 2, &n) || n > strlen(line))
		return bad(p, "expected `TIMESTAMP_MS INPUT_TOKENS SESSION HINT N ID1 .. IDN`");
	if (!ids_reserve(p, n))
		return STATUS_EXHAUSTED;
	for (size_t i = 0; i < n; i++)
		if (!number(&line, UINT64_MAX, &p->ids[i]))
			return bad(p, "fewer ids than N");
	if (line[strspn(line, " \t\r")])
		return bad(p, "more ids than N");
	r = (struct trace_request){ .time_us = ms * 1000, .session = session, .tokens = (uint32_t)tokens,
				    .hint = (uint8_t)hint };
	return add(p, &r, n);
}

/* ---- JSON ---- */

static struct chat *chat_at(struct chat *chats, size_t slots, uint64_t id)
{
	size_t at = hash_mix(id) & (slots - 1);

	while (chats[at].session && chats[at].id != id)
		at = (at + 1) & (slots - 1);
	return &chats[at];
}

static bool chats_grow(struct parser *p)
{
	size_t slots = p->chat_slots ? 2 * p->chat_slots : 1024;
	struct chat *chats;

	if (2 * (p->chat_count + 1) <= p->chat_slots)
		return true;
	chats = calloc(slots, sizeof(*chats));
	if (!chats)
		return false;
	for (size_t i = 0; i < p->chat_slots; i++)
		if (p->chats[i].session)
			*chat_at(chats, slots, p->chats[i].id) = p->chats[i];
	free(p->chats);
	p->chats = chats;
	p->chat_slots = slots;
	return true;
}

/* A chat whose parent is known continues its session; any other begins one, named by itself. */
static enum status chat_note(struct parser *p, const json_t *o, struct trace_request *r)
{
	const json_t *id = json_object_get(o, "chat_id"), *parent = json_object_get(o, "parent_chat_id");
	const json_t *turn = json_object_get(o, "turn");
	const struct chat *before = NULL;
	struct chat *c;

	if (!json_is_integer(id) || json_integer_value(id) < 0)
		return bad(p, "chat_id is not a number");
	if (!chats_grow(p)) {
		p->why = "no memory";
		return STATUS_EXHAUSTED;
	}
	if (json_is_integer(parent) && json_integer_value(parent) >= 0)
		before = chat_at(p->chats, p->chat_slots, (uint64_t)json_integer_value(parent));
	if (before && !before->session)
		before = NULL;
	r->session = before ? before->session : (uint64_t)json_integer_value(id) + 1;
	r->turn = before && before->turn < UINT16_MAX ? before->turn + 1 : 1;
	if (json_is_integer(turn) && json_integer_value(turn) > 0 && json_integer_value(turn) <= UINT16_MAX)
		r->turn = (uint16_t)json_integer_value(turn);
	c = chat_at(p->chats, p->chat_slots, (uint64_t)json_integer_value(id));
	p->chat_count += !c->session;
	*c = (struct chat){ (uint64_t)json_integer_value(id), r->session, r->turn };
	return STATUS_OK;
}

static enum status json_request(struct parser *p, const json_t *o)
{
	const json_t *time = json_object_get(o, "timestamp"), *tokens = json_object_get(o, "input_length");
	const json_t *ids = json_object_get(o, "hash_ids");
	double us = json_number_value(time) * (p->form == FORM_QWEN ? 1e6 : 1e3);
	struct trace_request r = { 0 };
	enum status s;

	if (!json_is_number(time) || !(us >= 0 && us < 9e18))
		return bad(p, "timestamp is not a time");
	if (!json_is_integer(tokens) || json_integer_value(tokens) < 0 || json_integer_value(tokens) > UINT32_MAX)
		return bad(p, "input_length is not a number of tokens");
	if (!json_is_array(ids))
		return bad(p, "hash_ids is not a list");
	r.time_us = (uint64_t)(us + 0.5);
	r.tokens = (uint32_t)json_integer_value(tokens);
	if (p->form == FORM_QWEN) {
		s = chat_note(p, o, &r);
		if (s)
			return s;
	}
	if (!ids_reserve(p, json_array_size(ids)))
		return STATUS_EXHAUSTED;
	for (size_t i = 0; i < json_array_size(ids); i++) {
		const json_t *id = json_array_get(ids, i);

		if (!json_is_integer(id))
			return bad(p, "hash_ids holds something else than numbers");
		p->ids[i] = (uint64_t)json_integer_value(id);
	}
	return add(p, &r, json_array_size(ids));
}

static enum status json_line(struct parser *p, const char *line, bool first)
{
	json_t *o = json_loads(line, 0, NULL);
	enum status s;

	if (!json_is_object(o)) {
		json_decref(o);
		return bad(p, "not a JSON object");
	}
	if (first) {
		p->form = json_object_get(o, "chat_id") ? FORM_QWEN : FORM_MOONCAKE;
		trace_init(p->trace, p->form == FORM_QWEN ? QWEN_TOKENS : MOONCAKE_TOKENS);
	}
	s = json_request(p, o);
	json_decref(o);
	return s;
}

/* ---- all forms ---- */

static enum status any_line(struct parser *p, char *line, bool first)
{
	if (first && line[0] == '#')
		return text_head(p, line);
	if (first || p->form != FORM_TEXT)
		return json_line(p, line, first);
	if (line[0] == '#')
		return STATUS_OK; /* a comment */
	return text_line(p, line);
}

enum status trace_parse(char *text, size_t bytes, struct trace *out, char *why, size_t why_bytes)
{
	struct trace trace = { 0 };
	struct parser p = { .trace = &trace, .why = "no requests" };
	enum status s = STATUS_OK;
	size_t lines = 0;
	bool first = true;

	for (char *at = text, *end = text + bytes; at < end && !s;) {
		char *line = at, *stop = memchr(at, '\n', (size_t)(end - at));

		if (!stop)
			break; /* no newline: the line was cut off */
		*stop = '\0';
		at = stop + 1;
		lines++;
		if (strlen(line) != (size_t)(stop - line))
			s = bad(&p, "a zero byte");
		else if (line[strspn(line, " \t\r")])
			s = any_line(&p, line, first), first = false;
	}
	if (!s && trace.request_count == 0)
		s = STATUS_CORRUPT;
	if (s) {
		snprintf(why, why_bytes, "line %zu: %s", lines, p.why);
		trace_fini(&trace);
	} else {
		*out = trace;
	}
	free(p.ids);
	free(p.chats);
	return s;
}
