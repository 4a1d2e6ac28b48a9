/* terrace_plan(): the sizes of a model's blocks by its layouts, and how many tokens fit into tiers of given sizes. */
#include "client/value/layout.h"
#include "client/value/model.h"
#include "client/value/status.h"
#include "kernels/format.h"

#include <stdbool.h>
#include <string.h>

_Static_assert((int)MODEL_FULL == (int)TERRACE_PLAN_FULL && (int)MODEL_WINDOW == (int)TERRACE_PLAN_WINDOW &&
		       (int)MODEL_LATENT == (int)TERRACE_PLAN_LATENT && (int)MODEL_STATE == (int)TERRACE_PLAN_STATE,
	       "kinds");
_Static_assert((int)MODEL_NOTHING <= (int)TERRACE_PLAN_GROUPS_MAX, "a group a kind");

enum { BLOCK_TOKENS = 16, STATE_BLOCKS = 128, STATE_ALIGN = 16, STATE_TOKENS_MAX = 1 << 24, SLOT_BYTES_MAX = 1 << 30 };

static uint64_t slot_of(uint64_t block_bytes)
{
	return (block_bytes + 2 * KV_SLOT_ALIGN - 1) / KV_SLOT_ALIGN * KV_SLOT_ALIGN;
}

static bool has_rounding(const struct terrace_plan_options *o)
{
	return o->k_format == TERRACE_FORMAT_INT4_PTH || o->v_format == TERRACE_FORMAT_INT4_PTH;
}

/* The layout of K and V of all heads. Its fingerprint is the engine's: a plan has none. */
static struct terrace_layout layout_of(const struct model *m, uint32_t layers, uint32_t window,
				       const struct terrace_plan_options *o)
{
	return (struct terrace_layout){
		.size = sizeof(struct terrace_layout),
		.layers = layers,
		.heads = m->heads,
		.total_heads = m->heads,
		.head_dim_k = m->head_dim,
		.head_dim_v = m->head_dim,
		.block_tokens = o->block_tokens,
		.k_format = o->k_format,
		.v_format = o->v_format,
		.window = window,
		.int4_rounding = has_rounding(o) && !m->half ? TERRACE_ROUND_BF16 : TERRACE_ROUND_FP16,
	};
}

static enum terrace_status plan_attention(const struct model *m, enum model_kind kind,
					  const struct terrace_plan_options *o, struct terrace_plan_group *g)
{
	struct kv_geometry geometry;
	struct kv_layout layout;
	const char *problem;

	g->layout = layout_of(m, g->layers, kind == MODEL_WINDOW ? m->window : 0, o);
	g->block_tokens = o->block_tokens;
	if (!kv_head_dim_ok(m->head_dim)) {
		memset(&g->layout, 0, sizeof(g->layout));
		g->block_bytes = 2ull * g->layers * o->block_tokens * m->heads * m->head_dim * m->element_bytes;
		return TERRACE_OK;
	}
	problem = client_layout_read(&g->layout, &layout);
	if (problem)
		return client_fail(TERRACE_INVALID, "%u layers with %u heads of %u: %s", g->layers, m->heads,
				   m->head_dim, problem);
	kv_geometry_of(&layout, &geometry);
	g->packed = 1;
	g->block_bytes = geometry.block_bytes;
	return TERRACE_OK;
}

/* The layout of a latent and its rope part, which heads share. V is a view of the latent. */
static struct terrace_layout layout_of_latent(const struct model *m, uint32_t layers,
					      const struct terrace_plan_options *o)
{
	struct terrace_layout l = layout_of(m, layers, 0, o);

	l.heads = l.total_heads = 1;
	l.head_dim_k = l.head_dim_v = m->latent;
	l.v_format = TERRACE_FORMAT_NONE;
	l.rope_dim = m->rope;
	l.rope_format = o->rope_format	? o->rope_format
			: m->half	? TERRACE_FORMAT_FP16
					: TERRACE_FORMAT_BF16;
	if (o->k_format != TERRACE_FORMAT_INT4_PTH)
		l.int4_rounding = TERRACE_ROUND_FP16;
	return l;
}

/* A latent of a size that no packed format has, or one that is to be opaque, is counted in the model's dtype. */
static enum terrace_status plan_latent(const struct model *m, const struct terrace_plan_options *o,
				       struct terrace_plan_group *g)
{
	const struct terrace_layout made = layout_of_latent(m, g->layers, o);
	struct kv_geometry geometry;
	struct kv_layout layout;
	const char *problem;

	g->block_tokens = o->block_tokens;
	g->block_bytes = (uint64_t)g->layers * o->block_tokens * (m->latent + m->rope) * m->element_bytes;
	if (m->latent != KV_LATENT_DIM || m->rope != KV_ROPE_DIM || o->k_format == TERRACE_FORMAT_OPAQUE)
		return TERRACE_OK;
	problem = client_layout_read(&made, &layout);
	if (problem)
		return client_fail(TERRACE_INVALID, "%u layers with a latent of %u and a rope part of %u: %s",
				   g->layers, m->latent, m->rope, problem);
	kv_geometry_of(&layout, &geometry);
	g->layout = made;
	g->packed = 1;
	g->block_bytes = geometry.block_bytes;
	return TERRACE_OK;
}

