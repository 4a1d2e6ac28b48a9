/* terracectl lookup. There are two ways to ask. Without layouts each key is asked for with Admin.Inspect, which needs
 * no session: so it works on a daemon whose layouts the operator does not know, and on one that drains. With layouts a
 * session is opened, and Cache.Lookup gives the answer that an engine gets, with the state of each cell, that is, of
 * each key and layout.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/keys.h"
#include "client/ctl/layouts.h"
#include "client/ctl/output.h"
#include "client/ctl/sessions.h"
#include "client/ctl/values.h"
#include "client/value/layout.h"
#include "kernels/format.h"

enum { OPTION_LAYOUT, OPTION_LAYOUTS, OPTION_TOKENS, OPTION_BLOCK_TOKENS, OPTION_SALT, OPTION_FIRST };
enum { BLOCK_TOKENS_DEFAULT = 16, BLOCK_TOKENS_MAX = 256 };
#define FIRST_MAX (1ull << 31)

struct lookup {
	const struct ctl_args *args;
	struct terrace_keys keys;
	uint64_t layout_id; /* 0: any */
	struct ctl_layouts file;
	uint64_t first;     /* position of the first key */
	struct json_t *rows;
	uint32_t prefix, stored; /* keys */
};

/* Adds the cells of a key, in the order of the file's layouts. NULL: there is no file. */
static void put_cells(const struct lookup *l, struct json_t *row, const uint8_t *states)
{
	static const char *const names[] = {"absent", "host", "disk", "gpu", "none"};
	char text[8 * CTL_LAYOUTS_MAX + 1] = "";
	struct json_t *list = out_array();

	for (uint32_t j = 0; states && j < l->file.count; j++) {
		const char *name = states[j] < sizeof(names) / sizeof(names[0]) ? names[states[j]] : "unknown";

		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", j ? " " : "", name);
		out_append(list, out_text(name));
	}
	if (states && l->args->json)
		out_put(row, "cells", list);
	else
		out_free(list);
	if (states && !l->args->json)
		out_put_text(row, "cells", text);
}

/* Adds one row: a key and the ids of the layouts that have it. */
static void add_row(struct lookup *l, uint32_t i, const uint64_t *ids, uint32_t n, const uint8_t *states)
{
	struct json_t *row = out_object(), *list = out_array(), *id;
	char text[17 * CTL_LAYOUTS_MAX + 1] = "";

	out_put_uint(row, "index", i);
	out_put_hex(row, "key", l->keys.bytes + (size_t)i * l->keys.key_bytes, l->keys.key_bytes);
	out_put_bool(row, "stored", n > 0);
	for (uint32_t j = 0; j < n; j++) {
		id = out_id(ids[j]);
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%016llx", j ? " " : "",
			 (unsigned long long)ids[j]);
		out_append(list, id);
	}
	if (l->args->json) {
		out_put(row, "layouts", list);
	} else {
		out_put_text(row, "layouts", text);
		out_free(list);
	}
	put_cells(l, row, states);
	out_append(l->rows, row);
}

static int ask_index(struct lookup *l)
{
	Terrace__V1__InspectRequest request = TERRACE__V1__INSPECT_REQUEST__INIT;
	Terrace__V1__InspectReply *reply;
	struct ctl_daemon d;
	int code = ctl_daemon_open(l->args, &d);

	request.layout_id = l->layout_id;
	for (uint32_t i = 0; i < l->keys.count && !code; i++) {
		uint64_t ids[CTL_LAYOUTS_MAX];
		uint32_t n = 0;

		request.key.len = l->keys.key_bytes;
		request.key.data = (uint8_t *)l->keys.bytes + (size_t)i * l->keys.key_bytes;
		code = ctl_daemon_call(&d, CLIENT_ADMIN_INSPECT, &request.base,
				       &terrace__v1__inspect_reply__descriptor, l->args->timeout_us, &reply);
		for (size_t j = 0; !code && j < reply->n_blocks && n < CTL_LAYOUTS_MAX; j++)
			if (!strcmp(reply->blocks[j]->state, "stored"))
				ids[n++] = reply->blocks[j]->layout_id;
		if (code)
			break;
		add_row(l, i, ids, n, NULL);
		l->stored += n > 0;
		l->prefix += n > 0 && l->prefix == i;
	}
	ctl_daemon_close(&d);
	return code;
}

static void take_states(struct lookup *l, const uint8_t *states)
{
	const uint32_t layouts = l->file.count, wanted = layouts_have_cells(&l->file) ? 1 : layouts;
	uint64_t all[CTL_LAYOUTS_MAX], ids[CTL_LAYOUTS_MAX];
	struct kv_layout kv;

	for (uint32_t j = 0; j < layouts; j++)
		all[j] = client_layout_read(&l->file.layout[j], &kv) ? 0 : kv_layout_id(&kv);
	for (uint32_t i = 0; i < l->keys.count; i++) {
		const uint8_t *cells = states + (size_t)i * layouts;
		uint32_t n = 0;

		for (uint32_t j = 0; j < layouts; j++)
			if (ctl_is_stored(cells[j]))
				ids[n++] = all[j];
		add_row(l, i, ids, n, cells);
		l->stored += n >= wanted;
	}
}

