/* terracectl stat. With --watch it keeps the values of the previous round, and prints the increase of counters a
 * second.
 */
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/values.h"
#include "client/value/clock.h"
#include "client/ctl/daemon.h"
#include "client/ctl/disks.h"
#include "client/ctl/output.h"
#include "terrace.pb-c.h"

enum { OPTION_WATCH, OPTION_COUNT, OPTION_DESCRIBE };

struct sample {
	char *name; /* and labels */
	double value;
};

struct watch {
	struct sample *samples;
	size_t count;
	uint64_t taken_us; /* 0: no round before */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

static void full_name(const Terrace__V1__Stat *stat, char *out, size_t bytes)
{
	snprintf(out, bytes, *stat->labels ? "%s{%s}" : "%s", stat->name, stat->labels);
}

static bool matches(const struct ctl_args *args, const char *name)
{
	for (int i = 0; i < args->word_count; i++) {
		const char *pattern = args->words[i];

		if (strpbrk(pattern, "*?[") ? fnmatch(pattern, name, 0) == 0 : strstr(name, pattern) != NULL)
			return true;
	}
	return args->word_count == 0;
}

static void watch_forget(struct watch *w)
{
	for (size_t i = 0; i < w->count; i++)
		free(w->samples[i].name);
	free(w->samples);
	*w = (struct watch){0};
}

static const struct sample *watch_find(const struct watch *w, const char *name)
{
	for (size_t i = 0; i < w->count; i++)
		if (!strcmp(w->samples[i].name, name))
			return &w->samples[i];
	return NULL;
}

/* Keeps the round's values, from which the next round shows rates. Without memory the next round shows none. */
static void watch_keep(struct watch *w, const Terrace__V1__StatsReply *reply, uint64_t now_us)
{
	char name[512];

	watch_forget(w);
	w->samples = calloc(reply->n_stats ? reply->n_stats : 1, sizeof(*w->samples));
	for (size_t i = 0; w->samples && i < reply->n_stats; i++) {
		full_name(reply->stats[i], name, sizeof(name));
		w->samples[w->count].value = reply->stats[i]->value;
		w->samples[w->count].name = strdup(name);
		if (!w->samples[w->count].name)
			break;
		w->count++;
	}
	w->taken_us = now_us;
}

static struct json_t *row_of(const Terrace__V1__Stat *stat, const char *name, const struct ctl_args *args,
			     const struct watch *w, uint64_t now_us)
{
	const struct sample *before = stat->counter && w->taken_us ? watch_find(w, name) : NULL;
	struct json_t *row = out_object();

	if (args->json) {
		out_put_text(row, "name", stat->name);
		out_put_text(row, "labels", stat->labels);
	} else {
		out_put_text(row, "name", name);
	}
	out_put_number(row, "value", stat->value);
	if (args->value[OPTION_WATCH] && before)
		out_put_number(row, "per_second",
			       (stat->value - before->value) * 1e6 / (double)(now_us - w->taken_us));
	else if (args->value[OPTION_WATCH] && !args->json) /* a table needs the column in its first row */
		out_put_text(row, "per_second", "");
	if (args->json)
		out_put_text(row, "type", stat->counter ? "counter" : "gauge");
	if (args->json || args->value[OPTION_DESCRIBE])
		out_put_text(row, "help", stat->help);
	return row;
}

/* One round: asks the daemon, prints, and keeps the values for the next round. Long because text and JSON differ in
 * what they contain. */
static int print_round(const struct ctl_args *args, struct ctl_daemon *d, struct watch *w)
{
	Terrace__V1__StatsRequest request = TERRACE__V1__STATS_REQUEST__INIT;
	Terrace__V1__StatsReply *reply;
	struct json_t *tree, *rows, *disks;
	uint64_t now_us;
	char name[512];
	size_t shown = 0;
	int code = ctl_daemon_call(d, CLIENT_ADMIN_STATS, &request.base,
				   &terrace__v1__stats_reply__descriptor, args->timeout_us, &reply);

	if (code)
		return code;
	now_us = client_now_us();
	rows = out_array();
	for (size_t i = 0; i < reply->n_stats; i++) {
		full_name(reply->stats[i], name, sizeof(name));
		if (!matches(args, name))
			continue;
		out_append(rows, row_of(reply->stats[i], name, args, w, now_us));
		shown++;
	}
	disks = args->word_count == 0 && disks_count(reply) ? disks_to_json(reply) : NULL;
	tree = rows;
	if (args->json) {
		tree = out_object();
		out_put_id(tree, "epoch", reply->epoch);
		out_put_text(tree, "state", reply->state);
		out_put_text(tree, "version", reply->version);
		out_put_uint(tree, "uptime_ms", reply->uptime_ms);
		out_put(tree, "stats", rows);
		if (disks)
			out_put(tree, "disks", disks);
	}
	if (args->value[OPTION_WATCH])
		watch_keep(w, reply, now_us);
	if (!shown && !args->json)
		ctl_failed_with(CTL_NO, "stat: no statistic matches '%s': 'terracectl stat' prints all", args->words[0]);
	if (!out_print(tree, args->json, args->value[OPTION_WATCH] != NULL))
		return CTL_FAILED;
	if (disks && !args->json) {
		putchar('\n');
		if (!out_print(disks, false, false))
			return CTL_FAILED;
	}
	return shown ? CTL_OK : CTL_NO;
}

static void pause_us(uint64_t us)
{
	struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

	nanosleep(&t, NULL); /* a signal ends it early */
}

/* Prints rounds. rounds 0: until interrupted. */
static int print_rounds(const struct ctl_args *args, struct ctl_daemon *d, uint64_t every_us, uint64_t rounds)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct watch w = {0};
	int code = CTL_OK;

	if (every_us) {
		sigaction(SIGINT, &action, NULL);
		sigaction(SIGTERM, &action, NULL);
	}
	for (uint64_t i = 0; code == CTL_OK && !interrupted && (!rounds || i < rounds); i++) {
		if (i) {
			pause_us(every_us);
			if (interrupted)
				break;
			if (!args->json)
				putchar('\n');
		}
		code = print_round(args, d, &w);
	}
	watch_forget(&w);
	return code;
}

int ctl_run_stat(const struct ctl_args *args)
{
	const char *watch = args->value[OPTION_WATCH], *count = args->value[OPTION_COUNT];
	uint64_t every_us = 0, rounds = watch ? 0 : 1;
	struct ctl_daemon d;
	int code;

	if (watch && !ctl_parse_seconds(watch, &every_us))
		return ctl_usage(args->command, "stat: --watch %s: not a number of seconds above 0, at most 86400", watch);
	if (count && !watch)
		return ctl_usage(args->command, "stat: --count needs --watch: without it there is one round");
	if (count && (!ctl_parse_uint(count, UINT32_MAX, &rounds) || !rounds))
		return ctl_usage(args->command, "stat: --count %s: not a number above 0", count);
	code = ctl_daemon_open(args, &d);
	if (!code)
		code = print_rounds(args, &d, every_us, rounds);
	ctl_daemon_close(&d);
	return code;
}
