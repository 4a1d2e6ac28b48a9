/* What the compiler makes of the structs that client/python/terrace/_abi.py declares: "STRUCT BYTES" and "STRUCT.MEMBER OFFSET BYTES". */
#include <stdio.h>

#include "client/include/terrace.h"

#define SIZE(s) printf(#s " %zu\n", sizeof(struct s))
#define MEMBER(s, m) printf(#s "." #m " %zu %zu\n", offsetof(struct s, m), sizeof(((struct s *)0)->m))

/* Members of a struct, in any order; one that is missing here is missed by the test. */
#define LIST(s, ...)                                                                                                   \
	do {                                                                                                           \
		SIZE(s);                                                                                               \
		__VA_ARGS__                                                                                            \
	} while (0)
#define M(s, m) MEMBER(s, m);

int main(void)
{
	LIST(terrace_layout, M(terrace_layout, size) M(terrace_layout, fingerprint) M(terrace_layout, first_layer)
		M(terrace_layout, layers) M(terrace_layout, first_head) M(terrace_layout, heads) M(terrace_layout, total_heads)
		M(terrace_layout, head_dim_k) M(terrace_layout, head_dim_v) M(terrace_layout, block_tokens)
		M(terrace_layout, k_format) M(terrace_layout, v_format) M(terrace_layout, window)
		M(terrace_layout, int4_rounding) M(terrace_layout, rope_dim) M(terrace_layout, rope_format)
		M(terrace_layout, opaque_bytes) M(terrace_layout, opaque_name));
	LIST(terrace_keys, M(terrace_keys, bytes) M(terrace_keys, count) M(terrace_keys, key_bytes));
	LIST(terrace_connect_options, M(terrace_connect_options, size) M(terrace_connect_options, address)
		M(terrace_connect_options, timeout_us) M(terrace_connect_options, no_borrow)
		M(terrace_connect_options, busy_poll_us) M(terrace_connect_options,
		    no_local_calls) M(terrace_connect_options, no_adaptive_poll)
		M(terrace_connect_options, reserved) M(terrace_connect_options, tls_cert)
		M(terrace_connect_options, tls_key) M(terrace_connect_options, tls_ca) M(terrace_connect_options, tls_name));
	LIST(terrace_token, M(terrace_token, bytes));
	LIST(terrace_session_options,
	     M(terrace_session_options, size) M(terrace_session_options, tenant) M(terrace_session_options, engine)
		     M(terrace_session_options, gpu) M(terrace_session_options, gpu_write_back)
			     M(terrace_session_options, unchained_keys) M(terrace_session_options, reserved)
				     M(terrace_session_options, local_only) M(terrace_session_options, unit_tokens) M(terrace_session_options, tokens_per_second)
					     M(terrace_session_options, rules));
	LIST(terrace_layout_rule,
	     M(terrace_layout_rule, size) M(terrace_layout_rule, keep_last) M(terrace_layout_rule, partial)
		     M(terrace_layout_rule, sparse) M(terrace_layout_rule, reserved));
	LIST(terrace_call_options, M(terrace_call_options, size) M(terrace_call_options, first_position)
		M(terrace_call_options, reserved));
	LIST(terrace_gpu_info, M(terrace_gpu_info, size) M(terrace_gpu_info, uuid) M(terrace_gpu_info, bytes));
	LIST(terrace_completion, M(terrace_completion, done) M(terrace_completion, arg) M(terrace_completion, eventfd)
		M(terrace_completion, reserved));
	LIST(terrace_lease_options, M(terrace_lease_options, size) M(terrace_lease_options, mode)
		M(terrace_lease_options, gpu) M(terrace_lease_options, gpu_or_host) M(terrace_lease_options, reserved)
		M(terrace_lease_options, first_position));
	LIST(terrace_warm_options,
	     M(terrace_warm_options, size) M(terrace_warm_options, wait) M(terrace_warm_options, gpu)
		     M(terrace_warm_options, reserved) M(terrace_warm_options, first_position)
			     M(terrace_warm_options, reserved_also));
	LIST(terrace_block_info, M(terrace_block_info, size) M(terrace_block_info, parent) M(terrace_block_info, position)
		M(terrace_block_info, tokens) M(terrace_block_info, role) M(terrace_block_info, turn)
		M(terrace_block_info, parent_bytes));
	LIST(terrace_reserve_options, M(terrace_reserve_options, size) M(terrace_reserve_options, gpu)
		M(terrace_reserve_options, first_position) M(terrace_reserve_options, cells));
	LIST(terrace_attend_features, M(terrace_attend_features, size) M(terrace_attend_features, window)
		M(terrace_attend_features, softcap) M(terrace_attend_features, sinks) M(terrace_attend_features, alibi)
		M(terrace_attend_features, alibi_sqrt) M(terrace_attend_features, tree_bias) M(terrace_attend_features, ranges)
		M(terrace_attend_features, range_count) M(terrace_attend_features, out_scale) M(terrace_attend_features, reserved));
	LIST(terrace_attend_options, M(terrace_attend_options, size) M(terrace_attend_options, layer)
		M(terrace_attend_options, queries) M(terrace_attend_options, q_heads) M(terrace_attend_options, q)
		M(terrace_attend_options, q_dtype) M(terrace_attend_options, scale) M(terrace_attend_options, blocks)
		M(terrace_attend_options, block_count) M(terrace_attend_options, kv_tokens) M(terrace_attend_options, causal)
		M(terrace_attend_options, first_pos) M(terrace_attend_options, out) M(terrace_attend_options, out_dtype)
		M(terrace_attend_options, lse) M(terrace_attend_options, features) M(terrace_attend_options, reserved));
	LIST(terrace_cuda_features, M(terrace_cuda_features, size) M(terrace_cuda_features, window)
		M(terrace_cuda_features, softcap) M(terrace_cuda_features, sinks) M(terrace_cuda_features, alibi)
		M(terrace_cuda_features, alibi_sqrt) M(terrace_cuda_features, tree_bias) M(terrace_cuda_features, ranges)
		M(terrace_cuda_features, range_count) M(terrace_cuda_features, out_scale) M(terrace_cuda_features, reserved));
	LIST(terrace_cuda_attend_options, M(terrace_cuda_attend_options, size) M(terrace_cuda_attend_options, layer)
		M(terrace_cuda_attend_options, sequences) M(terrace_cuda_attend_options, queries)
		M(terrace_cuda_attend_options, q_heads) M(terrace_cuda_attend_options, scale) M(terrace_cuda_attend_options, q)
		M(terrace_cuda_attend_options, q_dtype) M(terrace_cuda_attend_options, blocks)
		M(terrace_cuda_attend_options, blocks_stride) M(terrace_cuda_attend_options, kv_tokens)
		M(terrace_cuda_attend_options, features) M(terrace_cuda_attend_options, out)
		M(terrace_cuda_attend_options, out_dtype) M(terrace_cuda_attend_options, lse)
		M(terrace_cuda_attend_options, workspace) M(terrace_cuda_attend_options, workspace_bytes)
		M(terrace_cuda_attend_options, settled) M(terrace_cuda_attend_options, reserved)
		M(terrace_cuda_attend_options, split_tokens));
	LIST(terrace_cuda_extend_options, M(terrace_cuda_extend_options, size) M(terrace_cuda_extend_options, layer)
		M(terrace_cuda_extend_options, sequences) M(terrace_cuda_extend_options, total_queries)
		M(terrace_cuda_extend_options, q_heads) M(terrace_cuda_extend_options, scale)
		M(terrace_cuda_extend_options, query_starts) M(terrace_cuda_extend_options, prefix_tokens)
		M(terrace_cuda_extend_options, q) M(terrace_cuda_extend_options, q_dtype) M(terrace_cuda_extend_options, k)
		M(terrace_cuda_extend_options, v) M(terrace_cuda_extend_options, k_stride)
		M(terrace_cuda_extend_options, v_stride) M(terrace_cuda_extend_options, kv_dtype)
		M(terrace_cuda_extend_options, blocks) M(terrace_cuda_extend_options, blocks_stride)
		M(terrace_cuda_extend_options, features) M(terrace_cuda_extend_options, out)
		M(terrace_cuda_extend_options, out_dtype) M(terrace_cuda_extend_options, lse)
		M(terrace_cuda_extend_options, workspace) M(terrace_cuda_extend_options, workspace_bytes)
		M(terrace_cuda_extend_options, tree_stride));
	LIST(terrace_cuda_codec_options, M(terrace_cuda_codec_options, size) M(terrace_cuda_codec_options, layer)
		M(terrace_cuda_codec_options, tokens) M(terrace_cuda_codec_options, slots) M(terrace_cuda_codec_options, blocks)
		M(terrace_cuda_codec_options, block_count) M(terrace_cuda_codec_options, k) M(terrace_cuda_codec_options, v)
		M(terrace_cuda_codec_options, k_stride) M(terrace_cuda_codec_options, v_stride)
		M(terrace_cuda_codec_options, dtype) M(terrace_cuda_codec_options, rows));
	LIST(terrace_watch_event,
	     M(terrace_watch_event, size) M(terrace_watch_event, epoch) M(terrace_watch_event, sequence)
		     M(terrace_watch_event, kind) M(terrace_watch_event, key) M(terrace_watch_event, key_bytes)
			     M(terrace_watch_event, layout) M(terrace_watch_event, state) M(terrace_watch_event, whole_key));
	return 0;
}
