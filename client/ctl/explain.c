/* terracectl explain and graph. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "terrace.pb-c.h"

enum { EXPLAIN_LAYOUT, EXPLAIN_SESSION };
enum { GRAPH_DOT };

static struct json_t *tier_to_json(const Terrace__V1__ExplainTier *t)
{
	struct json_t *o = out_object(), *features = out_object();

	out_put_text(o, "tier", t->tier);
	if (!strcmp(t->tier, "gpu"))
		out_put_uint(o, "gpu", t->gpu);
	out_put_text(o, "policy", t->policy);
	if (t->kept[0])
		out_put_text(o, "kept", t->kept);
	out_put_uint(o, "idle_ms", t->idle_ms);
	out_put_uint(o, "uses", t->uses);
	if (t->ranked)
		out_put_uint(o, "rank", t->rank);
	if (t->rival.len)
		out_put_hex(o, "rival", t->rival.data, t->rival.len);
	if (t->scored) {
		out_put_number(o, "score", t->score);
		out_put_number(o, "rival_score", t->rival_score);
		out_put_text(o, "unit", t->unit);
	}
	for (size_t i = 0; i < t->n_features; i++)
		out_put_uint(features, t->features[i]->name, t->features[i]->value);
	out_put(o, "features", features);
	return o;
}

static struct json_t *block_to_json(const Terrace__V1__ExplainBlock *b)
{
	struct json_t *o = out_object();

	out_put_id(o, "layout_id", b->layout_id);
	if (b->tenant[0])
		out_put_text(o, "tenant", b->tenant);
	if (b->public_name.len)
		out_put_hex(o, "public_name", b->public_name.data, b->public_name.len);
	if (b->old_public_name.len)
		out_put_hex(o, "old_public_name", b->old_public_name.data, b->old_public_name.len);
	out_put_text(o, "tier", b->tier[0] ? b->tier : "nowhere");
	if (b->tier[0]) {
		out_put_uint(o, "age_ms", b->age_ms);
		out_put_uint(o, "idle_ms", b->idle_ms);
		out_put_uint(o, "uses", b->uses);
		out_put_uint(o, "pins", b->pins);
		out_put_uint(o, "turn", b->turn);
		out_put_bool(o, "refused", b->refused);
		out_put_bool(o, "unworthy", b->unworthy);
		out_put_bool(o, "ahead", b->ahead);
	}
	out_put_text(o, "policy", b->policy);
	if (b->ranked)
		out_put_uint(o, "rank", b->rank);
	if (b->rival.len) {
		out_put_hex(o, "rival", b->rival.data, b->rival.len);
		out_put_uint(o, "rival_idle_ms", b->rival_idle_ms);
		out_put_uint(o, "rival_uses", b->rival_uses);
	}
	if (b->left[0]) {
		out_put_text(o, "left", b->left);
		out_put_text(o, "left_reason", b->left_reason);
		out_put_uint(o, "left_ms_ago", b->left_ms_ago);
		out_put_uint(o, "left_idle_ms", b->left_idle_ms);
		out_put_uint(o, "left_uses", b->left_uses);
		out_put_bool(o, "regretted", b->regretted);
	}
	if (b->peer[0])
		out_put_text(o, "peer", b->peer);
	if (b->n_tiers) {
		struct json_t *tiers = out_array();

		for (size_t i = 0; i < b->n_tiers; i++)
			out_append(tiers, tier_to_json(b->tiers[i]));
		out_put(o, "tiers", tiers);
	}
	return o;
}

static int ask(const struct ctl_args *args, struct ctl_daemon *d, enum client_method method, const ProtobufCMessage *request,
	       const ProtobufCMessageDescriptor *type, void *reply)
{
	int code = ctl_daemon_open(args, d);

	return code ? code : ctl_daemon_call(d, method, request, type, args->timeout_us, reply);
}

static int explain_print(const struct ctl_args *args, const Terrace__V1__ExplainRequest *q, const Terrace__V1__ExplainReply *reply)
{
	struct json_t *tree, *blocks;

	if (!args->json && reply->n_blocks == 0) {
		return ctl_failed_with(CTL_NO, "explain: no block has that key, and none that left is remembered: an engine computes it");
	}
	tree = out_object();
	blocks = out_array();
	out_put_hex(tree, "key", q->key.data, q->key.len);
	out_put(tree, "blocks", blocks);
	for (size_t i = 0; i < reply->n_blocks; i++)
		out_append(blocks, block_to_json(reply->blocks[i]));
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return reply->n_blocks ? CTL_OK : CTL_NO;
}

int ctl_run_explain(const struct ctl_args *args)
{
	Terrace__V1__ExplainRequest request = TERRACE__V1__EXPLAIN_REQUEST__INIT;
	Terrace__V1__ExplainReply *reply;
	struct ctl_daemon d;
	uint32_t key_bytes;
	uint8_t key[TERRACE_KEY_BYTES_MAX];
	int code;

	if (!ctl_parse_key(args->words[0], key, &key_bytes))
		return ctl_usage(args->command, "'%s' is no key: it has 2 to 128 hex digits, two a byte",
				 args->words[0]);
	if (args->value[EXPLAIN_LAYOUT] && !ctl_parse_id(args->value[EXPLAIN_LAYOUT], &request.layout_id))
		return ctl_usage(args->command, "--layout %s: not an id of up to 16 hex digits, as 'terracectl layouts' prints it", args->value[EXPLAIN_LAYOUT]);
	if (args->value[EXPLAIN_SESSION] &&
	    (!ctl_parse_uint(args->value[EXPLAIN_SESSION], UINT64_MAX, &request.number) || !request.number))
		return ctl_usage(args->command, "--session %s: not a session's public number, as 'terracectl stat session' prints it",
				 args->value[EXPLAIN_SESSION]);
	request.key = (ProtobufCBinaryData){.len = key_bytes, .data = key};
	code = ask(args, &d, CLIENT_ADMIN_EXPLAIN, &request.base, &terrace__v1__explain_reply__descriptor, &reply);
	if (!code)
		code = explain_print(args, &request, reply);
	ctl_daemon_close(&d);
	return code;
}

/* ---- graph ---- */

