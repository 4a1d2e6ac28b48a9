/* What the cache's tests share: small layouts, blocks whose bytes say whose they are, and a check of the
 * cache's own accounting. */
#ifndef TERRACE_TESTS_DAEMON_CACHE_RIG_H
#define TERRACE_TESTS_DAEMON_CACHE_RIG_H

#include <check.h>
#include <unistd.h>

#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "kernels/format.h"
#include "store/status.h"

struct cache_leased;

enum {
	RIG_GRANULE = 4096,
	RIG_OTHER_SLOT_BYTES = 12288,
	RIG_SLOT_BYTES = 8192, /* of rig_layout's: header, 576 bytes, pad */
	RIG_TOKENS = 16,
	RIG_KEY_BYTES = 16,
};

#ifdef TERRACE_SANITIZED
#define RIG_ROUNDS(n) ((n) / 10 + 1)
#else
#define RIG_ROUNDS(n) (n)
#endif

/* Until it is so; fails the test after a minute. */
#define RIG_AWAIT(condition)                                                     \
	do                                                                       \
		for (int rig_ms = 0; !(condition); rig_ms++) {                   \
			ck_assert_int_lt(rig_ms, 60000);                         \
			usleep(1000);                                            \
		}                                                                \
	while (0)

struct rig {
	struct cache *c;
	uint64_t now;                   /* the test's clock, in us */
	struct cache_session_view s;
	uint64_t attachment;
	bool served;                    /* another thread does the background */
	const char *why;
};

/* A layout of the smallest block there is; `n` tells them apart. */
struct kv_layout rig_layout(uint32_t n, uint32_t window);
/* Of another class of slots, of RIG_OTHER_SLOT_BYTES; it has the layers n to n + 7. */
struct kv_layout rig_layout_other(uint32_t n);
/* A budget with room for so many blocks of one class, and for what the arena keeps for newcomers. */
uint64_t rig_host_bytes(uint32_t slots, uint32_t slot_bytes);
struct cache_options rig_options(uint32_t slots);
/* A cache, a session over `layouts` full-attention layouts, and an attachment. Registers the thread. */
void rig_open(struct rig *r, const struct cache_options *o, uint32_t layouts);
/* The same at a time of the test's own, by which what was kept of uses is taken up. */
void rig_open_at(struct rig *r, const struct cache_options *o, uint32_t layouts, uint64_t now_us);
/* The same over layouts of the test's own. */
void rig_open_layouts(struct rig *r, const struct cache_options *o, const struct kv_layout *layouts, uint32_t count);
void rig_close(struct rig *r);
/* Another session and attachment of the same cache. */
void rig_join(struct rig *to, struct rig *from, uint32_t layouts);
/* The same over layouts of the test's own. */
void rig_join_layouts(struct rig *to, struct rig *from, const struct kv_layout *layouts, uint32_t count);
/* The same of the tenant with that number. */
void rig_join_tenant(struct rig *to, struct rig *from, uint32_t tenant, const struct kv_layout *layouts,
		     uint32_t count);
/* The attachment is that process's, so that memory is lent to it. */
void rig_watch(struct rig *r, pid_t pid);
/* A descriptor to another process, by a socket; -1 if none came. */
void rig_fd_send(int to, int fd);
int rig_fd_take(int from);

/* Key number `n`, RIG_KEY_BYTES of it. */
void rig_key(uint8_t *key, uint64_t n);
/* `count` keys from number `first` on; the caller frees bytes. */
struct cache_keys rig_keys(uint64_t first, uint32_t count);

/* The slot's block as the daemon has it mapped. */
uint8_t *rig_block(struct rig *r, const struct cache_place *p);
/* The bytes of block (key number, layout index): written, or compared. */
void rig_fill(uint8_t *block, uint64_t bytes, uint64_t n, uint32_t layout);
bool rig_matches(const uint8_t *block, uint64_t bytes, uint64_t n, uint32_t layout);
/* The same of one that was put in place with so many valid tokens: what is behind them is zeroes. */
bool rig_matches_to(const uint8_t *block, uint64_t bytes, uint64_t n, uint32_t layout, uint32_t tokens);

/* Reserve, write and commit of keys first .. first + count - 1; returns how many are stored by it. */
uint32_t rig_put(struct rig *r, uint64_t first, uint32_t count);
uint32_t rig_prefix(struct rig *r, uint64_t first, uint32_t count);
/* A lease of all, or of the prefix; places: [count * layouts]. */
enum status rig_lease(struct rig *r, uint64_t first, uint32_t count, bool all, struct cache_place *places,
		      struct cache_leased *out);
/* What the daemon does every 50 ms, chores included. */
void rig_tick(struct cache *c, uint64_t now_us);
double rig_stat(struct rig *r, const char *name, const char *labels);
/* Ends that have arrived and have not been looked at yet (daemon/block/ends.h). */
uint32_t rig_ends_arrived(const struct cache *c);

/* ---- with a disk tier ---- */

/* Folders for disks and a catalog under a new one of their own, which rig_disks_remove deletes. */
struct rig_disks {
	char root[64], folder[2][96], catalog[96];
	struct cache_disk_options disk[2];
};
/* `disks` (1 or 2) of `slots` slots each; base: a folder, NULL for TMPDIR or /tmp. */
void rig_disks_make(struct rig_disks *d, const char *base, uint32_t disks, uint32_t slots);
void rig_disks_remove(struct rig_disks *d);
/* rig_options with them; the slab is an eighth of a disk. */
struct cache_options rig_disk_options(const struct rig_disks *d, uint32_t disks, uint32_t host_slots);
/* Runs what the daemon runs in the background, until the earlier runs' blocks are taken up. */
void rig_restored(struct rig *r);
/* The same until nothing is on its way between the tiers. */
void rig_quiet(struct rig *r);
/* Puts, of a multiple of 8 blocks, that leave the spills time. */
void rig_put_slowly(struct rig *r, uint64_t first, uint32_t count);

/* Calls that wait, until they answer something else than BUSY; fails the test after a minute. */
enum status rig_lease_wait(struct rig *r, uint64_t first, uint32_t count, bool all, struct cache_place *places,
			   struct cache_leased *out);
/* The same of any keys, the longest prefix. */
enum status rig_lease_keys(struct rig *r, const struct cache_keys *k, struct cache_place *places, struct cache_leased *out);
enum status rig_flush(struct rig *r, uint64_t first, uint32_t count, enum status *statuses); /* count 0: everything */
enum status rig_delete(struct rig *r, uint64_t first, uint32_t count, enum status *statuses);
uint32_t rig_warm(struct rig *r, uint64_t first, uint32_t count);
/* Leases each of the keys by itself, compares its bytes, releases. Returns how many were there. */
uint32_t rig_read_all(struct rig *r, uint64_t first, uint32_t count);

/* Recounts everything and compares it with what the cache believes. */
void rig_check_accounting(struct cache *c);

/* Runs the suite; `name` is the binary's. */
int rig_main(const char *name, const TTest *const *tests, size_t count);

#endif
