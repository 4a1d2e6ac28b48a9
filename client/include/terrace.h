/* libterrace: the client library of Terrace, a KV-cache tiering service for LLM serving.
 *
 * An engine connects to the node's daemon, opens a session over the layouts it uses, and then for each request
 *
 *     terrace_lease()     finds the longest cached prefix and protects it; the blocks lie in memory that the daemon
 *                         owns and this process has mapped: no byte is copied
 *     terrace_attend()    attends straight from those packed blocks
 *     terrace_reserve()   gets slots for new blocks, terrace_encode() packs K and V into them in place,
 *     terrace_commit()    publishes them whole
 *     terrace_release()   gives the lease back
 *
 * A client that has no use for borrowed memory, or cannot have it, moves bytes with terrace_put() and terrace_get()
 * instead. So does a client on another machine, which connects over TLS with a certificate (terrace_connect_options).
 *
 * Conventions. Handles are opaque and belong to the caller until their close/free function; NULL is allowed only where
 * that is said. Every function may be called from any thread, unless said otherwise; closing a handle while another
 * thread uses it is the caller's mistake. Structs that may grow begin with `size`, set by their TERRACE_..._INIT: a
 * library of another version reads and writes only the members that the caller's version has, and steps through an
 * array by the caller's `size`. They grow at their ends and have no padding; a `reserved` member means nothing, and
 * stays zero. NULL options mean the defaults, except where the struct is what the call is about. Functions return a
 * terrace_status; outputs are written only on TERRACE_OK unless said otherwise; terrace_error() has the words for the
 * calling thread's last failure. Calls that talk to the daemon take a timeout in microseconds: 0 is the connection's
 * default, more than a day counts as a day, and no call waits for ever. Besides the statuses named at each call they
 * return TERRACE_INVALID (arguments), TERRACE_UNAVAILABLE, TERRACE_STALE (see below), TERRACE_DEADLINE,
 * TERRACE_CANCELLED (terrace_disconnect), TERRACE_EXHAUSTED (no memory, too many calls) and TERRACE_INTERNAL (gRPC, or
 * a daemon that answers nonsense). After fork() a handle must not be used in the child: calls there return
 * TERRACE_PRECONDITION or do nothing, blocks are NULL, and nothing is mapped. A child that wants to use the library
 * should call exec() first: gRPC promises nothing after a bare fork().
 *
 * No result depends on the mode of floating-point arithmetic that the calling thread has set (rounding, subnormals as
 * zero: FTZ and DAZ, unmasked exceptions). A call that computes with floats sets the default mode and, before it
 * returns, the caller's again.
 *
 * When the daemon restarts or goes away, calls return TERRACE_STALE or TERRACE_UNAVAILABLE; blocks still leased stay
 * readable until they are released. terrace_session_reopen() then starts again with an empty cache view. The daemon
 * closes a session that works by stream alone and makes no call for five minutes (session_idle): its calls return
 * TERRACE_STALE too, and terrace_session_reopen() helps as well.
 */
#ifndef TERRACE_H
#define TERRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERRACE_VERSION_MAJOR 0
#define TERRACE_VERSION_MINOR 1
#define TERRACE_VERSION_PATCH 0

/* Begins a struct that has a `size`: the rest is zero. An expression in C++, an initializer in C. */
#ifdef __cplusplus
#define TERRACE_SIZED_(type) [] { type made_{}; made_.size = sizeof(made_); return made_; }()
#define TERRACE_SIZED_ON_HOST_(type) [] { type made_{}; made_.size = sizeof(made_); made_.gpu = -1; return made_; }()
#else
#define TERRACE_SIZED_(type) { .size = sizeof(type) }
#define TERRACE_SIZED_ON_HOST_(type) { .size = sizeof(type), .gpu = -1 }
#endif

#if defined(__GNUC__)
#define TERRACE_API __attribute__((visibility("default")))
#else
#define TERRACE_API
#endif

/* ---- status ------------------------------------------------------------------------------------------------------ */

/* TERRACE_MISS, TERRACE_BUSY and TERRACE_CANCELLED are outcomes to branch on, not failures. */
enum terrace_status {
	TERRACE_OK = 0,
	TERRACE_MISS = 1,          /* not in the cache */
	TERRACE_BUSY = 2,          /* another thread or process is doing it; try again */
	TERRACE_CANCELLED = 3,
	TERRACE_INVALID = 4,       /* an argument makes no sense */
	TERRACE_NOT_FOUND = 5,     /* the daemon does not know this session, lease or reservation */
	TERRACE_EXISTS = 6,        /* another put of the key was first */
	TERRACE_EXHAUSTED = 7,     /* a bound was reached: memory, pins, queue */
	TERRACE_DEADLINE = 8,
	TERRACE_UNAVAILABLE = 9,   /* no daemon, or it is going down or draining */
	TERRACE_PRECONDITION = 10, /* right call, wrong state: after fork, borrow without attachment */
	TERRACE_DENIED = 11,
	TERRACE_CORRUPT = 12,
	TERRACE_UNSUPPORTED = 13,
	TERRACE_STALE = 14,        /* the daemon has restarted since, or has closed the session */
	TERRACE_IO = 15,
	TERRACE_INTERNAL = 16
};

/* Fixed English text of a status. */
TERRACE_API const char *terrace_status_text(enum terrace_status status);

/* What went wrong in the thread's last call that did not return TERRACE_OK; "" before the first. Valid until its next
 * call that returns a status. */
TERRACE_API const char *terrace_error(void);

/* "0.1.0", of the library at run time. */
TERRACE_API const char *terrace_version(void);

/* ---- formats and layouts ----------------------------------------------------------------------------------------- */

enum terrace_format {
	TERRACE_FORMAT_NONE = 0, /* of V: it is a view of K; of the rope part: there is none */
	TERRACE_FORMAT_FP16 = 1,
	TERRACE_FORMAT_BF16 = 2,
	TERRACE_FORMAT_FP8 = 3,
	TERRACE_FORMAT_INT4_PTH = 4, /* bit for bit vLLM's; not for vectors that one dim dominates, see below */
	TERRACE_FORMAT_TQ4 = 5,
	TERRACE_FORMAT_TQ3 = 6,
	TERRACE_FORMAT_TQ2 = 7,
	TERRACE_FORMAT_OPAQUE = 128 /* k_format only: bytes of a format that this library does not know, see below */
};

enum terrace_dtype {
	TERRACE_F32 = 0,
	TERRACE_F16 = 1,
	TERRACE_BF16 = 2,
	TERRACE_E4M3 = 3 /* one byte; only terrace_attend() writes it */
};

/* The dtype of a model, in which vLLM keeps K and V once they are rotated, and to which terrace_encode() and
 * terrace_cuda_encode() round them before they make int4_pth's codes of them. Decoding does not need it: blocks of both
 * are read alike. */
enum terrace_rounding {
	TERRACE_ROUND_FP16 = 0,
	TERRACE_ROUND_BF16 = 1 /* of nearly all models */
};

