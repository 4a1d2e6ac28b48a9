/* One format through the daemon; see demo_case.h. */
#include "demo_case.h"

#include "demo_text.h"

#include <stdlib.h>
#include <string.h>

static bool make_prompt(const struct model *model, const char *ending, uint32_t **tokens, uint32_t *count,
			struct fault *fault)
{
	size_t document = strlen(demo_document), bytes = document + strlen(ending);
	char *text = malloc(bytes + 1);
	bool ok;

	if (!text)
		return fault_set(fault, "out of memory");
	strcpy(text, demo_document);
	strcpy(text + document, ending);
	ok = generate_prompt(model, model->config.positions_max, text, bytes, tokens, count, fault);
	free(text);
	return ok;
}

bool demo_prompts_make(const struct model *model, struct demo_prompts *p, struct fault *fault)
{
	memset(p, 0, sizeof(*p));
	if (!make_prompt(model, demo_ending_a, &p->a, &p->a_count, fault) ||
	    !make_prompt(model, demo_ending_b, &p->b, &p->b_count, fault)) {
		demo_prompts_free(p);
		return false;
	}
	while (p->shared < p->a_count && p->shared < p->b_count && p->a[p->shared] == p->b[p->shared])
		p->shared++;
	return true;
}

void demo_prompts_free(struct demo_prompts *p)
{
	free(p->a);
	free(p->b);
	memset(p, 0, sizeof(*p));
}

uint32_t demo_reusable(const struct demo_prompts *p, uint32_t block_tokens)
{
	return p->shared / block_tokens;
}

static bool run_all(struct engine *e, struct prefix_cache *cache, const struct demo_prompts *p,
		    const struct generate_options *o, struct demo_case *c, struct fault *fault)
{
	return generate_run(&e->forward, &c->spec, NULL, p->b, p->b_count, o, &c->alone, fault) &&
	       generate_run(&e->forward, &c->spec, cache, p->a, p->a_count, o, &c->a, fault) &&
	       generate_run(&e->forward, &c->spec, cache, p->b, p->b_count, o, &c->b, fault);
}

bool demo_case_run(struct engine *e, const struct kvspec *spec, const char *address, const char *salt,
		   const struct demo_prompts *prompts, const struct generate_options *generate, struct demo_case *c,
		   struct fault *fault)
{
	const struct model *m = &e->model;
	struct terrace_layout layout, fp16;
	struct prefix_cache cache;
	bool ok;

	memset(c, 0, sizeof(*c));
	c->spec = *spec;
	kvcache_layout(&m->config, m->fingerprint, spec->k, spec->v, generate->block_tokens, &layout);
	kvcache_layout(&m->config, m->fingerprint, TERRACE_FORMAT_FP16, TERRACE_FORMAT_FP16, generate->block_tokens, &fp16);
	if (!prefix_cache_open(&cache, address, &layout, salt, fault))
		return false;
	ok = run_all(e, &cache, prompts, generate, c, fault);
	if (ok && cache.note.text[0])
		ok = fault_set(fault, "%s: the daemon did not do its part: %.300s", spec->name, cache.note.text);
	prefix_cache_close(&cache);
	if (!ok) {
		demo_case_free(c);
		return false;
	}
	c->same = c->b.count == c->alone.count &&
		  memcmp(c->b.tokens, c->alone.tokens, c->b.count * sizeof(*c->b.tokens)) == 0;
	c->stored_bytes = c->a.stats.stored_blocks * terrace_block_bytes(&layout);
	c->fp16_bytes = c->a.stats.stored_blocks * terrace_block_bytes(&fp16);
	return true;
}

void demo_case_free(struct demo_case *c)
{
	generated_free(&c->a);
	generated_free(&c->alone);
	generated_free(&c->b);
}
