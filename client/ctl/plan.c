/* terracectl plan: computes the memory and disk space that a model needs, from its config.json, without a daemon. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/layouts.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "kernels/format.h"

enum {
	OPTION_MODEL,
	OPTION_FORMAT,
	OPTION_V_FORMAT,
	OPTION_ROPE,
	OPTION_MEMORY,
	OPTION_DISK,
	OPTION_BLOCK_TOKENS,
	OPTION_STATE_TOKENS
};
enum { CONFIG_BYTES_MAX = 1 << 20 };

static const char *const kinds[] = { "full", "window", "latent", "state" };

/* Reads a file for the caller to free. NULL: stderr says why. */
static char *read_config(const char *path, size_t *bytes)
{
	char *text = malloc(CONFIG_BYTES_MAX + 1);
	FILE *file = text ? fopen(path, "rb") : NULL;

	*bytes = file ? fread(text, 1, CONFIG_BYTES_MAX + 1, file) : 0;
	if (file && !ferror(file) && *bytes <= CONFIG_BYTES_MAX) {
		fclose(file);
		return text;
	}
	if (file && *bytes > CONFIG_BYTES_MAX)
		ctl_failed("%s: larger than 1 MiB: give a model's config.json", path);
	else
		ctl_failed("%s: %s", path, strerror(errno));
	if (file)
		fclose(file);
	free(text);
	return NULL;
}

static int read_tokens(const struct ctl_args *args, int option, const char *name, uint32_t *out)
{
	uint64_t n;

	if (!args->value[option])
		return -1;
	if (!ctl_parse_uint(args->value[option], UINT32_MAX, &n) || n == 0)
		return ctl_usage(args->command, "--%s %s: not a number of tokens", name, args->value[option]);
	*out = (uint32_t)n;
	return -1;
}

static int read_room(const struct ctl_args *args, int option, const char *name, uint64_t *out)
{
	if (args->value[option] && !ctl_parse_bytes(args->value[option], out))
		return ctl_usage(args->command, "--%s %s: not a number, or one with KiB, MiB, GiB or TiB", name,
				 args->value[option]);
	return -1;
}

static int read_format(const struct ctl_args *args, int option, const char *name, enum terrace_format *out)
{
	if (args->value[option] && terrace_format_parse(args->value[option], out))
		return ctl_usage(args->command, "--%s %s: not a format: %s", name, args->value[option],
				 KV_FORMAT_NAMES);
	return -1;
}

/* Reads the options into *o. -1: it has them; else an exit code. */
static int read_options(const struct ctl_args *args, struct terrace_plan_options *o)
{
	int code = read_format(args, OPTION_FORMAT, "format", &o->k_format);

	if (!args->value[OPTION_MODEL])
		return ctl_usage(args->command, "--model is missing: the model's config.json");
	if (!args->value[OPTION_FORMAT])
		return ctl_usage(args->command, "--format is missing: %s", KV_FORMAT_NAMES);
	if (code < 0)
		code = read_format(args, OPTION_V_FORMAT, "v-format", &o->v_format);
	if (code < 0)
		code = read_format(args, OPTION_ROPE, "rope", &o->rope_format);
	if (code < 0)
		code = read_room(args, OPTION_MEMORY, "memory", &o->memory_bytes);
	if (code < 0)
		code = read_room(args, OPTION_DISK, "disk", &o->disk_bytes);
	if (code < 0)
		code = read_tokens(args, OPTION_BLOCK_TOKENS, "block-tokens", &o->block_tokens);
	return code < 0 ? read_tokens(args, OPTION_STATE_TOKENS, "state-tokens", &o->state_tokens) : code;
}

static const char *shown(const struct terrace_plan_group *g, enum terrace_format format)
{
	return !g->packed ? "opaque" : format == TERRACE_FORMAT_NONE ? "none" : terrace_format_name(format);
}

static struct json_t *group_shown(const struct terrace_plan_group *g)
{
	struct json_t *o = out_object();
	const uint64_t tokens = g->block_tokens;