/* One KV group of a model: some of its layers and KV heads, packed in given formats; or, with k_format
 * TERRACE_FORMAT_OPAQUE, any other bytes that an engine keeps for the tokens of a block.
 *
 * An *opaque* layout says how many bytes a block has, and what their format is called. The same calls put, lease,
 * flush, move and get its blocks, bit for bit, as packed ones. Neither library nor daemon interprets the bytes. States
 * of Mamba or GDN layers, caches of indexers, an engine's own fp8, NVFP4 or DeepSeek-V4 pages are stored so. The
 * functions that encode, decode, attend or repack refuse such a layout with TERRACE_UNSUPPORTED (terrace_encode,
 * terrace_decode, terrace_attend, terrace_repack_..., and those of terrace_cuda_ too). terrace_cuda_copy copies whole
 * blocks of it. The members of an opaque layout:
 *   k_format       TERRACE_FORMAT_OPAQUE. v_format is TERRACE_FORMAT_NONE; head_dim_k, head_dim_v, int4_rounding are 0
 *   opaque_bytes   of a block: a multiple of 16, from 16 to 1073737728. That limit is 512 checked pieces of 2 MiB, less
 *                  a header of 4096 bytes
 *   opaque_name    name and version of the format of the bytes, as in "vllm/int4_per_token_head/1": at most 63 bytes
 *                  and a NUL, zeroes behind it. Its parts are of letters, digits and . _ + -, with / between them; the
 *                  last part is a number from 1. It is part of the layout's id: engines share blocks only if they give
 *                  the same bytes the same name. A format that changes gets another number. A session cannot have two
 *                  layouts that differ by that number alone
 *   layers         0, or 1 to 512: the block is so many equal parts, in the order of the layers, each a multiple of 16
 *                  bytes. A copy to a GPU tells when each is there (terrace_lease_wait_layer). With 0 the whole block
 *                  is there when the last layer of the session's layouts is
 *   first_layer, first_head, heads, total_heads   which part of the model it is; those of heads may all be 0
 *   block_tokens   1 to 65535. The tokens of a block that is not full are counted, but all its bytes are kept as they
 *                  are
 * Each layer has a checksum. Without layers each 64 KiB has one; of blocks over 32 MiB it is the least multiple of 64
 * KiB of which 512 are enough. */
struct terrace_layout {
	size_t size;             /* sizeof(struct terrace_layout) */
	/* a hash of what must not be mixed: model, weights revision, rope settings. A session needs it */
	uint8_t fingerprint[32];
	/* of layers that are not neighbours: 0 and their number; the fingerprint names the group */
	uint32_t first_layer, layers;
	uint32_t first_head, heads, total_heads; /* KV heads */
	uint32_t head_dim_k, head_dim_v;         /* 64, 80, 96, 112, 128, 192, 256 or 512 */
	uint32_t block_tokens;                   /* a multiple of 16, at most 256; opaque: 1 to 65535 */
	enum terrace_format k_format, v_format;
	uint32_t window;                         /* sliding window in tokens, 0: full attention */
	enum terrace_rounding int4_rounding;     /* where K or V is int4_pth the model's dtype, else 0 */
	uint32_t rope_dim;                       /* 64 for multi-head latent attention, see below, else 0 */
	enum terrace_format rope_format;         /* fp16, bf16 or fp8 there, else TERRACE_FORMAT_NONE */
	uint64_t opaque_bytes;                   /* 0, and the name empty, but with TERRACE_FORMAT_OPAQUE */
	char opaque_name[64];
};
#define TERRACE_LAYOUT_INIT TERRACE_SIZED_(struct terrace_layout)

/* Multi-head latent attention (MLA: DeepSeek V2, V3 and models like them) keeps one vector a token for all heads: a
 * latent, and a *rope part*, the dims of the key that carry its position. Its layout has head_dim_k = head_dim_v = 512
 * (the latent), any k_format, v_format TERRACE_FORMAT_NONE (V is the latent), heads = total_heads = 1, rope_dim = 64
 * and a rope_format. Vectors of K and queries then have 576 elements, the latent's 512 first; V and the output have 512.
 * Queries are the absorbed ones. Bytes a token, where 16 bits have 1,152:
 *   latent             fp16, bf16   fp8   int4_pth   tq4   tq3   tq2
 *   rope fp16 or bf16        1152   642        388   386   322   258
 *   rope fp8                 1090   580        326   324   260   196
 * Relative mean square errors of a latent are those of a head of 128 within 3 %, but of int4_pth (37 % more, for its
 * scale is by the range of 512 elements): tq4 is both smaller and better. */

/* int4_pth keeps vLLM's rules, and with them a limit: its zero point is clamped to 0 .. 15, so that a vector is stored
 * well only if its elements, once rotated, lie on both sides of 0. Those of a vector whose first dim dominates all have
 * one sign (head dims 64, 128, 256 and 512; at others it is another direction). At d 128 the relative error is .05 as
 * long as the first dim is at most 40 times the standard deviation of the others, .43 at 100 times and .88 at 500
 * times, where tq4 has .09 and .02, and fp8 .003 and .0006. K and V like that want tq4, which is nearly as small, or
 * fp8. */

/* The name of a format ("tq4", "opaque"), or NULL; and back: TERRACE_INVALID for an unknown name. */
TERRACE_API const char *terrace_format_name(enum terrace_format format);
TERRACE_API enum terrace_status terrace_format_parse(const char *name, enum terrace_format *format);

/* Fills a fingerprint from any text (SHA-256 is not needed: it is XXH3-128 twice, salted; it guards against mix-ups,
 * not forgers). */
TERRACE_API void terrace_fingerprint(const void *text, size_t bytes, uint8_t fingerprint[32]);

/* NULL if the layout is sound, else a fixed sentence that says what is wrong. */
TERRACE_API const char *terrace_layout_problem(const struct terrace_layout *layout);

/* Bytes of one block; 0 if the layout is not sound. */
TERRACE_API uint64_t terrace_block_bytes(const struct terrace_layout *layout);

/* ---- planning ---------------------------------------------------------------------------------------------------- */

enum terrace_plan_kind {
	TERRACE_PLAN_FULL = 0,   /* layers that attend to the whole sequence */
	TERRACE_PLAN_WINDOW = 1, /* layers with a sliding window */
	TERRACE_PLAN_LATENT = 2, /* MLA: one latent with a rope part a token, which K and V are made of */
	TERRACE_PLAN_STATE = 3   /* Mamba, gated DeltaNet: a state of fixed size, whatever the number of tokens */
};

struct terrace_plan_options {
	size_t size;
	enum terrace_format k_format, v_format; /* of packed blocks; v_format 0: as k_format. A latent has K alone */
	uint32_t block_tokens;                  /* 0: 16 */
	uint32_t state_tokens; /* tokens from one stored state to the next, a multiple of block_tokens; 0: 128 blocks */
	uint64_t memory_bytes, disk_bytes;      /* of the daemon's tiers; 0: there is none */
	enum terrace_format rope_format; /* of the rope part behind an MLA model's latent; 0: 16 bits, as the model's */
	uint32_t reserved;
};
#define TERRACE_PLAN_OPTIONS_INIT TERRACE_SIZED_(struct terrace_plan_options)

/* Layers of one kind, which are one KV group and one layout of a session. */
struct terrace_plan_group {
	enum terrace_plan_kind kind;
	uint32_t layers;
	uint32_t packed; /* 1: `layout` is what a session opens, but for its fingerprint. 0: no packed format of this
			  * version has this form, or a latent is to be opaque (k_format); block_bytes counts
			  * elements of the model's own dtype */
	uint32_t block_tokens; /* of a block; of a state the tokens from one to the next */
	uint64_t block_bytes;  /* of a block, or of a state */
	uint64_t slot_bytes;   /* that a block takes in a tier: its header included, rounded up to 4 KiB */
	struct terrace_layout layout;
	uint64_t reserved[2];
};

