# The cache proper: everything the daemon knows of sessions, leases and blocks; no gRPC, no sockets.
add_library(terrace_cache STATIC
  cache.c cache_advice.c cache_advice_gone.c cache_advice_graph.c cache_advice_keep.c cache_advice_learned.c cache_advice_live.c cache_advice_mail.c
  cache_advice_prefetch.c cache_advice_ties.c cache_attach.c cache_await.c cache_block.c cache_bring.c cache_commit.c cache_compact.c cache_explain.c cache_faults.c cache_flush.c
  cache_inspect.c cache_lease.c cache_load.c cache_lookup.c cache_lost.c cache_memory.c cache_move.c cache_offer.c cache_pool.c cache_put.c cache_rack.c
  cache_remove.c cache_restore.c cache_restore_order.c cache_room.c cache_scrub.c cache_session.c cache_spill.c cache_stats.c cache_stream.c cache_sums.c
  cache_handle.c cache_tier.c cache_tier_open.c cache_tier_stats.c cache_trace.c cache_vram.c cache_vram_ahead.c cache_vram_copy.c cache_vram_end.c cache_vram_fetch.c cache_vram_heir.c cache_vram_lease.c
  cache_vram_loss.c cache_vram_move.c cache_vram_room.c cache_vram_slot.c cache_vram_stats.c cache_vram_sums.c cache_wait.c cache_warm.c cache_watch.c quota.c workers.c)
target_link_libraries(terrace_cache PUBLIC terrace_store terrace_eviction terrace_kernels Threads::Threads)

# Fills a cache with empty blocks, for measurements and tests. Not part of the daemon.
add_library(terrace_cache_seed STATIC cache_seed.c)
target_link_libraries(terrace_cache_seed PUBLIC terrace_cache)