enum { HEX_TEXT = 2 * TERRACE_KEY_BYTES_MAX + 1 };

static void hex_text(const uint8_t *bytes, size_t n, char out[HEX_TEXT])
{
	for (size_t i = 0; i < n && i < TERRACE_KEY_BYTES_MAX; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
	out[n < TERRACE_KEY_BYTES_MAX ? 2 * n : HEX_TEXT - 1] = 0;
}

/* Prints the graph for Graphviz. A block that is nowhere has its name in the graph for a label. */
static int graph_dot(const Terrace__V1__GraphRequest *q, const Terrace__V1__GraphReply *reply)
{
	char from[HEX_TEXT], to[HEX_TEXT];

	hex_text(q->key.data, q->key.len, from);
	printf("digraph terrace {\n\t\"%s\" [style=bold];\n", from);
	for (size_t i = 0; i < reply->n_edges; i++) {
		const Terrace__V1__GraphEdge *e = reply->edges[i];

		if (e->key.len)
			hex_text(e->key.data, e->key.len, to);
		else
			snprintf(to, sizeof(to), "name %016llx", (unsigned long long)e->name);
		printf("\t\"%s\" -> \"%s\" [label=\"%s %.2f\"%s];\n", from, to, e->type, e->weight,
		       e->tier[0] ? "" : ", style=dashed");
	}
	printf("}\n");
	return out_flush() ? CTL_OK : CTL_FAILED;
}

static int graph_print(const struct ctl_args *args, const Terrace__V1__GraphRequest *q, const Terrace__V1__GraphReply *reply)
{
	struct json_t *tree = out_object(), *edges = out_array();

	out_put_hex(tree, "key", q->key.data, q->key.len);
	out_put(tree, "edges", edges);
	for (size_t i = 0; i < reply->n_edges; i++) {
		const Terrace__V1__GraphEdge *e = reply->edges[i];
		struct json_t *o = out_object();

		out_put_text(o, "type", e->type);
		out_put_number(o, "weight", (double)e->weight);
		out_put_text(o, "tier", e->tier[0] ? e->tier : "nowhere");
		out_put_id(o, "name", e->name);
		out_put_hex(o, "key", e->key.data, e->key.len);
		out_append(edges, o);
	}
	return out_print(tree, args->json, false) ? CTL_OK : CTL_FAILED;
}

int ctl_run_graph(const struct ctl_args *args)
{
	Terrace__V1__GraphRequest request = TERRACE__V1__GRAPH_REQUEST__INIT;
	Terrace__V1__GraphReply *reply;
	struct ctl_daemon d;
	uint32_t key_bytes;
	uint8_t key[TERRACE_KEY_BYTES_MAX];
	int code;

	if (!ctl_parse_key(args->words[0], key, &key_bytes))
		return ctl_usage(args->command, "'%s' is no key: it has 2 to 128 hex digits, two a byte",
				 args->words[0]);
	if (args->value[GRAPH_DOT] && args->json)
		return ctl_usage(args->command, "graph: --dot or --json, not both");
	request.key = (ProtobufCBinaryData){.len = key_bytes, .data = key};
	code = ask(args, &d, CLIENT_ADMIN_GRAPH, &request.base, &terrace__v1__graph_reply__descriptor, &reply);
	if (!code) {
		bool none = reply->n_edges == 0;

		code = args->value[GRAPH_DOT] ? graph_dot(&request, reply) : graph_print(args, &request, reply);
		if (!code && none)
			code = CTL_NO;
	}
	ctl_daemon_close(&d);
	return code;
}