enum { TERRACE_PLAN_GROUPS_MAX = 4 };

struct terrace_plan {
	size_t size;
	uint64_t bytes_token;                /* of slots, over all groups, rounded up */
	uint64_t memory_tokens, disk_tokens; /* that the tiers hold if all blocks of a sequence are kept */
	uint32_t layers, group_count;
	char model_type[32];
	struct terrace_plan_group groups[TERRACE_PLAN_GROUPS_MAX];
};
#define TERRACE_PLAN_INIT TERRACE_SIZED_(struct terrace_plan)

/* What a model takes: from the text of its config.json, `bytes` bytes in the form of Hugging Face's transformers, which
 * is only read during the call. Known are models of full attention (Llama, Qwen 3), with windows (Gemma 3, Mistral),
 * MLA (DeepSeek V3) and with states (Granite 4, Bamba, Jamba, Nemotron-H, Qwen3-Next). No daemon is asked. *plan begins
 * with TERRACE_PLAN_INIT and is written on TERRACE_OK. TERRACE_INVALID: terrace_error() names the field of the config,
 * or the option, and what it must be. */
TERRACE_API enum terrace_status terrace_plan(const char *config, size_t bytes,
					     const struct terrace_plan_options *options, struct terrace_plan *plan);

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Of one key. Keys are names: their lengths and bytes are compared, so zero bytes at the end count. */
#define TERRACE_KEY_BYTES_MAX 64

/* Keys of a call stand back to back, all of the same length. */
struct terrace_keys {
	const uint8_t *bytes; /* [count][key_bytes] */
	uint32_t count;       /* at most 4096, with at most 32768 blocks in the session's layouts */
	uint32_t key_bytes;   /* 1 to TERRACE_KEY_BYTES_MAX */
};

/* The chained hash of a block for engines that have none of their own: of the parent's key (NULL for the first block),
 * the block's token ids, and an optional salt (adapter, image, tenant's choice; may be NULL). 16 bytes, XXH3-128. */
TERRACE_API void terrace_chain_hash(const uint8_t parent[16], const uint32_t *tokens, size_t count, const void *salt,
				    size_t salt_bytes, uint8_t key[16]);

/* ---- connection -------------------------------------------------------------------------------------------------- */

struct terrace_client;
struct terrace_connect_options {
	size_t size;
	const char *address;     /* "unix:PATH" or "127.0.0.1:7421", with TLS any HOST:PORT; NULL: $TERRACE_ADDRESS,
				  * else unix:/run/terrace/terraced.sock */
	uint64_t timeout_us;     /* default deadline of a call; 0: 5 s */
	/* how long a call polls for its answer before its thread sleeps; 0: see no_adaptive_poll */
	uint64_t busy_poll_us;
	bool no_borrow;          /* do not attach to the fd socket even on the same node */
	union {
		/* Every call goes by gRPC. Otherwise frequent synchronous calls go over the fd socket, which is several
		 * times faster. */
		bool no_local_calls;
		bool no_near_calls; /* its name in 0.1.0; to be removed in the version after the next */
	};
	/* a call's thread sleeps at once. Otherwise calls over the fd socket poll as long as answers of their kind have
	 * been taking, .2 ms at most, if the process may use 4 processors or more */
	bool no_adaptive_poll;
	uint8_t reserved[5];
	/* TLS of a TCP address: PEM files of this client's certificate (then those between it and its CA), of its key
	 * without a passphrase, and of the CAs that the daemon's certificate may be of. All three or none; of a Unix
	 * socket they mean nothing. NULL or "": $TERRACE_TLS_CERT, $TERRACE_TLS_KEY, $TERRACE_TLS_CA. They are read
	 * anew when they change, for connections that are made from then on. */
	const char *tls_cert, *tls_key, *tls_ca;
	const char *tls_name;    /* what the daemon's certificate must be for, a host name or an address;
				  * NULL or "": $TERRACE_TLS_NAME, else the address's host */
};
#define TERRACE_CONNECT_OPTIONS_INIT TERRACE_SIZED_(struct terrace_connect_options)

/* Connects; waits until the daemon answers, at most the timeout. TERRACE_UNAVAILABLE (no daemon there),
 * TERRACE_DEADLINE, TERRACE_INVALID (not an address; a certificate's file cannot be used), TERRACE_UNSUPPORTED (TCP to
 * another machine without TLS), TERRACE_DENIED (this user may not use the daemon's socket, or one side does not accept
 * the other's certificate: terrace_error() has the cause), the last three at once. */
TERRACE_API enum terrace_status terrace_connect(const struct terrace_connect_options *options, struct terrace_client **client);

/* Closes the connection, after its sessions. Calls still running end with TERRACE_CANCELLED. Waits, 10 s at most, until
 * what sessions had mapped of a GPU is unmapped. From a completion callback it does nothing. NULL is allowed. */
TERRACE_API void terrace_disconnect(struct terrace_client *client);

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

struct terrace_session;
struct terrace_token {
	uint8_t bytes[16];
};

/* Units. A key names the end of a prefix: key i of a sequence stands for its first i + 1 units of tokens, and for the engine's
 * chain hash over them. As a rule a unit is a block. A session may say a smaller one (unit_tokens), so that it can have layouts
 * of different block_tokens: a layout's block then covers n = block_tokens / unit_tokens keys. A key's *position* is its i;
 * calls whose first key is not the sequence's first say its position (first_position in their options, which is 0 if they do
 * not). A layout has a full block at each position that is n - 1 modulo n, and, if its rule says so, it may have a partial one
 * at any other, with the tokens from the boundary before to there. Such a place (key, layout) is a cell.
 *
 * What a prefix of p units needs of a layout: all its full blocks up to p, and the partial one at p - 1 if p is no multiple of
 * n; with a window of w tokens only those with any of the last w - 1 tokens before p; with keep_last m the m blocks that end
 * at p and before. A state (Mamba, GDN) is keep_last 1: the block at p - 1. A prefix is usable if every layout has what it needs.
 * What stands before a call's first key is taken to be there: the engine has it. */

/* What else a session says of a layout. */
struct terrace_layout_rule {
	size_t size;
	uint32_t keep_last; /* 0: no such rule. Else so many blocks, at most 4096, of a layout without a window */
	bool partial;       /* it may have partial blocks */
	bool sparse; /* with a window or keep_last: blocks that were never stored do not count as missing */
	uint8_t reserved[2];
};
#define TERRACE_LAYOUT_RULE_INIT TERRACE_SIZED_(struct terrace_layout_rule)

