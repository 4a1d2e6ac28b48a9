/* `s3fifo`: S3-FIFO. */
#ifndef TERRACE_EVICTION_S3FIFO_H
#define TERRACE_EVICTION_S3FIFO_H

#include "eviction/policy.h"

extern const struct policy_ops policy_s3fifo;

/* Makes a policy without ghosts: its owner says of each inserted block whether it would be one. NULL: no memory. */
struct policy *s3fifo_create_bare(void);
/* Whether the node is in the small queue of new blocks; how many nodes are; and insert with the owner's word about the
 * ghost. */
bool s3fifo_is_new(const struct policy_node *n);
uint64_t s3fifo_new(const struct policy *p);
void s3fifo_insert(struct policy *p, struct policy_node *n, const struct policy_event *e, bool again);

#endif
