/* See layout_message.h. */
#include "proto/layout_message.h"

#include "kernels/format.h"

#include <string.h>

bool layout_message_read(const Terrace__V1__Layout *in, struct kv_layout *out)
{
	if (in->fingerprint.len != KV_FINGERPRINT_BYTES)
		return false;
	*out = (struct kv_layout){
		.first_layer = in->first_layer,
		.layers = in->layers,
		.first_head = in->first_head,
		.heads = in->heads,
		.total_heads = in->total_heads,
		.head_dim_k = in->head_dim_k,
		.head_dim_v = in->head_dim_v,
		.block_tokens = in->block_tokens,
		.k_format = (enum kv_format)in->k_format,
		.v_format = (enum kv_format)in->v_format,
		.window = in->window,
		.rotation_version = in->rotation_version,
		.codebook_version = in->codebook_version,
		.layout_version = in->layout_version,
		.int4_rounding = (enum kv_rounding)in->int4_rounding,
		.opaque_bytes = in->opaque_bytes,
		.rope_dim = in->rope_dim,
		.rope_format = (enum kv_format)in->rope_format,
	};
	memcpy(out->fingerprint, in->fingerprint.data, KV_FINGERPRINT_BYTES);
	/* one that is too long has no end then, which kv_layout_problem tells */
	memcpy(out->opaque_name, in->opaque_name, strnlen(in->opaque_name, sizeof(out->opaque_name)));
	return true;
}

void layout_message_write(const struct kv_layout *in, Terrace__V1__Layout *out)
{
	terrace__v1__layout__init(out);
	out->fingerprint = (ProtobufCBinaryData){ KV_FINGERPRINT_BYTES, (uint8_t *)(uintptr_t)in->fingerprint };
	out->first_layer = in->first_layer;
	out->layers = in->layers;
	out->first_head = in->first_head;
	out->heads = in->heads;
	out->total_heads = in->total_heads;
	out->head_dim_k = in->head_dim_k;
	out->head_dim_v = in->head_dim_v;
	out->block_tokens = in->block_tokens;
	out->k_format = (Terrace__V1__Format)in->k_format;
	out->v_format = (Terrace__V1__Format)in->v_format;
	out->window = in->window;
	out->rotation_version = in->rotation_version;
	out->codebook_version = in->codebook_version;
	out->layout_version = in->layout_version;
	out->int4_rounding = in->int4_rounding;
	out->opaque_bytes = in->opaque_bytes;
	out->opaque_name = (char *)(uintptr_t)in->opaque_name;
	out->rope_dim = in->rope_dim;
	out->rope_format = (Terrace__V1__Format)in->rope_format;
}
