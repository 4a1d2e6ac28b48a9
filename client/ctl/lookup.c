/* terracectl lookup. Two ways to ask. Without layouts each key is asked for with Admin.Inspect, which needs
 * no session and so works on a daemon whose layouts the operator does not know, and on one that drains. With
 * layouts a session is opened and Cache.Lookup gives the answer that an engine gets.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/keys.h"
#include "client/ctl/layouts.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "client/value/layout.h"
#include "kernels/format.h"

enum { OPTION_LAYOUT, OPTION_LAYOUTS, OPTION_TOKENS, OPTION_BLOCK_TOKENS, OPTION_SALT };
enum { BLOCK_TOKENS_DEFAULT = 16, BLOCK_TOKENS_MAX = 256 };

struct lookup {
	const struct ctl_args *args;
	struct terrace_keys keys;
	uint64_t layout_id; /* 0: any */
	struct terrace_layout layouts[CTL_LAYOUTS_MAX];
	uint32_t layout_count;
	struct json_t *rows;
	uint32_t prefix, stored; /* keys */
};

/* One row: a key and the ids of the layouts that have it. */
static void add_row(struct lookup *l, uint32_t i, const uint64_t *ids, uint32_t n)
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
		add_row(l, i, ids, n);
		l->stored += n > 0;
		l->prefix += n > 0 && l->prefix == i;
	}
	ctl_daemon_close(&d);
	return code;
}

static void take_states(struct lookup *l, const uint8_t *states)
{
	uint64_t all[CTL_LAYOUTS_MAX], ids[CTL_LAYOUTS_MAX];
	struct kv_layout kv;

	for (uint32_t j = 0; j < l->layout_count; j++)
		all[j] = client_layout_read(&l->layouts[j], &kv) ? 0 : kv_layout_id(&kv);
	for (uint32_t i = 0; i < l->keys.count; i++) {
		uint32_t n = 0;

		for (uint32_t j = 0; j < l->layout_count; j++)
			if (states[(size_t)i * l->layout_count + j])
				ids[n++] = all[j];
		add_row(l, i, ids, n);
		l->stored += n == l->layout_count;
	}
}

static int ask_session(struct lookup *l)
{
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session_options session_options = TERRACE_SESSION_OPTIONS_INIT;
	uint8_t *states = malloc((size_t)l->keys.count * l->layout_count);
	struct terrace_client *client = NULL;
	struct terrace_session *session = NULL;
	enum terrace_status status = TERRACE_EXHAUSTED;

	options.address = l->args->address;
	options.timeout_us = l->args->timeout_us ? l->args->timeout_us : CTL_TIMEOUT_US;
	options.no_borrow = true;
	session_options.engine = "terracectl";
	if (states)
		status = terrace_connect(&options, &client);
	if (status == TERRACE_OK)
		status =
			terrace_session_open(client, l->layouts, l->layout_count, &session_options, &session);
	if (status == TERRACE_OK)
		status = terrace_lookup(session, &l->keys, 0, &l->prefix, states);
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
	uint64_t block_tokens = l->layout_count ? l->layouts[0].block_tokens : BLOCK_TOKENS_DEFAULT;
	bool chained = value[OPTION_TOKENS] != NULL;

	if (chained == (l->args->word_count > 0))
		return ctl_usage(l->args->command, "lookup: give either keys or --tokens, and one of them");
	if (!chained && (value[OPTION_BLOCK_TOKENS] || value[OPTION_SALT]))
		return ctl_usage(l->args->command, "lookup: --block-tokens and --salt need --tokens");
	if (!chained)
		return keys_from_words(l->args, &l->keys);
	if (value[OPTION_BLOCK_TOKENS] &&
	    (l->layout_count ||
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
	if (value[OPTION_LAYOUTS])
		code = layouts_load(value[OPTION_LAYOUTS], l->layouts, &l->layout_count);
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
			code = l.layout_count ? ask_session(&l) : ask_index(&l);
		if (code)
			out_free(l.rows);
		else
			code = print(&l);
	}
	free((void *)l.keys.bytes);
	return code;
}
