/* See disks.h. A disk's statistics have the label disk=N, and some of them another word. */
#include "client/ctl/disks.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/output.h"

/* The statistic of that name and disk; NULL: there is none. */
static const Terrace__V1__Stat *find(const Terrace__V1__StatsReply *stats, const char *name, uint32_t disk)
{
	char label[24];
	size_t n = (size_t)snprintf(label, sizeof(label), "disk=%u", disk);

	for (size_t i = 0; i < stats->n_stats; i++) {
		const char *labels = stats->stats[i]->labels;

		if (!strcmp(stats->stats[i]->name, name) && !strncmp(labels, label, n) && (labels[n] == ',' || !labels[n]))
			return stats->stats[i];
	}
	return NULL;
}

/* The rest of the statistic's labels behind `label`; "": it has no such label. */
static const char *word(const Terrace__V1__Stat *stat, const char *label)
{
	const char *at = stat ? strstr(stat->labels, label) : NULL;

	return at ? at + strlen(label) : "";
}

static uint64_t number(const Terrace__V1__StatsReply *stats, const char *name, uint32_t disk)
{
	const Terrace__V1__Stat *stat = find(stats, name, disk);

	return stat && stat->value > 0 && stat->value < 1e19 ? (uint64_t)stat->value : 0;
}

uint32_t disks_count(const Terrace__V1__StatsReply *stats)
{
	uint32_t n = 0;

	while (find(stats, "terrace_disk_health_info", n))
		n++;
	return n;
}

bool disk_is_unusable(const Terrace__V1__StatsReply *stats, uint32_t disk)
{
	return !strcmp(word(find(stats, "terrace_disk_health_info", disk), "health="), "unusable");
}

struct json_t *disks_to_json(const Terrace__V1__StatsReply *stats)
{
	struct json_t *rows = out_array();
	const uint32_t n = disks_count(stats);

	for (uint32_t i = 0; i < n; i++) {
		struct json_t *row = out_object();

		out_put_uint(row, "disk", i);
		out_put_text(row, "health", word(find(stats, "terrace_disk_health_info", i), "health="));
		out_put_text(row, "engine", word(find(stats, "terrace_disk_engine_info", i), "engine="));
		out_put_uint(row, "blocks", number(stats, "terrace_disk_blocks", i));
		out_put_uint(row, "used_bytes", number(stats, "terrace_disk_slab_bytes", i));
		out_put_uint(row, "budget_bytes", number(stats, "terrace_disk_budget_bytes", i));
		out_put_uint(row, "corrupt", number(stats, "terrace_disk_corrupt_total", i));
		out_append(rows, row);
	}
	return rows;
}
