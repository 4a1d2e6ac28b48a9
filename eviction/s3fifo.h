/* `s3fifo`: S3-FIFO. */
#ifndef TERRACE_EVICTION_S3FIFO_H
#define TERRACE_EVICTION_S3FIFO_H

#include "eviction/policy.h"

extern const struct policy_ops policy_s3fifo;

#endif