static int ask_session(struct lookup *l)
{
	struct terrace_call_options call = TERRACE_CALL_OPTIONS_INIT;
	uint8_t *states = malloc((size_t)l->keys.count * l->file.count);
	struct terrace_client *client = NULL;
	struct terrace_session *session = NULL;
	enum terrace_status status = TERRACE_EXHAUSTED;

	call.first_position = (uint32_t)l->first;
	if (states)
		status = ctl_client_connect(l->args, &client);
	if (status == TERRACE_OK)
		status = layouts_session(client, &l->file, &session);
	if (status == TERRACE_OK)
		status = terrace_lookup_with(session, &l->keys, &call, 0, &l->prefix, states);
	if (status == TERRACE_OK)
		take_states(l, states);
	free(states);
	terrace_session_close(session);
	terrace_disconnect(client);
	return status == TERRACE_OK ? CTL_OK : ctl_status_failed("lookup", status);
}

static int read_keys(struct lookup *l)
{
	const char *const *value = l->args->value;
	uint64_t block_tokens = l->file.count ? layouts_unit(&l->file) : BLOCK_TOKENS_DEFAULT;
	bool chained = value[OPTION_TOKENS] != NULL;

	if (chained == (l->args->word_count > 0))
		return ctl_usage(l->args->command, "lookup: give either keys or --tokens, and one of them");
	if (!chained && (value[OPTION_BLOCK_TOKENS] || value[OPTION_SALT]))
		return ctl_usage(l->args->command, "lookup: --block-tokens and --salt need --tokens");
	if (chained && value[OPTION_FIRST])
		return ctl_usage(l->args->command,
				 "lookup: --first-position is of keys: --tokens begins where the sequence does");
	if (!chained)
		return keys_from_words(l->args, &l->keys);
	if (value[OPTION_BLOCK_TOKENS] &&
	    (l->file.count ||
	     !ctl_parse_uint(value[OPTION_BLOCK_TOKENS], BLOCK_TOKENS_MAX, &block_tokens) || !block_tokens ||
	     block_tokens % 16))
		return ctl_usage(
			l->args->command,
			"lookup: --block-tokens %s: a multiple of 16, at most %d; not with --layouts",
			value[OPTION_BLOCK_TOKENS], BLOCK_TOKENS_MAX);
	return keys_from_tokens(value[OPTION_TOKENS], (uint32_t)block_tokens, value[OPTION_SALT], &l->keys);
}

static int prepare(struct lookup *l)
{
	const char *const *value = l->args->value;
	int code = CTL_OK;

	if (value[OPTION_LAYOUT] && value[OPTION_LAYOUTS])
		return ctl_usage(l->args->command, "lookup: --layout or --layouts, not both");
	if (value[OPTION_LAYOUT] && !ctl_parse_id(value[OPTION_LAYOUT], &l->layout_id))
		return ctl_usage(l->args->command, "--layout %s: not an id of up to 16 hex digits, as 'terracectl layouts' prints it",
				 value[OPTION_LAYOUT]);
	if (value[OPTION_FIRST] && !value[OPTION_LAYOUTS])
		return ctl_usage(l->args->command,
				 "lookup: --first-position needs --layouts: positions are those of a session");
	if (value[OPTION_FIRST] && !ctl_parse_uint(value[OPTION_FIRST], FIRST_MAX, &l->first))
		return ctl_usage(l->args->command, "lookup: --first-position %s: a number of units, at most 2147483648",
				 value[OPTION_FIRST]);
	if (value[OPTION_LAYOUTS])
		code = layouts_load(value[OPTION_LAYOUTS], &l->file);
	return code ? code : read_keys(l);
}

static int print(struct lookup *l)
{
	struct json_t *tree = out_object();

	out_put_uint(tree, "keys", l->keys.count);
	out_put_uint(tree, "stored", l->stored);
	out_put_uint(tree, "prefix", l->prefix);
	out_put(tree, "blocks", l->rows);
	if (!out_print(tree, l->args->json, false))
		return CTL_FAILED;
	if (layouts_have_cells(&l->file))
		return l->prefix == l->keys.count ? CTL_OK : CTL_NO;
	return l->stored == l->keys.count ? CTL_OK : CTL_NO;
}

int ctl_run_lookup(const struct ctl_args *args)
{
	struct lookup l = {.args = args};
	int code = prepare(&l);

	if (!code) {
		l.rows = out_array();
		code = ctl_daemon_check(args);
		if (!code)
			code = l.file.count ? ask_session(&l) : ask_index(&l);
		if (code)
			out_free(l.rows);
		else
			code = print(&l);
	}
	free((void *)l.keys.bytes);
	return code;
}
