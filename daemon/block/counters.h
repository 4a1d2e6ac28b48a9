/* The cache's counters: name, labels and help of each, in one table. */
#ifndef TERRACE_DAEMON_BLOCK_COUNTERS_H
#define TERRACE_DAEMON_BLOCK_COUNTERS_H

#include "daemon/block/stat_row.h"

/* Counters: name, labels, help. */
#define COUNTER_MAP(X)                                                                                       \
	X(LOOKUPS, "terrace_lookups_total", "", "Lookup calls")                                              \
	X(LOOKUP_KEYS, "terrace_lookup_keys_total", "", "keys asked for by lookups")                         \
	X(LOOKUP_HITS, "terrace_lookup_hits_total", "", "keys in the prefixes that lookups found")           \
	X(LEASES, "terrace_leases_total", "", "leases granted")                                              \
	X(LEASED_BLOCKS, "terrace_leased_blocks_total", "", "blocks put under lease")                        \
	X(LEASE_MISSES, "terrace_lease_refused_total", "reason=miss", "leases refused")                      \
	X(LEASE_EXHAUSTED, "terrace_lease_refused_total", "reason=exhausted", "leases refused")              \
	X(RELEASES, "terrace_releases_total", "", "leases given back")                                       \
	X(RESERVED, "terrace_reserve_keys_total", "status=ok", "keys that puts asked slots for")             \
	X(RESERVE_EXISTS, "terrace_reserve_keys_total", "status=exists", "keys that puts asked slots for")   \
	X(RESERVE_BUSY, "terrace_reserve_keys_total", "status=busy", "keys that puts asked slots for")       \
	X(RESERVE_EXHAUSTED, "terrace_reserve_keys_total", "status=exhausted",                               \
	  "keys that puts asked slots for")                                                                  \
	X(COMMITTED, "terrace_commits_total", "status=ok", "commits of a key")                               \
	X(COMMIT_EXISTS, "terrace_commits_total", "status=exists", "commits of a key")                       \
	X(ABORTS, "terrace_aborts_total", "", "reservations given up")                                       \
	X(STORED_BLOCKS, "terrace_stored_blocks_total", "", "blocks made visible")                           \
	X(READS, "terrace_reads_total", "status=ok", "blocks read by stream")                                \
	X(READ_MISSES, "terrace_reads_total", "status=miss", "blocks read by stream")                        \
	X(EVICTED_FULL, "terrace_evictions_total", "tier=host,reason=full", "blocks that left a tier")       \
	X(EVICTED_TRADE, "terrace_evictions_total", "tier=host,reason=trade", "blocks that left a tier")     \
	X(EVICTED_SHED, "terrace_evictions_total", "tier=host,reason=shed", "blocks that left a tier")       \
	X(EVICTED_PEER, "terrace_evictions_total", "tier=host,reason=peer", "blocks that left a tier")     \
	X(EVICTED_DISK, "terrace_evictions_total", "tier=disk,reason=full", "blocks that left a tier")       \
	X(EVICTED_LOST, "terrace_evictions_total", "tier=disk,reason=lost", "blocks that left a tier")       \
	X(EVICTED_COMPACT, "terrace_evictions_total", "tier=disk,reason=compact", "blocks that left a tier") \
	X(EVICTED_REFUSED, "terrace_evictions_total", "tier=host,reason=refused", "blocks that left a tier")     \
	X(EVICTED_GPU_FULL, "terrace_evictions_total", "tier=gpu,reason=full", "blocks that left a tier")    \
	X(EVICTED_GPU_TRADE, "terrace_evictions_total", "tier=gpu,reason=trade", "blocks that left a tier")  \
	X(EVICTED_GPU_SHED, "terrace_evictions_total", "tier=gpu,reason=shed", "blocks that left a tier")    \
	X(EVICTED_GPU_LOST, "terrace_evictions_total", "tier=gpu,reason=lost", "blocks that left a tier")    \
	X(TRADES_COLDER, "terrace_span_trades_total", "tier=host,reason=colder", "spans of memory that a class began to take from others") \
	X(TRADES_NEED, "terrace_span_trades_total", "tier=host,reason=need", "spans of memory that a class began to take from others") \
	X(GPU_TRADES, "terrace_span_trades_total", "tier=gpu", "spans of memory that a class began to take from others") \
	X(EVICTED_TENANT, "terrace_evictions_total", "tier=host,reason=tenant", "blocks that left a tier")   \
	X(EVICTED_GPU_TENANT, "terrace_evictions_total", "tier=gpu,reason=tenant", "blocks that left a tier") \
	X(EXTENTS_MOVED, "terrace_extents_moved_total", "",                                                  \
	  "extents of memory that one tenant had borrowed, and another one has got")                         \
	X(EXTENTS_KEPT, "terrace_extents_kept_total", "",                                                    \
	  "the same, but asked back in vain: blocks were in use, or an engine had it mapped")                \
	X(REGRETTED_HOST, "terrace_evictions_regretted_total", "tier=host",                                  \
	  "blocks that left a tier and were asked for within a minute")                                      \
	X(REGRETTED_DISK, "terrace_evictions_regretted_total", "tier=disk",                                  \
	  "blocks that left a tier and were asked for within a minute")                                      \
	X(REGRETTED_GPU, "terrace_evictions_regretted_total", "tier=gpu",                                    \
	  "blocks that left a tier and were asked for within a minute")                                      \
	X(UNUSABLE, "terrace_unusable_blocks_total", "",                                                     \
	  "blocks that no call could be granted any more, as a block that it would need had left: they go first") \
	X(REFUSED_HOST, "terrace_refused_blocks_total", "tier=host",                                         \
	  "blocks that the policy would not have given the place that they took, or asked for")              \
	X(REFUSED_DISK, "terrace_refused_blocks_total", "tier=disk",                                         \
	  "blocks that the policy would not have given the place that they took, or asked for")              \
	X(PREFETCH_BYTES, "terrace_prefetch_bytes_total", "result=loaded", "bytes of blocks loaded ahead of their use") \
	X(PREFETCH_USED, "terrace_prefetch_bytes_total", "result=used", "bytes of blocks loaded ahead of their use") \
	X(PREFETCH_WASTED, "terrace_prefetch_bytes_total", "result=wasted",                                  \
	  "bytes of blocks loaded ahead of their use")                                                       \
	X(PREFETCH_LATE, "terrace_prefetch_bytes_total", "result=late", "bytes of blocks loaded ahead of their use") \
	X(EXPECTED_BYTES, "terrace_prefetch_expected_bytes_total", "result=loaded",                          \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(EXPECTED_USED, "terrace_prefetch_expected_bytes_total", "result=used",                             \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(EXPECTED_WASTED, "terrace_prefetch_expected_bytes_total", "result=wasted",                         \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(EXPECTED_LATE, "terrace_prefetch_expected_bytes_total", "result=late",                             \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(PREFETCH_UNVERIFIED, "terrace_prefetch_refused_total", "reason=doubted", "loads ahead that were not begun") \
	X(PREFETCH_TOO_LATE, "terrace_prefetch_refused_total", "reason=late", "loads ahead that were not begun") \
	X(PREFETCH_NO_BUDGET, "terrace_prefetch_refused_total", "reason=budget", "loads ahead that were not begun") \
	X(PREFETCH_NO_ROOM, "terrace_prefetch_refused_total", "reason=room", "loads ahead that were not begun") \
	X(PREFETCH_NO_DISK, "terrace_prefetch_refused_total", "reason=disk", "loads ahead that were not begun") \
	X(PREFETCH_STALE, "terrace_prefetch_refused_total", "reason=stale", "loads ahead that were not begun") \
	X(GPU_PREFETCH_BYTES, "terrace_prefetch_gpu_bytes_total", "result=copied", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_PREFETCH_USED, "terrace_prefetch_gpu_bytes_total", "result=used", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_PREFETCH_WASTED, "terrace_prefetch_gpu_bytes_total", "result=wasted", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_PREFETCH_LATE, "terrace_prefetch_gpu_bytes_total", "result=late", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_PREFETCH_UNVERIFIED, "terrace_prefetch_gpu_refused_total", "reason=doubted", "copies ahead to a GPU that were not begun") \
	X(GPU_PREFETCH_TOO_LATE, "terrace_prefetch_gpu_refused_total", "reason=late", "copies ahead to a GPU that were not begun") \
	X(GPU_PREFETCH_NO_BUDGET, "terrace_prefetch_gpu_refused_total", "reason=budget", "copies ahead to a GPU that were not begun") \
	X(GPU_PREFETCH_NO_ROOM, "terrace_prefetch_gpu_refused_total", "reason=room", "copies ahead to a GPU that were not begun") \
	X(REQUESTS, "terrace_requests_total", "", "prompts that the policy was told of")                     \
	X(REQUESTS_REPEATED, "terrace_requests_repeated_total", "", "calls for a prompt that was told already") \
	X(REQUESTS_HINTED, "terrace_requests_hinted_total", "", "reports that the policy was told of")       \
	X(OFFERS_WITHDRAWN, "terrace_peer_offers_withdrawn_total", "",                                        \
	  "offers of blocks to other members that ended because memory was short")                          \
	X(DROPPED, "terrace_dropped_blocks_total", "", "evicted blocks of which no copy was left")           \
	X(SPILLED, "terrace_spills_total", "status=ok", "blocks written to a disk")                          \
	X(SPILL_FAILED, "terrace_spills_total", "status=failed", "blocks written to a disk")                 \
	X(LOADED, "terrace_loads_total", "status=ok", "blocks read from a disk")                             \
	X(LOAD_FAILED, "terrace_loads_total", "status=failed", "blocks read from a disk")                    \
	X(LOAD_CORRUPT, "terrace_loads_total", "status=corrupt", "blocks read from a disk")                  \
	X(LOAD_SHED, "terrace_loads_total", "status=shed", "blocks read from a disk")                        \
	X(LOAD_JOINED, "terrace_loads_joined_total", "", "waits that found the load already under way")      \
	X(MOVED_OUT, "terrace_moved_bytes_total", "from=host,to=disk", "bytes of blocks copied between tiers") \
	X(MOVED_IN, "terrace_moved_bytes_total", "from=disk,to=host", "bytes of blocks copied between tiers") \
	X(MOVED_UP, "terrace_moved_bytes_total", "from=host,to=gpu", "bytes of blocks copied between tiers") \
	X(MOVED_DOWN, "terrace_moved_bytes_total", "from=gpu,to=host", "bytes of blocks copied between tiers") \
	X(MOVED_ACROSS, "terrace_moved_bytes_total", "from=gpu,to=gpu", "bytes of blocks copied between tiers") \
	X(GPU_UP_FAILED, "terrace_gpu_moves_failed_total", "to=gpu", "blocks whose way to or from a GPU came to nothing") \
	X(GPU_DOWN_FAILED, "terrace_gpu_moves_failed_total", "to=host", "blocks whose way to or from a GPU came to nothing") \
	X(GPU_UP_SUMMED, "terrace_gpu_verified_bytes_total", "", "bytes whose checksums were looked at on their way to a GPU") \
	X(GPU_UP_CORRUPT, "terrace_gpu_corrupt_blocks_total", "to=gpu", "copies whose checksums were wrong on their way to or from a GPU") \
	X(GPU_DOWN_CORRUPT, "terrace_gpu_corrupt_blocks_total", "to=host", "copies whose checksums were wrong on their way to or from a GPU") \
	X(GPU_PUT_SUMMED, "terrace_gpu_commit_sums_total", "result=made",                                    \
	  "blocks put on a GPU: whether it made their checksums at the commit")                              \
	X(GPU_PUT_UNSUMMED, "terrace_gpu_commit_sums_total", "result=none",                                  \
	  "blocks put on a GPU: whether it made their checksums at the commit")                              \
	X(TOMBSTONES, "terrace_tombstones_total", "status=ok", "tombstones written to a disk")               \
	X(TOMBSTONES_FAILED, "terrace_tombstones_total", "status=failed", "tombstones written to a disk")    \
	X(FLUSHES, "terrace_flushes_total", "", "flushes that were acknowledged")                            \
	X(DELETED, "terrace_deleted_blocks_total", "", "blocks deleted by a client")                         \
	X(CORRUPT, "terrace_corrupt_blocks_total", "", "blocks whose checksum was wrong")                    \
	X(MEMORY_WRONG_GET, "terrace_memory_corrupt_blocks_total", "found=get", "copies in memory that were not what was committed") \
	X(MEMORY_WRONG_SPILL, "terrace_memory_corrupt_blocks_total", "found=spill", "copies in memory that were not what was committed") \
	X(MEMORY_WRONG_VERIFY, "terrace_memory_corrupt_blocks_total", "found=verify", "copies in memory that were not what was committed") \
	X(MEMORY_WRONG_GPU, "terrace_memory_corrupt_blocks_total", "found=gpu", "copies in memory that were not what was committed") \
	X(TOUCHED, "terrace_touched_blocks_total", "", "uses told by Touch and Report")                      \
	X(EVENT_NONE, "terrace_reports_total", "event=none", "reports")                                      \
	X(EVENT_TURN_END, "terrace_reports_total", "event=turn_end", "reports")                              \
	X(EVENT_TOOL_CALL, "terrace_reports_total", "event=tool_call", "reports")                            \
	X(EVENT_SESSION_END, "terrace_reports_total", "event=session_end", "reports")                        \
	X(SESSIONS, "terrace_sessions_opened_total", "", "sessions opened")                                  \
	X(DETACHED_SESSIONS, "terrace_ghosts_total", "", "sessions that ended")                              \
	X(TRADES_GIVEN_UP, "terrace_span_trades_given_up_total", "tier=host", "of these, given up as some blocks could not go") \
	X(RESYNCS, "terrace_watch_resyncs_total", "", "watches that fell behind")

enum counter {
#define COUNTER_ENUM(name, metric, labels, help) COUNTER_##name,
	COUNTER_MAP(COUNTER_ENUM)
#undef COUNTER_ENUM
	COUNTER_COUNT
};

#endif
