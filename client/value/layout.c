/* Layouts: turns the public struct into the kernels' one, whose table knows all sizes. The versions of rotation,
 * codebook and element order are those of this build; the caller cannot choose them.
 */
/* The public structs have no padding. Callers would not set it, and if a later member were put there, `size` could not
 * tell. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#include "client/include/terrace.h"
#pragma GCC diagnostic pop

#include "client/value/layout.h"

#include "client/value/status.h"
#include "kernels/format.h"
#include "terrace.pb-c.h"

#include <string.h>

#define SAME(public, kernel, wire)                                                                                     \
	_Static_assert((int)TERRACE_##public == (int)(kernel) && (int)(kernel) == (int)TERRACE__V1__##wire, #public)
SAME(FORMAT_NONE, KV_NONE, FORMAT__FORMAT_NONE);
SAME(FORMAT_FP16, KV_F16, FORMAT__FORMAT_FP16);
SAME(FORMAT_BF16, KV_BF16, FORMAT__FORMAT_BF16);
SAME(FORMAT_FP8, KV_FP8, FORMAT__FORMAT_FP8);
SAME(FORMAT_INT4_PTH, KV_INT4_PTH, FORMAT__FORMAT_INT4_PTH);
SAME(FORMAT_TQ4, KV_TQ4, FORMAT__FORMAT_TQ4);
SAME(FORMAT_TQ3, KV_TQ3, FORMAT__FORMAT_TQ3);
SAME(FORMAT_TQ2, KV_TQ2, FORMAT__FORMAT_TQ2);
SAME(FORMAT_OPAQUE, KV_OPAQUE, FORMAT__FORMAT_OPAQUE);
#undef SAME
_Static_assert((int)TERRACE_ROUND_FP16 == (int)KV_ROUND_F16 && (int)TERRACE_ROUND_BF16 == (int)KV_ROUND_BF16,
	"roundings");
_Static_assert((int)TERRACE_FORMAT_TQ2 + 1 == (int)KV_FORMAT_COUNT, "every format is public");
_Static_assert(sizeof(((struct terrace_layout *)0)->fingerprint) == KV_FINGERPRINT_BYTES, "fingerprint");
_Static_assert(sizeof(((struct terrace_layout *)0)->opaque_name) == KV_OPAQUE_NAME_BYTES, "opaque_name");

_Static_assert((int)CLIENT_LAYOUT_LEAST == (int)offsetof(struct terrace_layout, rope_dim), "the first version");

enum { OPTIONS_BYTES_MAX = 4096 }; /* no version of a struct is larger: a size that was never set mostly is */

bool client_options_copy(void *out, size_t out_bytes, const void *in, size_t least)
{
	size_t size;

	memcpy(&size, in, sizeof(size));
	if (size < least || size > OPTIONS_BYTES_MAX)
		return false;
	memset(out, 0, out_bytes);
	memcpy(out, in, size < out_bytes ? size : out_bytes);
	return true;
}

bool client_options_give(void *out, const void *in, size_t in_bytes, size_t least)
{
	size_t size;

	memcpy(&size, out, sizeof(size));
	if (size < least || size > OPTIONS_BYTES_MAX)
		return false;
	memset(out, 0, size);
	memcpy(out, in, size < in_bytes ? size : in_bytes);
	memcpy(out, &size, sizeof(size));
	return true;
}

const char *client_layout_read(const struct terrace_layout *in, struct kv_layout *out)
{
	struct terrace_layout l;
	bool opaque;

	if (!in)
		return "no layout given";
	if (!client_options_copy(&l, sizeof(l), in, CLIENT_LAYOUT_LEAST))
		return "the layout's size is not set: begin with TERRACE_LAYOUT_INIT";
	if (l.opaque_bytes > UINT32_MAX)
		l.opaque_bytes = UINT32_MAX / 16 * 16; /* too many, too */
	opaque = l.k_format == TERRACE_FORMAT_OPAQUE;
	*out = (struct kv_layout){
		.first_layer = l.first_layer,
		.layers = l.layers,
		.first_head = l.first_head,
		.heads = l.heads,
		.total_heads = l.total_heads,
		.head_dim_k = l.head_dim_k,
		.head_dim_v = l.head_dim_v,
		.block_tokens = l.block_tokens,
		.k_format = (enum kv_format)l.k_format,
		.v_format = (enum kv_format)l.v_format,
		.window = l.window,
		.rotation_version = opaque ? 0 : kv_rotation_version(l.head_dim_k, l.head_dim_v),
		.codebook_version = opaque ? 0 : KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION,
		.int4_rounding = (enum kv_rounding)l.int4_rounding,
		.opaque_bytes = (uint32_t)l.opaque_bytes,
		.rope_dim = l.rope_dim,
		.rope_format = (enum kv_format)l.rope_format,
	};
	memcpy(out->fingerprint, l.fingerprint, sizeof(out->fingerprint));
	memcpy(out->opaque_name, l.opaque_name, sizeof(out->opaque_name));
	return kv_layout_problem(out);
}

void client_layout_write(const struct kv_layout *in, struct terrace_layout *out)
{
	*out = (struct terrace_layout){
		.size = sizeof(*out),
		.first_layer = in->first_layer,
		.layers = in->layers,
		.first_head = in->first_head,
		.heads = in->heads,
		.total_heads = in->total_heads,
		.head_dim_k = in->head_dim_k,
		.head_dim_v = in->head_dim_v,
		.block_tokens = in->block_tokens,
		.k_format = (enum terrace_format)in->k_format,
		.v_format = (enum terrace_format)in->v_format,
		.window = in->window,
		.int4_rounding = (enum terrace_rounding)in->int4_rounding,
		.opaque_bytes = in->opaque_bytes,
		.rope_dim = in->rope_dim,
		.rope_format = (enum terrace_format)in->rope_format,
	};
	memcpy(out->fingerprint, in->fingerprint, sizeof(out->fingerprint));
	memcpy(out->opaque_name, in->opaque_name, sizeof(out->opaque_name));
}

const char *terrace_format_name(enum terrace_format format)
{
	const struct kv_format_info *info = kv_format_info((enum kv_format)format);

	return info ? info->name : NULL;
}

enum terrace_status terrace_format_parse(const char *name, enum terrace_format *format)
{
	enum kv_format parsed;

	if (!name || !format)
		return client_fail(TERRACE_INVALID, "format_parse: the name or the pointer for the format is NULL");
	if (!kv_format_parse(name, &parsed))
		return client_fail(TERRACE_INVALID, "format_parse: \"%.32s\" is not a format: one of %s", name,
			KV_FORMAT_NAMES);
	*format = (enum terrace_format)parsed;
	return TERRACE_OK;
}

bool client_layout_codec(const struct kv_layout *l)
{
	if (!kv_is_opaque(l))
		return true;
	client_fail(TERRACE_UNSUPPORTED, KV_OPAQUE_REFUSED);
	return false;
}

const char *terrace_layout_problem(const struct terrace_layout *layout)
{
	struct kv_layout kv;

	return client_layout_read(layout, &kv);
}

uint64_t terrace_block_bytes(const struct terrace_layout *layout)
{
	struct kv_layout kv;
	struct kv_geometry geometry;

	if (client_layout_read(layout, &kv))
		return 0;
	kv_geometry_of(&kv, &geometry);
	return geometry.block_bytes;
}
