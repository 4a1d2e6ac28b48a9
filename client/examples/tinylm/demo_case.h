/* One format's run through the demo: prompt A stores, prompt B reuses. */
#ifndef TINYLM_DEMO_CASE_H
#define TINYLM_DEMO_CASE_H

#include "engine.h"
#include "generate.h"
#include "ppl.h"

struct demo_prompts {
	uint32_t *a, a_count;
	uint32_t *b, b_count;
	uint32_t shared; /* tokens at the start of both */
};

struct demo_case {
	struct kvspec spec;
	struct generated a;     /* prompt A: computed and stored */
	struct generated alone; /* prompt B without the daemon */
	struct generated b;     /* prompt B with it */
	bool same;              /* B's text is the same both ways */
	uint64_t stored_bytes;  /* of the blocks that A's prompt and text filled */
	uint64_t fp16_bytes;    /* the same blocks in fp16 */
	struct ppl_result ppl;
};

bool demo_prompts_make(const struct model *model, struct demo_prompts *p, struct fault *fault);
void demo_prompts_free(struct demo_prompts *p);

/* Runs the three generations with a session of its own. Fills all of *c but ppl; nothing is left allocated on
 * failure. */
bool demo_case_run(struct engine *e, const struct kvspec *spec, const char *address, const char *salt,
		   const struct demo_prompts *prompts, const struct generate_options *generate, struct demo_case *c,
		   struct fault *fault);
void demo_case_free(struct demo_case *c);

/* The number of B's blocks that A has left: the most that can be reused. */
uint32_t demo_reusable(const struct demo_prompts *p, uint32_t block_tokens);

#endif
