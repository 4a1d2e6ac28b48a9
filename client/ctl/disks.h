/* The daemon's disks, read from its statistics. */
#ifndef TERRACE_CTL_DISKS_H
#define TERRACE_CTL_DISKS_H

#include <stdbool.h>
#include <stdint.h>

#include "terrace.pb-c.h"

struct json_t;

/* The number of the daemon's disks; disk numbers count from 0. */
uint32_t disks_count(const Terrace__V1__StatsReply *stats);

/* Whether the daemon has not used the disk since its start. */
bool disk_is_unusable(const Terrace__V1__StatsReply *stats, uint32_t disk);

/* A row for each disk: number, health, engine, blocks, bytes of slab files and of the budget, damaged blocks. */
struct json_t *disks_to_json(const Terrace__V1__StatsReply *stats);

#endif