	out_put_text(o, "kind", kinds[g->kind]);
	out_put_uint(o, "layers", g->layers);
	out_put_text(o, "k_format", shown(g, g->layout.k_format));
	out_put_text(o, "v_format", shown(g, g->layout.v_format));
	out_put_text(o, "rope", g->packed ? shown(g, g->layout.rope_format) : "none");
	out_put_uint(o, "heads", g->layout.heads);
	out_put_uint(o, "head_dim", g->layout.head_dim_k);
	out_put_uint(o, "window", g->layout.window);
	out_put_uint(o, "block_tokens", tokens);
	out_put_uint(o, "block_bytes", g->block_bytes);
	out_put_uint(o, "slot_bytes", g->slot_bytes);
	out_put_uint(o, "bytes_token", (g->slot_bytes + tokens - 1) / tokens);
	return o;
}

static void put_tier(struct json_t *tiers, const char *name, uint64_t bytes, uint64_t tokens)
{
	struct json_t *o = out_object();

	out_put_text(o, "tier", name);
	out_put_uint(o, "bytes", bytes);
	out_put_uint(o, "tokens", tokens);
	out_append(tiers, o);
}

/* Shows a layout as 'lookup --layouts' reads it, but for the fingerprint. */
static struct json_t *layout_shown(const struct terrace_layout *layout)
{
	Terrace__V1__Layout l = TERRACE__V1__LAYOUT__INIT;

	l.layers = layout->layers;
	l.heads = layout->heads;
	l.total_heads = layout->total_heads;
	l.head_dim_k = layout->head_dim_k;
	l.head_dim_v = layout->head_dim_v;
	l.block_tokens = layout->block_tokens;
	l.k_format = (Terrace__V1__Format)layout->k_format;
	l.v_format = (Terrace__V1__Format)layout->v_format;
	l.window = layout->window;
	l.rotation_version = kv_rotation_version(layout->head_dim_k, layout->head_dim_v);
	l.codebook_version = KV_CODEBOOK_VERSION;
	l.layout_version = KV_LAYOUT_VERSION;
	l.int4_rounding = (uint32_t)layout->int4_rounding;
	l.rope_dim = layout->rope_dim;
	l.rope_format = (Terrace__V1__Format)layout->rope_format;
	return layout_to_json(&l);
}

static struct json_t *plan_shown(const struct terrace_plan *p, const struct terrace_plan_options *o, bool json)
{
	struct json_t *tree = out_object(), *groups = out_array(), *tiers = out_array(), *layouts = out_array();
	bool opaque = false;

	out_put_text(tree, "model_type", p->model_type);
	out_put_uint(tree, "layers", p->layers);
	out_put_uint(tree, "bytes_token", p->bytes_token);
	for (uint32_t i = 0; i < p->group_count; i++) {
		opaque |= !p->groups[i].packed;
		out_append(groups, group_shown(&p->groups[i]));
		if (p->groups[i].packed)
			out_append(layouts, layout_shown(&p->groups[i].layout));
	}
	out_put(tree, "groups", groups);
	if (o->memory_bytes)
		put_tier(tiers, "memory", o->memory_bytes, p->memory_tokens);
	if (o->disk_bytes)
		put_tier(tiers, "disk", o->disk_bytes, p->disk_tokens);
	out_put(tree, "tiers", tiers);
	if (opaque)
		out_put_text(tree, "note",
			     "opaque: no packed format of this version has this form; what is counted are bytes of the "
			     "model's own dtype");
	if (json)
		out_put(tree, "layouts", layouts);
	else
		out_free(layouts);
	return tree;
}

int ctl_run_plan(const struct ctl_args *args)
{
	struct terrace_plan_options o = TERRACE_PLAN_OPTIONS_INIT;
	struct terrace_plan plan = TERRACE_PLAN_INIT;
	int code = read_options(args, &o);
	enum terrace_status s;
	size_t bytes;
	char *config;

	if (code >= 0)
		return code;
	config = read_config(args->value[OPTION_MODEL], &bytes);
	if (!config)
		return CTL_FAILED;
	s = terrace_plan(config, bytes, &o, &plan);
	free(config);
	if (s)
		return ctl_failed("%s: %s", args->value[OPTION_MODEL], terrace_error());
	return out_print(plan_shown(&plan, &o, args->json), args->json, false) ? CTL_OK : CTL_FAILED;
}
