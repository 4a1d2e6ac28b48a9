/* int4_pth between blocks and an engine's own pages: the public face of kernels/repack.h. Everything is checked
 * before a byte is written. */
#include "client/value/layout.h"
#include "client/value/status.h"
#include "kernels/repack.h"

enum { BLOCK_ALIGN = 16 };

static enum terrace_status sides_check(const struct kv_layout *l, const struct terrace_repack_options *o)
{
	if (!o->k.codes && !o->v.codes)
		return client_fail(TERRACE_INVALID, "neither K's nor V's pages are given");
	if ((o->k.codes && l->k_format != KV_INT4_PTH) || (o->v.codes && l->v_format != KV_INT4_PTH))
		return client_fail(TERRACE_UNSUPPORTED, "only int4_pth is repacked, and K is %s and V is %s: "
				   "decode and encode other formats", kv_format_info(l->k_format)->name,
				   kv_format_info(l->v_format)->name);
	if ((o->k.codes && !o->k.scales) || (o->v.codes && !o->v.scales))
		return client_fail(TERRACE_INVALID, "pages have codes, and their scales are NULL");
	if (o->layer >= l->layers)
		return client_fail(TERRACE_INVALID, "layer %u: the layout has %u", o->layer, l->layers);
	if (o->tokens && (!o->slots || !o->page_slots || !o->blocks))
		return client_fail(TERRACE_INVALID, "slots, page_slots or blocks is NULL");
	if (o->tokens && !o->page_tokens)
		return client_fail(TERRACE_INVALID, "page_tokens is 0");
	return TERRACE_OK;
}

/* How many slots there are: of `count` blocks or pages of `each` tokens. */
static uint64_t slots_of(uint64_t count, uint32_t each)
{
	return count > INT64_MAX / each ? INT64_MAX : count * each;
}

/* Every token that is not skipped has a slot on either side, and its block is there. Blocks are looked at once for
 * tokens in a row, for a division a token would take a tenth of the time of all. */
static enum terrace_status tokens_check(const struct kv_layout *l, const struct terrace_repack_options *o)
{
	uint64_t slots = slots_of(o->block_count, l->block_tokens), page_slots = slots_of(o->page_count,
		o->page_tokens);
	int64_t begin = 0, end = 0; /* slots of the block that was looked at */

	for (uint32_t i = 0; i < o->tokens; i++) {
		int64_t slot = o->slots[i], page_slot = o->page_slots[i];
		uintptr_t block;

		if (slot < 0 || page_slot < 0)
			continue;
		if ((uint64_t)slot >= slots)
			return client_fail(TERRACE_INVALID, "token %u: slot %lld is none of %u blocks", i,
				(long long)slot,
					   o->block_count);
		if ((uint64_t)page_slot >= page_slots)
			return client_fail(TERRACE_INVALID, "token %u: slot %lld is none of %llu pages", i,
					   (long long)page_slot, (unsigned long long)o->page_count);
		if (slot >= begin && slot < end)
			continue;
		block = (uintptr_t)o->blocks[slot / l->block_tokens];
		if (!block || block % BLOCK_ALIGN)
			return client_fail(TERRACE_INVALID, "token %u: its block is NULL, or not aligned to %d bytes",
				i,
					   BLOCK_ALIGN);
		begin = slot / l->block_tokens * l->block_tokens;
		end = begin + l->block_tokens;
	}
	return TERRACE_OK;
}

static struct kv_pages_side side_of(const struct terrace_pages *p)
{
	return (struct kv_pages_side){p->codes, p->scales, p->code_page, p->code_token, p->code_head,
				      p->scale_page, p->scale_token, p->scale_head};
}

static enum terrace_status repack(const struct terrace_layout *layout, const struct terrace_repack_options *options,
				  void (*run)(const struct kv_repack *))
{
	struct terrace_repack_options o;
	struct kv_geometry geometry;
	enum terrace_status status;
	struct kv_layout l;
	const char *problem = client_layout_read(layout, &l);

	if (problem)
		return client_fail(TERRACE_INVALID, "repack: %s", problem);
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return client_fail(TERRACE_INVALID, "repack: the options' size is not set: begin them with "
				   "TERRACE_REPACK_OPTIONS_INIT");
	status = sides_check(&l, &o);
	if (!status && o.tokens)
		status = tokens_check(&l, &o);
	if (status)
		return client_fail_in(status, "repack");
	kv_geometry_of(&l, &geometry);
	run(&(struct kv_repack){&l, &geometry, o.layer, o.tokens, o.slots, o.page_slots, o.blocks, o.page_tokens,
				{side_of(&o.k), side_of(&o.v)}});
	return TERRACE_OK;
}

enum terrace_status terrace_repack_from_pages(const struct terrace_layout *layout,
					      const struct terrace_repack_options *options)
{
	return repack(layout, options, kv_repack_from_pages);
}

enum terrace_status terrace_repack_to_pages(const struct terrace_layout *layout,
					    const struct terrace_repack_options *options)
{
	return repack(layout, options, kv_repack_to_pages);
}
