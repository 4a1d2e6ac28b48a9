/* Memory as a tier: its table for block/tier.h. */
#ifndef TERRACE_DAEMON_MEMORY_TIER_H
#define TERRACE_DAEMON_MEMORY_TIER_H

extern const struct tier_ops memory_tier;

#endif
