/* terracectl inspect: prints what the daemon has of a block's key in each layout, and whether its checksums are
 * right. */
#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/layouts.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"

enum { OPTION_LAYOUT };

static const char *role_text(Terrace__V1__Role role)
{
	static const char *const names[] = {"unknown", "system", "user", "assistant", "tool"};

	return (unsigned)role < sizeof(names) / sizeof(names[0]) ? names[role] : "unknown";
}

static struct json_t *block_to_json(const Terrace__V1__InspectBlock *b)
{
	struct json_t *o = out_object();

	out_put_id(o, "layout_id", b->layout_id);
	out_put_text(o, "state", b->state);
	out_put_text(o, "tier", b->tier);
	if (b->extent != UINT32_MAX) { /* in memory */
		out_put_uint(o, "extent", b->extent);
		out_put_uint(o, "offset", b->offset);
	}
	out_put_uint(o, "generation", b->generation);
	out_put_uint(o, "block_bytes", b->block_bytes);
	out_put_uint(o, "tokens", b->tokens);
	out_put_uint(o, "pins", b->pins);
	out_put_hex(o, "parent", b->parent.data, b->parent.len);
	out_put_uint(o, "position", b->position);
	out_put_text(o, "role", role_text(b->role));
	out_put_uint(o, "turn", b->turn);
	out_put_uint(o, "age_ms", b->age_ms);
	out_put_uint(o, "idle_ms", b->idle_ms);
	out_put_uint(o, "uses", b->uses);
	out_put_bool(o, "checksum_ok", b->checksum_ok);
	if (b->layout)
		out_put(o, "layout", layout_to_json(b->layout));
	return o;
}

static int print_blocks(const struct ctl_args *args, const uint8_t *key, uint32_t key_bytes,
			const Terrace__V1__InspectReply *reply)
{
	struct json_t *tree, *blocks;
	bool sound = true;

	if (!args->json && reply->n_blocks == 0) {
		return ctl_failed_with(CTL_NO, "inspect: no block has that key: 'terracectl explain' tells if one had it");
	}
	tree = out_object();
	blocks = out_array();
	out_put_hex(tree, "key", key, key_bytes);
	out_put(tree, "blocks", blocks);
	for (size_t i = 0; i < reply->n_blocks; i++) {
		out_append(blocks, block_to_json(reply->blocks[i]));
		sound = sound && reply->blocks[i]->checksum_ok;
	}
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return reply->n_blocks == 0 ? CTL_NO : sound ? CTL_OK : CTL_DAMAGED;
}

int ctl_run_inspect(const struct ctl_args *args)
{
	Terrace__V1__InspectRequest request = TERRACE__V1__INSPECT_REQUEST__INIT;
	Terrace__V1__InspectReply *reply;
	struct ctl_daemon d;
	uint8_t key[TERRACE_KEY_BYTES_MAX];
	uint32_t key_bytes;
	int code;

	if (!ctl_parse_key(args->words[0], key, &key_bytes))
		return ctl_usage(args->command, "'%s' is no key: it has 2 to 128 hex digits, two a byte",
				 args->words[0]);
	if (args->value[OPTION_LAYOUT] && !ctl_parse_id(args->value[OPTION_LAYOUT], &request.layout_id))
		return ctl_usage(args->command, "--layout %s: not an id of up to 16 hex digits, as 'terracectl layouts' prints it",
				 args->value[OPTION_LAYOUT]);
	request.key = (ProtobufCBinaryData){.len = key_bytes, .data = key};
	code = ctl_daemon_open(args, &d);
	if (!code)
		code = ctl_daemon_call(&d, CLIENT_ADMIN_INSPECT, &request.base,
				       &terrace__v1__inspect_reply__descriptor, args->timeout_us, &reply);
	if (!code)
		code = print_blocks(args, key, key_bytes, reply);
	ctl_daemon_close(&d);
	return code;
}