struct terrace_session_options {
	size_t size;
	const char *tenant; /* NULL: the caller's own, which the daemon knows by user or certificate; another: DENIED */
	const char *engine; /* shown to operators, 64 bytes of it; NULL: the program's name */
	bool gpu;           /* the blocks are to be attended on a GPU: TERRACE_UNSUPPORTED, with the reason, if the CUDA plugin cannot be
			     * loaded, the current device will not do, or a layout's formats or head dims have no
			     * kernel. Opaque layouts need none */
	/* blocks put on a GPU are copied to host memory when the GPU needs the room, not at once: a block without that
	 * copy is lost with the GPU or the daemon */
	bool gpu_write_back;
	bool unchained_keys; /* the keys name contents, not prefixes: TERRACE_INVALID if a block covers several keys */
	bool local_only; /* no blocks are brought from other nodes of a cluster */
	uint8_t reserved[4];
	/* Tokens of a key, see "units" above; each layout's block_tokens is a multiple. 0: the block_tokens of the
	 * layouts, which must be equal */
	uint32_t unit_tokens;
	/* That the engine computes: what would take longer to come from another node than its tokens take to compute is
	 * not brought. 0: not known, all that is found is brought */
	uint32_t tokens_per_second;
	const struct terrace_layout_rule *rules; /* NULL, or one a layout, in their order */
};
#define TERRACE_SESSION_OPTIONS_INIT TERRACE_SIZED_(struct terrace_session_options)

/* Opens a session over `count` layouts (1 to 64, of equal block_tokens unless unit_tokens is set) and attaches this
 * process to the daemon's memory. The layouts are copied. The client must outlive the session. If the memory cannot be
 * had (another node, no fd socket) the session works by stream alone: terrace_session_borrows() tells, and the first
 * lease or reservation says why. Besides what `gpu` says: TERRACE_INVALID (a layout, a name too long, a unit that does
 * not divide, a rule that cannot be met), TERRACE_DENIED (the tenant), TERRACE_EXHAUSTED, TERRACE_UNAVAILABLE,
 * TERRACE_DEADLINE, TERRACE_UNSUPPORTED (a daemon of another version), TERRACE_INTERNAL. */
TERRACE_API enum terrace_status terrace_session_open(struct terrace_client *client, const struct terrace_layout *layouts, uint32_t count,
						     const struct terrace_session_options *options, struct terrace_session **session);

/* Joins the session of another process of the same engine, by its token. TERRACE_NOT_FOUND: no session has the token.
 * Else as terrace_session_open. */
TERRACE_API enum terrace_status terrace_session_attach(struct terrace_client *client, const struct terrace_token *token,
						       struct terrace_session **session);

TERRACE_API void terrace_session_token(const struct terrace_session *session, struct terrace_token *token);

/* Closes the session on the daemon (if this process opened it) or leaves it (if it attached), and has its memory
 * unmapped; a thread of the library unmaps a GPU's memory afterwards. Leases and reservations of this handle end with
 * it: neither this process nor a GPU may touch their blocks any more, and the caller still frees their handles
 * (terrace_release, terrace_abort). It waits 10 s at most for pending terrace_release_after and terrace_commit_after,
 * and for threads that map or unmap; if these take longer, the memory stays mapped until they are done. Leases,
 * reservations and terrace_session_gpu_ready that wait for a mapping end with TERRACE_CANCELLED. Operations under way
 * complete, mostly with TERRACE_CANCELLED or, if the daemon answers first, TERRACE_STALE; the caller still finishes
 * them. NULL is allowed. */
TERRACE_API void terrace_session_close(struct terrace_session *session);

/* After TERRACE_STALE or TERRACE_UNAVAILABLE: waits for the daemon, for the next one if this one is draining, and opens
 * the session anew, with the same layouts, as an empty view. Leases made before stay readable until released, but
 * protect nothing. Not while other calls run on it. Only the process that opened the session may call it (else
 * TERRACE_PRECONDITION); others attach by the new token. */
TERRACE_API enum terrace_status terrace_session_reopen(struct terrace_session *session, uint64_t timeout_us);

/* The daemon's boot epoch this session belongs to. */
TERRACE_API uint64_t terrace_session_epoch(const struct terrace_session *session);

/* True if leases and reservations by borrow work: same node, attached. */
TERRACE_API bool terrace_session_borrows(const struct terrace_session *session);

/* The session's layouts: how many, and a copy of one into a struct begun with TERRACE_LAYOUT_INIT (TERRACE_INVALID
 * without it, or for l out of range). For processes that attached. */
TERRACE_API uint32_t terrace_session_layout_count(const struct terrace_session *session);
TERRACE_API enum terrace_status terrace_session_layout(const struct terrace_session *session, uint32_t l, struct terrace_layout *layout);

/* Tokens of a key. */
TERRACE_API uint32_t terrace_session_unit(const struct terrace_session *session);
/* Only prefixes of a multiple of so many keys, counted from the sequence's start, can be usable: blocks end together
 * there. */
TERRACE_API uint32_t terrace_session_prefix_multiple(const struct terrace_session *session);
/* What the session says of layout l, into a struct begun with TERRACE_LAYOUT_RULE_INIT. */
TERRACE_API enum terrace_status terrace_session_rule(const struct terrace_session *session, uint32_t l,
						     struct terrace_layout_rule *rule);

/* A GPU whose memory the daemon lends. The session's calls name it by its number, 0 to terrace_session_gpu_count() -
 * 1. */
struct terrace_gpu_info {
	size_t size;      /* set by TERRACE_GPU_INFO_INIT */
	uint8_t uuid[16]; /* the driver's, the same in every process */
	uint64_t bytes;   /* of its memory that the daemon may take */
};
#define TERRACE_GPU_INFO_INIT TERRACE_SIZED_(struct terrace_gpu_info)

/* How many; 0: none. */
TERRACE_API uint32_t terrace_session_gpu_count(const struct terrace_session *session);
/* Copies the facts about one GPU into a struct begun with TERRACE_GPU_INFO_INIT. TERRACE_INVALID without it, or for a
 * number out of range. */
TERRACE_API enum terrace_status terrace_session_gpu(const struct terrace_session *session, uint32_t g, struct terrace_gpu_info *info);
/* The number of the GPU that this process counts as `ordinal` (as cudaSetDevice does). The GPU is not opened for this.
 * TERRACE_NOT_FOUND (the daemon lends none of its memory), TERRACE_INVALID (the process has no such GPU),
 * TERRACE_UNSUPPORTED (no CUDA plugin, or one without GPU memory), TERRACE_UNAVAILABLE (the driver has lost it). */
TERRACE_API enum terrace_status terrace_session_gpu_of(const struct terrace_session *session, uint32_t ordinal, int32_t *g);

/* What a process does with a GPU: leases there, reservations there, leases with gpu_or_host, which read host memory.
 * Or'ed. */
enum terrace_gpu_use { TERRACE_GPU_LEASES = 1, TERRACE_GPU_RESERVATIONS = 2, TERRACE_GPU_HOST_BLOCKS = 4 };
/* To be called when an engine starts: prepares GPU g for such uses, so that later calls do not wait for its driver.
 * Opens the GPU, and maps or registers the daemon's memory there for the session's layouts. A thread of the library
 * does the same for memory that is added later; without this call the thread begins at the first such use. Memory
 * without a lease is unmapped when the daemon wants it back. On a failure calls still map what they need:
 * TERRACE_DEADLINE (the rest follows), TERRACE_EXHAUSTED (of the driver), TERRACE_CANCELLED (the session is closed),
 * or as terrace_lease_with. TERRACE_INVALID: also if no block of the session can ever lie there; so do calls that name
 * g. */
TERRACE_API enum terrace_status terrace_session_gpu_ready(struct terrace_session *session, uint32_t g, uint32_t uses, uint64_t timeout_us);

/* ---- completion of asynchronous calls ---------------------------------------------------------------------------- */

