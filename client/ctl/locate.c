/* terracectl locate: which members of the cluster have blocks, as the directory knows it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/keys.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "terrace.pb-c.h"

enum { OPTION_LAYOUT, OPTION_TENANT, OPTION_WAIT, OPTION_TOKENS, OPTION_BLOCK_TOKENS, OPTION_SALT, OPTION_FIRST,
       OPTION_SEGMENT };
enum { BLOCK_TOKENS_DEFAULT = 16, BLOCK_TOKENS_MAX = 256, WAIT_DEFAULT_MS = 1000, WAIT_MAX_MS = 60000 };
#define FIRST_MAX (1ull << 31)

struct locate {
	const struct ctl_args *args;
	struct terrace_keys keys;
	uint8_t segment[TERRACE_KEY_BYTES_MAX];
	uint32_t segment_bytes;
	Terrace__V1__LocateRequest request;
	Terrace__V1__Keys message;
};

static int read_keys(struct locate *l)
{
	const char *const *value = l->args->value;
	uint64_t block_tokens = BLOCK_TOKENS_DEFAULT;
	const bool chained = value[OPTION_TOKENS] != NULL;

	if (chained == (l->args->word_count > 0))
		return ctl_usage(l->args->command, "locate: give either keys or --tokens, and one of them");
	if (!chained && (value[OPTION_BLOCK_TOKENS] || value[OPTION_SALT]))
		return ctl_usage(l->args->command, "locate: --block-tokens and --salt need --tokens");
	if (chained && (value[OPTION_FIRST] || value[OPTION_SEGMENT]))
		return ctl_usage(l->args->command, "locate: --first-position and --segment are of keys: --tokens "
						   "begins where the sequence does");
	if (!chained)
		return keys_from_words(l->args, &l->keys);
	if (value[OPTION_BLOCK_TOKENS] &&
	    (!ctl_parse_uint(value[OPTION_BLOCK_TOKENS], BLOCK_TOKENS_MAX, &block_tokens) || !block_tokens))
		return ctl_usage(l->args->command, "locate: --block-tokens %s: a number of tokens, at most %d",
				 value[OPTION_BLOCK_TOKENS], BLOCK_TOKENS_MAX);
	return keys_from_tokens(value[OPTION_TOKENS], (uint32_t)block_tokens, value[OPTION_SALT], &l->keys);
}

static int read_options(struct locate *l)
{
	const char *const *value = l->args->value;
	uint64_t first = 0, wait_us = WAIT_DEFAULT_MS * 1000ull, layout = 0;

	if (value[OPTION_LAYOUT] && !ctl_parse_id(value[OPTION_LAYOUT], &layout))
		return ctl_usage(l->args->command, "--layout %s: not an id of up to 16 hex digits, as 'terracectl "
				 "layouts' prints it", value[OPTION_LAYOUT]);
	if (value[OPTION_FIRST] && !ctl_parse_uint(value[OPTION_FIRST], FIRST_MAX, &first))
		return ctl_usage(l->args->command, "locate: --first-position %s: a number of units, at most 2147483648",
				 value[OPTION_FIRST]);
	if (value[OPTION_WAIT] &&
	    (!ctl_parse_seconds(value[OPTION_WAIT], &wait_us) || wait_us > WAIT_MAX_MS * 1000ull))
		return ctl_usage(l->args->command, "locate: --wait %s: seconds, at most 60", value[OPTION_WAIT]);
	if (value[OPTION_SEGMENT] && !ctl_parse_key(value[OPTION_SEGMENT], l->segment, &l->segment_bytes))
		return ctl_usage(l->args->command, "locate: --segment %s: a key has 2 to 128 hex digits, two a byte",
				 value[OPTION_SEGMENT]);
	l->request.tenant = (char *)(value[OPTION_TENANT] ? value[OPTION_TENANT] : "");
	l->request.layout = layout;
	l->request.wait_ms = (uint32_t)(wait_us / 1000);
	l->request.segment = (ProtobufCBinaryData){ .len = l->segment_bytes, .data = l->segment };
	l->message.first_position = (uint32_t)first;
	return CTL_OK;
}

static bool is_of(const Terrace__V1__LocateReply *reply, size_t at, uint32_t key, uint64_t layout)
{
	return at < reply->n_holders && reply->holders[at]->key == key && reply->holders[at]->layout == layout;
}

/* Rows of the reply from *at on, of one key: the members that have it in one layout, a row a layout. */
static void put_rows(const struct locate *l, const Terrace__V1__LocateReply *reply, uint32_t key, size_t *at,
		     struct json_t *rows)
{
	while (*at < reply->n_holders && reply->holders[*at]->key == key) {
		const uint64_t layout = reply->holders[*at]->layout;
		struct json_t *row = out_object(), *list = out_array();
		char text[256] = "";

		out_put_uint(row, "index", key);
		out_put_hex(row, "key", l->keys.bytes + (size_t)key * l->keys.key_bytes, l->keys.key_bytes);
		out_put_id(row, "layout", layout);
		for (; is_of(reply, *at, key, layout); ++*at) {
			const Terrace__V1__LocateHolder *h = reply->holders[*at];
			const size_t n = strlen(text);

			out_append(list, out_text(h->member));
			snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", h->member);
		}
		if (l->args->json)
			out_put(row, "members", list);
		else
			out_put_text(row, "members", text);
		if (!l->args->json)
			out_free(list);
		out_append(rows, row);
	}
}

static int print(const struct locate *l, const Terrace__V1__LocateReply *reply)
{
	struct json_t *tree = out_object(), *rows = out_array();
	uint32_t located = 0;
	size_t at = 0;

	for (uint32_t i = 0; i < l->keys.count; i++) {
		const size_t before = at;

		put_rows(l, reply, i, &at, rows);
		located += at > before;
	}
	out_put_uint(tree, "keys", l->keys.count);
	out_put_uint(tree, "located", located);
	out_put_uint(tree, "unknown", reply->unknown);
	if (reply->more)
		out_put_bool(tree, "more", true);
	out_put(tree, "blocks", rows);
	if (!out_print(tree, l->args->json, false))
		return CTL_FAILED;
	return located ? CTL_OK : CTL_NO;
}

static int ask(struct locate *l)
{
	Terrace__V1__LocateReply *reply;
	struct ctl_daemon d;
	int code = ctl_daemon_open(l->args, &d);

	l->message.key_bytes = l->keys.key_bytes;
	l->message.keys = (ProtobufCBinaryData){ .len = (size_t)l->keys.count * l->keys.key_bytes,
						 .data = (uint8_t *)l->keys.bytes };
	l->request.keys = &l->message;
	if (!code)
		code = ctl_daemon_call(&d, CLIENT_ADMIN_LOCATE, &l->request.base,
				       &terrace__v1__locate_reply__descriptor, l->args->timeout_us, &reply);
	if (!code)
		code = print(l, reply);
	ctl_daemon_close(&d);
	return code;
}

int ctl_run_locate(const struct ctl_args *args)
{
	struct locate l = { .args = args, .request = TERRACE__V1__LOCATE_REQUEST__INIT,
			    .message = TERRACE__V1__KEYS__INIT };
	int code = read_keys(&l);

	if (!code)
		code = read_options(&l);
	if (!code)
		code = ask(&l);
	free((void *)l.keys.bytes);
	return code;
}
