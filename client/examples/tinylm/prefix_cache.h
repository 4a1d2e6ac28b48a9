/* The engine's connection to the daemon: one session over one layout.
 *
 * Nothing here may stop the engine. A call that fails because the daemon is gone (or restarted, or too slow) marks the cache as
 * `gone`, so that the rest of the work does not wait for more deadlines; the words are kept in `note` for the user. */
#ifndef TINYLM_PREFIX_CACHE_H
#define TINYLM_PREFIX_CACHE_H

#include "fault.h"

#include "terrace.h"

enum { PREFIX_KEY_BYTES = 16 };

/* Used by one thread. */
struct prefix_cache {
	struct terrace_client *client;
	struct terrace_session *session;
	struct terrace_layout layout;
	char salt[64];
	int32_t gpu;       /* the GPU in whose memory blocks are leased and reserved; -1: the host's */
	bool in_place;     /* with a GPU: blocks in host memory stay there and are attended from there; the user of this
			    * struct may set it */
	bool gone;
	struct fault note; /* why it is gone, or what failed last; "" if nothing did */
};

/* Connects and opens a session. salt (may be NULL): mixed into every key; engines with different salts share nothing. */
bool prefix_cache_open(struct prefix_cache *cache, const char *address, const struct terrace_layout *layout, const char *salt,
		       struct fault *fault);
void prefix_cache_close(struct prefix_cache *cache);

/* From now on blocks are leased and reserved in the memory of the GPU that device.h uses, if the daemon lends some of it. */
void prefix_cache_use_gpu(struct prefix_cache *cache);

/* Leases keys, into the GPU's memory where that is used: the blocks it has not yet come layer by layer (but those that stay, see in_place). */
enum terrace_status prefix_cache_lease(struct prefix_cache *cache, const struct terrace_keys *keys, enum terrace_lease_mode mode,
				       struct terrace_lease **lease);

/* The keys of `blocks` full blocks of a token sequence, of which those below `known` are there already. */
void prefix_cache_keys(const struct prefix_cache *cache, const uint32_t *tokens, uint32_t known, uint32_t blocks,
		       uint8_t (*keys)[PREFIX_KEY_BYTES]);

/* Takes note of a call's outcome; returns whether it was TERRACE_OK. */
bool prefix_cache_ok(struct prefix_cache *cache, const char *call, enum terrace_status status);

#endif
