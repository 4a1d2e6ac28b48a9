/* `s3fifo`: S3-FIFO. */
#ifndef TERRACE_EVICTION_S3FIFO_H
#define TERRACE_EVICTION_S3FIFO_H

#include "eviction/policy.h"

extern const struct policy_ops policy_s3fifo;

/* One that remembers nothing of what had gone: the owner says of each block whether it is back again soon. NULL: no memory. */
struct policy *s3fifo_create_bare(void);
/* How many are new, of those that are in. */
bool s3fifo_is_new(const struct policy_node *n);
uint64_t s3fifo_new(const struct policy *p);
void s3fifo_insert(struct policy *p, struct policy_node *n, const struct policy_event *e, bool again);

#endif
