/* Checks terrace_block_info of a put, and brings it into the wire's form. */
#include "client/call/block_info.h"

#include "client/session/session.h"
#include "client/value/keys.h"
#include "client/value/layout.h"
#include "client/value/status.h"

#include <stddef.h>
#include <stdlib.h>

#define SAME(name) _Static_assert((int)TERRACE_##name == (int)TERRACE__V1__ROLE__##name, #name)
SAME(ROLE_UNKNOWN);
SAME(ROLE_SYSTEM);
SAME(ROLE_USER);
SAME(ROLE_ASSISTANT);
SAME(ROLE_TOOL);
#undef SAME

/* The most tokens that an info may give a key or an open block: no block of the session has more. */
static uint32_t tokens_most(const struct client_view *view, bool open)
{
	uint32_t most = client_view_unit(view);

	for (uint32_t l = 0; open && l < view->layout_count; l++)
		if (view->layouts[l].layout.block_tokens > most)
			most = view->layouts[l].layout.block_tokens;
	return most;
}

static enum terrace_status info_read(const struct client_view *view, const struct terrace_block_info *in,
				     uint32_t key_bytes, Terrace__V1__BlockInfo *out)
{
	uint32_t block_tokens = tokens_most(view, !key_bytes);
	uint32_t unsaid = key_bytes ? block_tokens : 1; /* an open block may not shrink, and its commit says how many */
	struct terrace_block_info i;

	if (!client_options_copy(&i, sizeof(i), in, sizeof(i)))
		return client_fail(TERRACE_INVALID, "its size is not set: begin a block info with TERRACE_BLOCK_INFO_INIT");
	if (i.tokens > block_tokens)
		return client_fail(TERRACE_INVALID, "tokens is %u, more than the %u that a%s has", i.tokens,
				   block_tokens, key_bytes ? " key" : "n open block");
	if ((int)i.role < TERRACE_ROLE_UNKNOWN || (int)i.role > TERRACE_ROLE_TOOL)
		return client_fail(TERRACE_INVALID, "role %d is not one of enum terrace_role", (int)i.role);
	if (i.parent_bytes)
		key_bytes = i.parent_bytes;
	if (i.parent && (key_bytes < 1 || key_bytes > CLIENT_KEY_BYTES_MAX))
		return client_fail(TERRACE_INVALID, "parent_bytes is %u, not 1 to %d", key_bytes, CLIENT_KEY_BYTES_MAX);
	terrace__v1__block_info__init(out);
	if (i.parent)
		out->parent = CLIENT_BINARY(i.parent, key_bytes);
	out->position = i.position;
	out->tokens = i.tokens ? i.tokens : unsaid;
	out->role = (Terrace__V1__Role)i.role;
	out->turn = i.turn;
	return TERRACE_OK;
}

enum terrace_status client_infos_init(struct client_infos *infos, const struct client_view *view,
				      const struct terrace_block_info *info, uint32_t count, uint32_t key_bytes)
{
	enum terrace_status status = TERRACE_OK;

	*infos = (struct client_infos){0};
	if (!info)
		return TERRACE_OK;
	infos->infos = calloc(count, sizeof(*infos->infos));
	infos->pointers = calloc(count, sizeof(Terrace__V1__BlockInfo *));
	if (!infos->infos || !infos->pointers)
		status = client_fail(TERRACE_EXHAUSTED, "no memory for block infos");
	/* The caller's array has the stride of the caller's version. */
	for (uint32_t i = 0; !status && i < count; i++) {
		const uint8_t *at = (const uint8_t *)info + (size_t)i * info->size;

		status = info_read(view, (const struct terrace_block_info *)at, key_bytes, &infos->infos[i]);
		if (status)
			client_fail(status, "info %u: %s", i, terrace_error());
		infos->pointers[i] = &infos->infos[i];
	}
	infos->count = count;
	if (status)
		client_infos_fini(infos);
	return status;
}

void client_infos_fini(struct client_infos *infos)
{
	free(infos->infos);
	free(infos->pointers);
	*infos = (struct client_infos){0};
}