/* An asynchronous call returns an operation, completes exactly once, never from inside the call that starts it, and is
 * ended by its ..._finish() function, which waits if it must (at most the call's deadline), gives the results and frees
 * the operation. Completion is reported by a callback, by adding 1 to an eventfd, or both, the eventfd first. The
 * callback runs on a thread of the library: it must not block; it may start further calls, and finish operations that
 * are done, its own included. *op is set before the callback can run. The memory that keys, infos and completion point
 * at may be reused when the call has returned. 4096 operations of a connection can be under way; then the call returns
 * TERRACE_EXHAUSTED. */
struct terrace_op;

struct terrace_completion {
	void (*done)(struct terrace_op *op, void *arg); /* may be NULL */
	void *arg;
	int eventfd;                                    /* -1: none; open until the operation has been finished */
	uint32_t reserved;
};
#ifdef __cplusplus
#define TERRACE_COMPLETION_INIT { nullptr, nullptr, -1, 0 }
#else
#define TERRACE_COMPLETION_INIT { .eventfd = -1 }
#endif

/* True once the operation has completed. */
TERRACE_API bool terrace_op_done(const struct terrace_op *op);

/* Asks for an early end: the operation completes with TERRACE_CANCELLED unless it is done already. The caller still
 * finishes it. */
TERRACE_API void terrace_op_cancel(struct terrace_op *op);

/* ---- lookup and lease -------------------------------------------------------------------------------------------- */

/* Where a block is; one byte. */
enum terrace_state {
	TERRACE_STATE_ABSENT = 0,
	TERRACE_STATE_HOST = 1, /* in host memory, perhaps on a disk or a GPU too */
	TERRACE_STATE_DISK = 2, /* on a disk only: a lease or a get brings it to memory first */
	TERRACE_STATE_GPU = 3,  /* on a GPU, and not in host memory */
	TERRACE_STATE_NONE = 4  /* no cell: the layout can have no block there */
};

/* Where a call's keys are in their sequence. */
struct terrace_call_options {
	size_t size;
	uint32_t first_position; /* of the first key, in units; at most 2^31 */
	uint32_t reserved;
};
#define TERRACE_CALL_OPTIONS_INIT TERRACE_SIZED_(struct terrace_call_options)

/* The longest prefix of keys that is usable in every layout of the session. A probe: protects nothing, counts as no
 * use. states (may be NULL) gets one byte a (key, layout), keys outer: an enum terrace_state. A miss is prefix 0, not a
 * status. */
TERRACE_API enum terrace_status terrace_lookup(struct terrace_session *session, const struct terrace_keys *keys,
					       uint64_t timeout_us, uint32_t *prefix, uint8_t *states);
TERRACE_API enum terrace_status terrace_lookup_async(struct terrace_session *session, const struct terrace_keys *keys, uint64_t timeout_us,
						     const struct terrace_completion *completion, struct terrace_op **op);
/* terrace_lookup with options (NULL: none). */
TERRACE_API enum terrace_status terrace_lookup_with(struct terrace_session *session, const struct terrace_keys *keys,
						    const struct terrace_call_options *options, uint64_t timeout_us,
						    uint32_t *prefix, uint8_t *states);
