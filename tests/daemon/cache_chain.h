/* Whole requests against a cache: a chain of any keys is leased as far as it is there, and the rest is put. */
#ifndef TERRACE_TESTS_DAEMON_CACHE_CHAIN_H
#define TERRACE_TESTS_DAEMON_CACHE_CHAIN_H

#include "daemon/block/values.h"
#include "tests/daemon/cache_rig.h"

/* Looks up, leases what is there, puts the others, releases. Returns how many keys there were. */
uint32_t chain_request(struct rig *r, const uint64_t *keys, uint32_t count);
/* The two halves of it, with a disk tier: a Lookup, which says how many there are; then the Lease, which waits for the disks, and the rest.
 * Returns how many were leased. */
uint32_t chain_lookup(struct rig *r, const uint64_t *keys, uint32_t count);
uint32_t chain_serve(struct rig *r, const uint64_t *keys, uint32_t count);
/* The same keys with an event, as Report. */
void chain_report(struct rig *r, const uint64_t *keys, uint32_t count, enum cache_event event);

#endif
