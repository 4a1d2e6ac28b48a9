/* A digest of what one holder has told one owner: names in buckets, a sum and a count for each. The holder makes it of
 * what it believes the owner to have, the owner of what it has of that holder. Buckets that differ are sent whole,
 * which brings what the owner lacks and takes away what the holder has no more (table.h, outbox.h).
 *
 * Pure functions on the caller's struct: any thread. */
#ifndef TERRACE_DAEMON_DIRECTORY_DIGEST_H
#define TERRACE_DAEMON_DIRECTORY_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/directory/name.h"

enum {
	DIGEST_BUCKETS_MAX = 1024,   /* a power of two, as all counts of buckets */
	DIGEST_NAMES_A_BUCKET = 16,  /* about; so a digest costs less than a byte a name, and a repair few names */
};

struct digest {
	uint32_t buckets;            /* 1 .. DIGEST_BUCKETS_MAX */
	uint32_t total;              /* names */
	uint64_t sum[DIGEST_BUCKETS_MAX];   /* the names' hashes, by exclusive or; as all below: the first `buckets` */
	uint32_t count[DIGEST_BUCKETS_MAX];
};

/* A set of buckets, a bit each. */
struct digest_set {
	uint32_t buckets;
	uint64_t bits[DIGEST_BUCKETS_MAX / 64];
};

/* How many buckets suit so many names. */
uint32_t digest_buckets_for(uint32_t names);
/* False: not a count of buckets that there can be (of a message from outside). */
bool digest_buckets_valid(uint32_t buckets);

/* Empties it. */
void digest_begin(struct digest *d, uint32_t buckets);
/* A name is added once. */
void digest_add(struct digest *d, const struct public_name *name);

/* The bucket of a name among so many. */
uint32_t digest_bucket(const struct public_name *name, uint32_t buckets);

/* Finds the buckets in which two digests of as many buckets differ, and returns how many. */
uint32_t digest_compare(const struct digest *a, const struct digest *b, struct digest_set *out);

bool digest_set_has(const struct digest_set *s, const struct public_name *name);
bool digest_set_empty(const struct digest_set *s);

#endif