TERRACE_API enum terrace_status
terrace_lookup_with_async(struct terrace_session *session, const struct terrace_keys *keys,
			  const struct terrace_call_options *options, uint64_t timeout_us,
			  const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_lookup_finish(struct terrace_op *op, uint32_t *prefix, uint8_t *states);
/* *us: how long it would take to bring to memory what a lookup of this session found on disks, by its states of
 * `count` keys, at the rate at which a disk was lately read; 0: nothing is on a disk alone. An engine loads if that is
 * less than computing the tokens takes. The rate came with the last lookup's answer, and is that of one disk: with
 * several a load may be quicker, and behind other loads it is slower. Asks the daemon nothing. TERRACE_MISS: the rate
 * is not known, for the daemon has read no disk yet. */
TERRACE_API enum terrace_status terrace_load_estimate(const struct terrace_session *session, const uint8_t *states,
						      uint32_t count, uint64_t *us);

/* A protected set of blocks: `count` keys by the session's layouts, mapped read-only. */
struct terrace_lease;

enum terrace_lease_mode {
	TERRACE_LEASE_PREFIX = 0, /* the longest prefix */
	TERRACE_LEASE_ALL = 1     /* every key, or TERRACE_MISS */
};

/* Looks up and protects in one step; maps what is not mapped yet. Blocks on a disk are brought to memory first: the
 * call waits for the disk, for nine tenths of its timeout at most, and then answers with what memory has. TERRACE_MISS
 * if nothing (PREFIX) or not everything (ALL) is there; TERRACE_EXHAUSTED if too much would be pinned (nothing is held
 * then, and terrace_error() says what holds it); TERRACE_PRECONDITION without borrow. The lease ends with
 * terrace_release(). */
TERRACE_API enum terrace_status terrace_lease(struct terrace_session *session, const struct terrace_keys *keys,
					      enum terrace_lease_mode mode, uint64_t timeout_us, struct terrace_lease **lease);
TERRACE_API enum terrace_status terrace_lease_async(struct terrace_session *session, const struct terrace_keys *keys, enum terrace_lease_mode mode,
						    uint64_t timeout_us, const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_lease_finish(struct terrace_op *op, struct terrace_lease **lease);

/* Options of terrace_lease_with. */
struct terrace_lease_options {
	size_t size;
	enum terrace_lease_mode mode;
	int32_t gpu;      /* -1: the blocks are to be in host memory; else in that GPU's, as terrace_session_gpu counts */
	bool gpu_or_host; /* with a GPU: blocks that only host memory has may stay there, to be attended from there by address */
	uint8_t reserved[3];
	uint32_t first_position; /* of the first key in its sequence, in units */
};
#define TERRACE_LEASE_OPTIONS_INIT TERRACE_SIZED_ON_HOST_(struct terrace_lease_options)

/* terrace_lease with options (NULL: a prefix, in host memory). With a GPU the lease comes as soon as all its blocks are
 * in host memory or on the GPU: copies to the GPU may be under way then, a layer after the other, and
 * terrace_lease_wait_layer() makes a stream wait for them. Such a lease gives addresses (terrace_lease_addresses) and
 * may be released behind a stream (terrace_release_after). What terrace_session_gpu_ready does, and has not done when a
 * reply names it, is done by the calling thread, or, for asynchronous calls, on the library's, and takes as long as the
 * driver does. Besides what terrace_lease returns: TERRACE_UNSUPPORTED (the daemon lends no GPU; no CUDA plugin; this
 * process does not see that GPU), TERRACE_INVALID (no such number), TERRACE_UNAVAILABLE (the GPU is lost, here or at
 * the daemon). */
TERRACE_API enum terrace_status terrace_lease_with(struct terrace_session *session, const struct terrace_keys *keys,
						   const struct terrace_lease_options *options, uint64_t timeout_us, struct terrace_lease **lease);
/* Ended by terrace_lease_finish. */
TERRACE_API enum terrace_status terrace_lease_with_async(struct terrace_session *session, const struct terrace_keys *keys,
							 const struct terrace_lease_options *options, uint64_t timeout_us,
							 const struct terrace_completion *completion, struct terrace_op **op);

/* Keys in the lease. */
TERRACE_API uint32_t terrace_lease_count(const struct terrace_lease *lease);
/* The packed block of key i in the session's layout l: block_bytes bytes, 4096-byte aligned, read-only. NULL for blocks
 * that the prefix does not need (outside a window, or where the layout has no cell), for those in a GPU's memory, and
 * for i or l out of range. Valid until release. */
TERRACE_API const void *terrace_lease_block(const struct terrace_lease *lease, uint32_t i, uint32_t l);
/* Valid tokens of key i's block; of the layouts that have one, of the one with the fewest. */
TERRACE_API uint32_t terrace_lease_tokens(const struct terrace_lease *lease, uint32_t i);
/* Valid tokens of key i's block in layout l; 0: the lease has none. */
TERRACE_API uint32_t terrace_lease_block_tokens(const struct terrace_lease *lease, uint32_t i, uint32_t l);

/* A lease on a GPU: the device address of each key's block in layout l, addresses[terrace_lease_count()], 256-byte
 * aligned; 0 for blocks outside a windowed layout's window (after a commit also for keys without a slot). Copied to the
 * device, they are the `blocks` of terrace_cuda_attend. Valid until release, of this process's memory map, in every
 * context of it on that GPU. TERRACE_PRECONDITION: the lease is not for a GPU. TERRACE_INVALID: no layout l. */
TERRACE_API enum terrace_status terrace_lease_addresses(const struct terrace_lease *lease, uint32_t l, uint64_t *addresses);

/* Work that is put into `stream` (a cudaStream_t of the lease's GPU) after this waits until the blocks' layer (of
 * every layout, counted from its first) is there; `layer` is below the most layers of any of the session's layouts.
 * Blocks of a layout with fewer layers, or none, are whole with the first. Layers come in order. Up to 8192 blocks
 * of one shape in host memory come layer by layer; all other blocks come whole, before the first layer. The call
 * costs nothing when all blocks are there, the usual case. The stream never waits for ever: if the daemon or the GPU
 * dies, the wait ends without the bytes, and terrace_lease_check() reports it. May be captured in a graph, which is
 * then valid for this lease only. TERRACE_PRECONDITION (the lease is not for a GPU), TERRACE_INVALID (no such layer,
 * no stream of the GPU), TERRACE_UNAVAILABLE (the GPU is lost), TERRACE_CANCELLED (the session is closed). */
TERRACE_API enum terrace_status terrace_lease_wait_layer(struct terrace_lease *lease, uint32_t layer, void *stream);

/* Call it after the work on a lease that used terrace_lease_wait_layer, before the results are used. TERRACE_OK: all
 * bytes were there. TERRACE_BUSY: they are not there yet (the work was not done). TERRACE_STALE (the daemon went away
 * before), TERRACE_UNAVAILABLE (the GPU is lost, here or at the daemon, nothing came for 30 s, or their
 * checksums were wrong), TERRACE_CANCELLED (the session was closed): throw away what was computed from the lease. A
 * lease on no GPU is always TERRACE_OK. Bytes that were there stay, also when the daemon goes. */
TERRACE_API enum terrace_status terrace_lease_check(struct terrace_lease *lease);

/* Gives the lease back without waiting for an answer, and frees the handle. No work on a GPU may still read the blocks.
 * NULL is allowed. */
TERRACE_API void terrace_release(struct terrace_lease *lease);

/* Gives the lease back and frees the handle once everything that is in `stream` now is done, without waiting for it; a
 * lost GPU counts as done. For leases on a GPU, not while the stream is being captured. If the process dies before, the
 * daemon learns from the
 * kernel when nothing can touch the blocks any more. On a failure the lease is as it was: TERRACE_PRECONDITION (not for
 * a GPU), TERRACE_INVALID (no stream of the GPU), TERRACE_UNAVAILABLE (the GPU is lost), TERRACE_CANCELLED (the session
 * is closed), TERRACE_EXHAUSTED. */
TERRACE_API enum terrace_status terrace_release_after(struct terrace_lease *lease, void *stream);

/* ---- put --------------------------------------------------------------------------------------------------------- */

enum terrace_role {
	TERRACE_ROLE_UNKNOWN = 0,
	TERRACE_ROLE_SYSTEM = 1,
	TERRACE_ROLE_USER = 2,
	TERRACE_ROLE_ASSISTANT = 3,
	TERRACE_ROLE_TOOL = 4
};

/* A block's place in its sequence. It helps eviction, and does not change what a key means. */
struct terrace_block_info {
	size_t size;
	const uint8_t *parent; /* key of the block before; NULL for the first */
	/* Index of its first token; in a session with unit_tokens of the first token of the key's unit. terrace_put
	 * needs it where a block covers several keys */
	uint64_t position;
	/* Valid tokens of the key: of the block, or of its unit; if blocks cover several keys, only 0 or the whole unit
	 * is allowed. 0: all. An open block: those that its commit will have at least */
	uint32_t tokens;
	enum terrace_role role;
	uint32_t turn;
	uint32_t parent_bytes; /* of parent; 0: the call's key_bytes. Needed by terrace_reserve_open, which has no key */
};
#define TERRACE_BLOCK_INFO_INIT TERRACE_SIZED_(struct terrace_block_info)

/* Reserved slots: `count` keys by the session's layouts, mapped writable. */
struct terrace_reservation;

/* Reserves slots to write in place. info: one a key, or NULL. statuses (may be NULL) gets one a key: OK, EXISTS (stored
 * already: nothing to write), BUSY (it is reserved or being put already, perhaps by this session: no slot), EXHAUSTED.
 * The call's own status is OK if it was carried out, even if no key got a slot. If a key is EXHAUSTED, terrace_error()
 * says all the same what has run out, what holds it and what to do, after terrace_reserve_finish, too. The metric
 * terrace_session_held_bytes has the bytes that each session's leases and reservations hold, in memory and on GPUs.
 *
 * A key stays BUSY until its reservation is committed or aborted, or its session ends. If the writer dies, its session
 * ends once no process of the session is left and no process maps its memory. */
TERRACE_API enum terrace_status terrace_reserve(struct terrace_session *session, const struct terrace_keys *keys,
						const struct terrace_block_info *info, uint64_t timeout_us,
						enum terrace_status *statuses, struct terrace_reservation **reservation);
TERRACE_API enum terrace_status terrace_reserve_async(struct terrace_session *session, const struct terrace_keys *keys,
						      const struct terrace_block_info *info, uint64_t timeout_us,
						      const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_reserve_finish(struct terrace_op *op, enum terrace_status *statuses,
						       struct terrace_reservation **reservation);

/* Reserves one open block: the growing tail of a sequence, without a key yet; attendable by this session's processes
 * only. Where a block covers several keys, it begins at info's position (0 without an info), which is to be a multiple
 * of block_tokens of each layout that it has a slot in. That is every layout, or those of which the options' `cells`,
 * one word, has the bit. It grows until the first of these blocks is full. */
TERRACE_API enum terrace_status terrace_reserve_open(struct terrace_session *session, const struct terrace_block_info *info,
						     uint64_t timeout_us, struct terrace_reservation **reservation);

/* Options of terrace_reserve_with. */
struct terrace_reserve_options {
	size_t size;
	int32_t gpu; /* -1: in host memory; else in that GPU's, as terrace_session_gpu counts */
	uint32_t first_position; /* of the first key in its sequence, in units */
	/* One a key: bit l is set if layout l is to have a slot. A key with a bit where the layout has no cell is
	 * TERRACE_INVALID. NULL: each layout that has a full block at the key. Set it to reserve partial blocks, or
	 * to leave blocks of a sparse layout out. A key without any bit is TERRACE_EXISTS. With
	 * terrace_reserve_open only where a block covers several keys */
	const uint64_t *cells;
};
#define TERRACE_RESERVE_OPTIONS_INIT TERRACE_SIZED_ON_HOST_(struct terrace_reserve_options)

/* terrace_reserve and terrace_reserve_open with options (NULL: in host memory). Slots on a GPU are written by the GPU's
 * work, at terrace_reservation_addresses(). Commit or abort them when that work is done; terrace_commit_after() commits
 * them behind the stream. A key for whose slots the GPU has no room is EXHAUSTED. Besides what those return: as
 * terrace_lease_with. */
TERRACE_API enum terrace_status terrace_reserve_with(struct terrace_session *session, const struct terrace_keys *keys,
						     const struct terrace_block_info *info, const struct terrace_reserve_options *options,
						     uint64_t timeout_us, enum terrace_status *statuses, struct terrace_reservation **reservation);
/* Ended by terrace_reserve_finish. */
TERRACE_API enum terrace_status terrace_reserve_with_async(struct terrace_session *session, const struct terrace_keys *keys,
							   const struct terrace_block_info *info, const struct terrace_reserve_options *options,
							   uint64_t timeout_us, const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_reserve_open_with(struct terrace_session *session, const struct terrace_block_info *info,
							  const struct terrace_reserve_options *options, uint64_t timeout_us,
							  struct terrace_reservation **reservation);

/* Keys in the reservation. */
TERRACE_API uint32_t terrace_reservation_count(const struct terrace_reservation *reservation);
/* The slot of key i in layout l, block_bytes bytes, writable; NULL if key i got none, or one on a GPU. Its bytes are
 * undefined: write every token that is committed. It is writable until the commit or abort begins; a write after that
 * may be a SIGSEGV. The commit zeroes what is behind the valid tokens of a block that is not full. */
TERRACE_API void *terrace_reservation_block(const struct terrace_reservation *reservation, uint32_t i, uint32_t l);
/* A reservation on a GPU: the device address of each key's slot in layout l, addresses[terrace_reservation_count()],
 * 256-byte aligned; 0 if the key got none. They are the `blocks` of terrace_cuda_encode. Statuses as of
 * terrace_lease_addresses. */
TERRACE_API enum terrace_status terrace_reservation_addresses(const struct terrace_reservation *reservation, uint32_t l, uint64_t *addresses);

/* Publishes every slot of the reservation and frees the handle, also on failure (the slots are then aborted or, if the
 * daemon could not be told, freed by it when this process or session ends). statuses (may be NULL) gets one a key: OK,
 * EXISTS (another put won); a key that got no slot keeps terrace_reserve's. With lease not NULL, *lease protects what
 * is stored now (the winner's for EXISTS), its keys counted as the reservation's, blocks of keys without a slot NULL;
 * it is NULL if nothing is protected. Slots on a GPU must have been written before this call (terrace_commit_after()
 * waits for that); the lease is then on that GPU, with all bytes there. The GPU computes their checksums after this has
 * returned, mostly within 100 us. A block that is written to later becomes a miss when it is to leave the GPU. */
TERRACE_API enum terrace_status terrace_commit(struct terrace_reservation *reservation, uint64_t timeout_us,
					       enum terrace_status *statuses, struct terrace_lease **lease);
TERRACE_API enum terrace_status terrace_commit_async(struct terrace_reservation *reservation, uint64_t timeout_us,
						     const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_commit_finish(struct terrace_op *op, enum terrace_status *statuses);

/* Publishes the slots of a reservation on a GPU once everything that is in `stream` now is done; then as
 * terrace_commit_async, ended by terrace_commit_finish. The timeout covers both: TERRACE_DEADLINE if the stream took
 * too long, TERRACE_UNAVAILABLE if the GPU was lost, and then nothing is published; slots are given back only when the
 * stream cannot write them any more. Not while the stream is being captured. On TERRACE_OK the handle is gone; on a
 * failure it is as it was: as terrace_release_after, and TERRACE_INVALID for an open block. */
TERRACE_API enum terrace_status terrace_commit_after(struct terrace_reservation *reservation, void *stream, uint64_t timeout_us,
						     const struct terrace_completion *completion, struct terrace_op **op);

/* Turns an open block of `tokens` tokens into a stored one under a key. Where a block covers several keys it is that of
 * the last unit, and tokens a multiple of the unit: fewer than a whole block in layouts with partial blocks alone.
 * Frees the handle as terrace_commit does. */
TERRACE_API enum terrace_status terrace_commit_open(struct terrace_reservation *reservation, const uint8_t *key,
						    uint32_t key_bytes, uint32_t tokens, uint64_t timeout_us);

/* Gives slots back without storing them (waits 1 s at most for the daemon's answer), and frees the handle. NULL is
 * allowed. */
TERRACE_API void terrace_abort(struct terrace_reservation *reservation);

/* Stores one packed block by stream. block: block_bytes of layout l; an asynchronous put reads it until it has
 * completed. TERRACE_EXISTS (it is stored already), TERRACE_BUSY (another put is writing it), TERRACE_EXHAUSTED (there
 * is no room now). */
TERRACE_API enum terrace_status terrace_put(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes,
					    const struct terrace_block_info *info, const void *block, uint64_t timeout_us);
TERRACE_API enum terrace_status terrace_put_async(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes,
						  const struct terrace_block_info *info, const void *block, uint64_t timeout_us,
						  const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_put_finish(struct terrace_op *op);

/* Reads one packed block by stream into `block` (block_bytes of layout l, whose content is undefined after a failure;
 * an asynchronous get writes it until it has completed). *tokens (may be NULL) gets its valid tokens. The bytes'
 * checksum is verified before TERRACE_OK. TERRACE_MISS, TERRACE_CORRUPT (it does not match, or the daemon sent too few
 * bytes). */
TERRACE_API enum terrace_status terrace_get(struct terrace_session *session, uint32_t l, const uint8_t *key,
					    uint32_t key_bytes, void *block, uint32_t *tokens, uint64_t timeout_us);
TERRACE_API enum terrace_status terrace_get_async(struct terrace_session *session, uint32_t l, const uint8_t *key, uint32_t key_bytes, void *block,
						  uint64_t timeout_us, const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_get_finish(struct terrace_op *op, uint32_t *tokens);

/* ---- disks
 * -------------------------------------------------------------------------------------------------------- */

/* Brings the longest prefix of keys (of each layout what a lease of it would need) from disk to memory, before they are
 * used. Protects nothing, counts as no use. With wait, *blocks (may be NULL) is how many of its keys memory has when
 * all have come, or most of the timeout is over. Without wait, the answer comes at once, and *blocks also counts keys
 * on their way. Needs no borrowing. */
TERRACE_API enum terrace_status terrace_warm(struct terrace_session *session, const struct terrace_keys *keys, bool wait,
					     uint64_t timeout_us, uint32_t *blocks);
TERRACE_API enum terrace_status terrace_warm_async(struct terrace_session *session, const struct terrace_keys *keys, bool wait, uint64_t timeout_us,
						   const struct terrace_completion *completion, struct terrace_op **op);
/* Options of terrace_warm_with. */
struct terrace_warm_options {
	size_t size;
	int32_t gpu; /* -1: to host memory; else to that GPU's, from host memory or a disk, as terrace_session_gpu counts */
	bool wait;
	uint8_t reserved[3];
	uint32_t first_position; /* of the first key in its sequence, in units */
	uint32_t reserved_also;
};
#define TERRACE_WARM_OPTIONS_INIT TERRACE_SIZED_ON_HOST_(struct terrace_warm_options)

/* terrace_warm with options (NULL: to host memory, without waiting). This process needs no GPU for it. TERRACE_INVALID
 * also for a GPU that the daemon has not, TERRACE_UNAVAILABLE for one that it has lost, TERRACE_UNSUPPORTED if it lends
 * none. */
TERRACE_API enum terrace_status terrace_warm_with(struct terrace_session *session, const struct terrace_keys *keys,
						  const struct terrace_warm_options *options, uint64_t timeout_us, uint32_t *blocks);
/* Ended by terrace_warm_finish, as terrace_warm_async. */
TERRACE_API enum terrace_status terrace_warm_with_async(struct terrace_session *session, const struct terrace_keys *keys,
							const struct terrace_warm_options *options, uint64_t timeout_us,
							const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_warm_finish(struct terrace_op *op, uint32_t *blocks);

/* Makes blocks durable: after TERRACE_OK every block of the keys that was stored before the call is on a disk, synced,
 * and in the daemon's synced catalog, so that it is there, bit for bit, after a crash of the daemon or the machine;
 * until it is deleted, or evicted as the least worth keeping, which a flush does not prevent. keys NULL: all blocks of
 * the session's layouts, also those that other processes put. statuses (may be NULL) gets one a key, or one in all
 * without keys: OK, MISS (there is no such block, or an engine wrote to it after its commit: what would have been
 * written is not what was committed, and is dropped), EXHAUSTED (the disks have no place), IO, UNAVAILABLE (the daemon
 * has no disks, or no sound one). The call's own status is the first of them that is neither OK nor MISS; statuses is
 * then written too. TERRACE_DEADLINE: not all blocks were durable in time; keys that may not be have the status
 * DEADLINE. Work that was begun goes on, so another flush has less to do. After a crash, with keys NULL, it waits until
 * all blocks on the disks have been read. */
TERRACE_API enum terrace_status terrace_flush(struct terrace_session *session, const struct terrace_keys *keys,
					      uint64_t timeout_us, enum terrace_status *statuses);
TERRACE_API enum terrace_status terrace_flush_async(struct terrace_session *session, const struct terrace_keys *keys, uint64_t timeout_us,
						    const struct terrace_completion *completion, struct terrace_op **op);
TERRACE_API enum terrace_status terrace_flush_finish(struct terrace_op *op, enum terrace_status *statuses);

/* ---- other calls ------------------------------------------------------------------------------------------------- */

/* Removes blocks from every layout of the session. statuses (may be NULL): OK or MISS a key. After TERRACE_OK no
 * restart brings them back; after TERRACE_IO or TERRACE_DEADLINE (also the status of each key for which this is not
 * known) they cannot be found, but a disk may still have them. */
TERRACE_API enum terrace_status terrace_delete(struct terrace_session *session, const struct terrace_keys *keys,
					       uint64_t timeout_us, enum terrace_status *statuses);

/* Counts as a use of blocks that the engine served from a cache of its own; in a session with unit_tokens or rules,
 * only of those that a prefix of all these keys needs. */
TERRACE_API enum terrace_status terrace_touch(struct terrace_session *session, const struct terrace_keys *keys, uint64_t timeout_us);
/* terrace_touch with options (NULL: none). */
TERRACE_API enum terrace_status terrace_touch_with(struct terrace_session *session, const struct terrace_keys *keys,
						   const struct terrace_call_options *options, uint64_t timeout_us);

enum terrace_event {
	TERRACE_EVENT_NONE = 0,
	TERRACE_EVENT_TURN_END = 1,
	TERRACE_EVENT_TOOL_CALL = 2,
	TERRACE_EVENT_SESSION_END = 3
};

/* Hints for eviction, which may ignore them. priority: above 0 the blocks are worth more, below 0 less. ttl_ms: how
 * long they will be wanted; 0: not known. */
TERRACE_API enum terrace_status terrace_report(struct terrace_session *session, const struct terrace_keys *keys,
					       enum terrace_event event, int32_t priority, uint64_t ttl_ms, uint64_t timeout_us);

/* terrace_report with options (NULL: none). */
TERRACE_API enum terrace_status terrace_report_with(struct terrace_session *session, const struct terrace_keys *keys,
						    const struct terrace_call_options *options,
						    enum terrace_event event, int32_t priority, uint64_t ttl_ms,
						    uint64_t timeout_us);

enum terrace_watch_kind {
	TERRACE_WATCH_STORED = 0,
	TERRACE_WATCH_REMOVED = 1, /* take the key out of the set that is kept; ignore a key that was never reported */
	/* as STORED, also for a key that was never reported: put it into the set, with its new place */
	TERRACE_WATCH_MOVED = 2,
	TERRACE_WATCH_RESYNC = 3,  /* events were lost: drop the set, and open another watch with from_now false */
	TERRACE_WATCH_SYNCED = 4  /* all blocks that were present have been reported */
};

struct terrace_watch_event {
	size_t size; /* set by TERRACE_WATCH_EVENT_INIT */
	uint64_t epoch, sequence;
	enum terrace_watch_kind kind;
	uint8_t key[32]; /* the key, or the first 32 bytes of a longer one */
	uint32_t key_bytes;
	uint32_t layout; /* index into the session's layouts */
	enum terrace_state state; /* STORED, MOVED: where the block is now */
	/* The whole key. A caller whose struct ends before it, and a library of an earlier version, get no events with
	 * keys longer than `key`. */
	uint8_t whole_key[TERRACE_KEY_BYTES_MAX];
};
#define TERRACE_WATCH_EVENT_INIT TERRACE_SIZED_(struct terrace_watch_event)

struct terrace_watch;

/* Watches the session's layouts. With from_now false it begins with the blocks stored already. It does not wait for the
 * daemon: if there is none, the first terrace_watch_next() says so. */
TERRACE_API enum terrace_status terrace_watch_open(struct terrace_session *session, bool from_now, struct terrace_watch **watch);
/* The next event, into a struct begun with TERRACE_WATCH_EVENT_INIT; TERRACE_DEADLINE if none came in time (the watch
 * goes on). Otherwise it has ended, and every further call says so: TERRACE_UNAVAILABLE (the daemon is gone),
 * TERRACE_STALE (it does not know the session), TERRACE_CANCELLED (terrace_disconnect). Threads that read one watch
 * take turns. */
TERRACE_API enum terrace_status terrace_watch_next(struct terrace_watch *watch, uint64_t timeout_us, struct terrace_watch_event *event);
/* Ends a watch; it may outlive its session and connection. NULL is allowed. */
TERRACE_API void terrace_watch_close(struct terrace_watch *watch);

#ifdef __cplusplus
}
#endif

#include "terrace_kernels.h" /* packed blocks: encode, decode, attend, repack; on a GPU too */

#endif