static enum terrace_status plan_group(const struct model *m, enum model_kind kind, const struct terrace_plan_options *o,
				      struct terrace_plan_group *g)
{
	enum terrace_status s = TERRACE_OK;

	g->kind = (enum terrace_plan_kind)kind;
	g->layers = m->group_layers[kind];
	if (kind == MODEL_STATE) {
		g->block_tokens = o->state_tokens;
		g->block_bytes = (g->layers * m->state_bytes + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
	} else if (kind == MODEL_LATENT) {
		s = plan_latent(m, o, g);
	} else {
		s = plan_attention(m, kind, o, g);
	}
	g->slot_bytes = slot_of(g->block_bytes);
	if (!s && g->slot_bytes > SLOT_BYTES_MAX)
		return client_fail(TERRACE_INVALID,
				   "%u layers make a block of %llu bytes, which no slot of at most 1 GiB holds",
				   g->layers, (unsigned long long)g->block_bytes);
	return s;
}

/* Every group's slots of as many tokens as there are from one state to the next. */
static void plan_tiers(const struct terrace_plan_options *o, struct terrace_plan *p)
{
	const uint64_t tokens = o->state_tokens;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < p->group_count; i++)
		bytes += p->groups[i].slot_bytes * (tokens / p->groups[i].block_tokens);
	if (!bytes)
		return; /* a model that keeps nothing */
	p->bytes_token = (bytes + tokens - 1) / tokens;
	p->memory_tokens = (uint64_t)((unsigned __int128)o->memory_bytes * tokens / bytes);
	p->disk_tokens = (uint64_t)((unsigned __int128)o->disk_bytes * tokens / bytes);
}

static bool rope_format_ok(enum terrace_format f)
{
	return f == TERRACE_FORMAT_NONE || f == TERRACE_FORMAT_FP16 || f == TERRACE_FORMAT_BF16 ||
	       f == TERRACE_FORMAT_FP8;
}

static enum terrace_status options_read(const struct terrace_plan_options *in, struct terrace_plan_options *o)
{
	if (!in || !client_options_copy(o, sizeof(*o), in, sizeof(*o)))
		return client_fail(TERRACE_INVALID,
				   "the options' size is not set: begin with TERRACE_PLAN_OPTIONS_INIT");
	if (!o->v_format)
		o->v_format = o->k_format;
	if (!o->k_format || !terrace_format_name(o->k_format) || !terrace_format_name(o->v_format))
		return client_fail(TERRACE_INVALID, "k_format %d, v_format %d: not a format of packed blocks",
				   (int)o->k_format, (int)o->v_format);
	if (!rope_format_ok(o->rope_format))
		return client_fail(TERRACE_INVALID, "rope_format %d: it is fp16, bf16, fp8 or 0", (int)o->rope_format);
	if (!o->block_tokens)
		o->block_tokens = BLOCK_TOKENS;
	if (o->block_tokens % KV_ATOM_TOKENS || o->block_tokens > KV_BLOCK_TOKENS_MAX)
		return client_fail(TERRACE_INVALID, "block_tokens is %u, not a multiple of %d up to %d",
				   o->block_tokens, KV_ATOM_TOKENS, KV_BLOCK_TOKENS_MAX);
	if (!o->state_tokens)
		o->state_tokens = STATE_BLOCKS * o->block_tokens;
	if (o->state_tokens % o->block_tokens || o->state_tokens > STATE_TOKENS_MAX)
		return client_fail(TERRACE_INVALID, "state_tokens is %u, not a multiple of block_tokens %u up to %d",
				   o->state_tokens, o->block_tokens, STATE_TOKENS_MAX);
	return TERRACE_OK;
}

static enum terrace_status plan_make(const char *config, size_t bytes, const struct terrace_plan_options *in,
				     struct terrace_plan *p)
{
	struct terrace_plan_options o;
	enum terrace_status s = options_read(in, &o);
	struct model m;

	if (!s)
		s = client_model_read(config, bytes, &m);
	if (s)
		return s;
	p->layers = m.layers;
	memcpy(p->model_type, m.type, sizeof(p->model_type));
	for (int kind = MODEL_FULL; kind < MODEL_NOTHING && !s; kind++)
		if (m.group_layers[kind])
			s = plan_group(&m, (enum model_kind)kind, &o, &p->groups[p->group_count++]);
	if (!s)
		plan_tiers(&o, p);
	return s;
}

enum terrace_status terrace_plan(const char *config, size_t bytes, const struct terrace_plan_options *options,
				 struct terrace_plan *plan)
{
	struct terrace_plan made = TERRACE_PLAN_INIT, sized;
	enum terrace_status s;

	if (!config || !plan || !client_options_copy(&sized, sizeof(sized), plan, sizeof(sized)))
		return client_fail(
			TERRACE_INVALID,
			"plan: the config or the plan is NULL, or its size is not set: begin with TERRACE_PLAN_INIT");
	s = plan_make(config, bytes, options, &made);
	if (s)
		return client_fail_in(s, "plan");
	client_options_give(plan, &made, sizeof(made), sizeof(made));
	return TERRACE_OK;
}
