/* Session with the daemon; see prefix_cache.h. */
#include "prefix_cache.h"

#include <stdio.h>
#include <string.h>

static const uint64_t timeout_us = 3000000; /* to connect, and of a call */

bool prefix_cache_open(struct prefix_cache *cache, const char *address, const struct terrace_layout *layout, const char *salt,
		       struct fault *fault)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session_options session = TERRACE_SESSION_OPTIONS_INIT;

	memset(cache, 0, sizeof(*cache));
	cache->layout = *layout;
	cache->gpu = -1;
	if (salt && strlen(salt) >= sizeof(cache->salt))
		return fault_set(fault, "a salt of %zu bytes, at most %zu are taken", strlen(salt), sizeof(cache->salt) - 1);
	snprintf(cache->salt, sizeof(cache->salt), "%s", salt ? salt : "");
	connect.address = address;
	connect.timeout_us = timeout_us;
	session.engine = "tinylm";
	if (terrace_connect(&connect, &cache->client) != TERRACE_OK)
		return fault_set(fault, "cannot connect to the daemon: %.300s", terrace_error());
	if (terrace_session_open(cache->client, &cache->layout, 1, &session, &cache->session) != TERRACE_OK) {
		fault_write(fault, "cannot open a session: %.300s", terrace_error());
		prefix_cache_close(cache);
		return false;
	}
	if (!terrace_session_borrows(cache->session)) {
		prefix_cache_close(cache);
		return fault_set(fault, "the daemon's memory cannot be mapped: not on its node?");
	}
	return true;
}

void prefix_cache_close(struct prefix_cache *cache)
{
	terrace_session_close(cache->session);
	terrace_disconnect(cache->client);
	cache->session = NULL;
	cache->client = NULL;
}

void prefix_cache_use_gpu(struct prefix_cache *cache)
{
	/* CUDA's current device is its first, unless a program says otherwise, which this one does not. */
	if (terrace_session_gpu_count(cache->session) && terrace_session_gpu_of(cache->session, 0, &cache->gpu) != TERRACE_OK)
		cache->gpu = -1;
	if (cache->gpu >= 0) /* if it fails, leases map what they need */
		terrace_session_gpu_ready(cache->session, (uint32_t)cache->gpu, TERRACE_GPU_LEASES | TERRACE_GPU_RESERVATIONS, 0);
}

enum terrace_status prefix_cache_lease(struct prefix_cache *cache, const struct terrace_keys *keys, enum terrace_lease_mode mode,
				       struct terrace_lease **lease)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;

	o.mode = mode;
	o.gpu = cache->gpu;
	o.gpu_or_host = cache->in_place;
	return terrace_lease_with(cache->session, keys, &o, 0, lease);
}

void prefix_cache_keys(const struct prefix_cache *cache, const uint32_t *tokens, uint32_t known, uint32_t blocks,
		       uint8_t (*keys)[PREFIX_KEY_BYTES])
{
	const uint32_t n = cache->layout.block_tokens;

	for (uint32_t i = known; i < blocks; i++)
		terrace_chain_hash(i ? keys[i - 1] : NULL, tokens + (size_t)i * n, n, cache->salt[0] ? cache->salt : NULL,
				   strlen(cache->salt), keys[i]);
}

bool prefix_cache_ok(struct prefix_cache *cache, const char *call, enum terrace_status status)
{
	if (status == TERRACE_OK)
		return true;
	switch (status) {
	case TERRACE_MISS:
	case TERRACE_BUSY:
	case TERRACE_EXISTS:
	case TERRACE_EXHAUSTED:
		break; /* the daemon is well */
	default:
		cache->gone = true;
	}
	if (status != TERRACE_MISS)
		fault_write(&cache->note, "%s: %s: %.300s", call, terrace_status_text(status), terrace_error());
	return false;
}
