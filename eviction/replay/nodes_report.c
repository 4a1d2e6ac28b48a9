/* A row is a policy, a size, and how the nodes work together. */
#include "eviction/replay/nodes_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/replay/policies.h"

enum { ONE = NODES_SPILL + 1, MODES };
static const char *const mode_name[MODES] = { "lone", "peers", "spill", "one" };

struct nodes_row {
	const char *policy;
	double size;
	uint32_t mode;
	uint64_t capacity;           /* blocks of all nodes */
	struct nodes_result result;
};

struct runs {
	const struct trace *trace;
	const struct options *options;
	uint8_t *node_of;            /* [requests] */
	uint32_t sessions, rows;
	uint64_t unique[NODES_MAX];  /* blocks of each node's requests */
	uint64_t tokens[NODES_MAX];  /* of each node's prompts */
	struct nodes_row row[OPTIONS_POLICIES_MAX * OPTIONS_SIZES_MAX * MODES];
};

static bool is_opt(const char *policy)
{
	return strncmp(policy, "opt", 3) == 0;
}

static const char *spread_name(const struct options *o)
{
	return o->spread.by_request ? "request" : "session";
}

/* The blocks' share of all tokens. */
static double percent(const struct runs *x, const struct nodes_result *r, uint64_t blocks)
{
	return r->all.tokens ? 100.0 * (double)(blocks * x->trace->block_tokens) / (double)r->all.tokens : 0;
}

static double gib(const struct runs *x, uint64_t blocks)
{
	return (double)blocks * x->trace->block_tokens * x->options->token_bytes / (1 << 30);
}

/* ---- the runs ---- */

static void capacities(const struct runs *x, double size, struct nodes_options *out)
{
	for (uint32_t i = 0; i < out->nodes; i++) {
		const double of = x->options->own_room ? (double)x->unique[i] : (double)x->trace->unique / out->nodes;
		const uint64_t blocks = (uint64_t)(size * of + 0.5);

		out->capacity[i] = blocks ? blocks : 1;
	}
}

static enum status run(const struct runs *x, struct nodes_row *row)
{
	const struct options *o = x->options;
	struct nodes_options n = { .nodes = o->spread.nodes, .mode = row->mode, .sent_is_use = !o->sent_is_none,
				   .told_every = o->told_every, .told_age_us = NODES_TOLD_AGE_US,
				   .growth = o->growth, .weigh = o->weigh };
	struct replay_options r = { .growth = o->growth, .weigh = o->weigh };

	capacities(x, row->size, &n);
	for (uint32_t i = 0; i < n.nodes; i++)
		r.capacity += n.capacity[i];
	row->capacity = r.capacity;
	if (is_opt(row->policy))
		return replay_opt(x->trace, strcmp(row->policy, "opt") == 0, &r, &row->result.all);
	if (row->mode == ONE)
		return replay_run(x->trace, replay_policy_find(row->policy), &r, &row->result.all);
	return nodes_run(x->trace, x->node_of, replay_policy_find(row->policy), &n, &row->result);
}

static enum status run_all(struct runs *x)
{
	const struct options *o = x->options;

	for (uint32_t p = 0; p < o->policy_count; p++)
		for (uint32_t s = 0; s < o->size_count; s++)
			for (uint32_t mode = is_opt(o->policies[p]) ? ONE : 0; mode < MODES; mode++) {
				struct nodes_row *row = &x->row[x->rows++];
				enum status status;

				*row = (struct nodes_row){ o->policies[p], o->sizes[s], .mode = mode };
				status = run(x, row);
				if (status)
					return status;
			}
	return STATUS_OK;
}

static enum status spread(struct runs *x)
{
	const struct trace *t = x->trace;
	enum status s = nodes_spread(t, &x->options->spread, x->node_of, &x->sessions);

	for (uint32_t i = 0; !s && i < t->request_count; i++)
		x->tokens[x->node_of[i]] += t->requests[i].tokens;
	return s ? s : nodes_unique(t, x->node_of, x->unique);
}

/* ---- the figures ---- */

static void loads(FILE *f, const struct options *o)
{
	for (uint32_t i = 0; i < o->spread.nodes; i++)
		fprintf(f, i ? ":%u" : "%u", o->spread.load[i]);
}

static void table(FILE *f, const struct runs *x)
{
	const struct options *o = x->options;
	uint64_t tokens = 0;

	for (uint32_t i = 0; i < o->spread.nodes; i++)
		tokens += x->tokens[i];
	fprintf(f, "%u nodes, %u sessions by %s, told of every %u: %% of the tokens, blocks of its own:",
		o->spread.nodes, x->sessions, spread_name(o), o->told_every);
	for (uint32_t i = 0; i < o->spread.nodes; i++)
		fprintf(f, " %.1f, %llu;", tokens ? 100.0 * (double)x->tokens[i] / (double)tokens : 0,
			(unsigned long long)x->unique[i]);
	fprintf(f, "\n%-14s %8s %-6s %9s %9s %9s %9s %9s\n", "policy", "size", "nodes", "blocks", "hit, %", "fetched",
		"GiB", "spilled");
	for (uint32_t i = 0; i < x->rows; i++) {
		const struct nodes_row *r = &x->row[i];
		const struct nodes_result *n = &r->result;

		fprintf(f, "%-14s %6.3g %% %-6s %9llu %9.2f %9.2f %9.0f %9.0f\n", r->policy, 100 * r->size,
			mode_name[r->mode], (unsigned long long)r->capacity, replay_hit_tokens(&n->all),
			percent(x, n, n->fetched), gib(x, n->fetched), gib(x, n->spilled));
	}
}

static void csv(FILE *f, const struct runs *x)
{
	const struct options *o = x->options;

	fprintf(f, "policy,size,nodes,spread,load,room,told,sent,mode,capacity,hit_tokens,fetched_tokens,fetched_gib,"
		   "spilled_gib,evicted,refused,saved_cost\n");
	for (uint32_t i = 0; i < x->rows; i++) {
		const struct nodes_row *r = &x->row[i];
		const struct nodes_result *n = &r->result;

		fprintf(f, "%s,%.9g,%u,%s,", r->policy, r->size, o->spread.nodes, spread_name(o));
		loads(f, o);
		fprintf(f, ",%s,%u,%s,", o->own_room ? "own" : "all", o->told_every, o->sent_is_none ? "none" : "use");
		fprintf(f, "%s,%llu,%.4f,%.4f,%.1f,%.1f,%llu,%llu,%.4f\n", mode_name[r->mode],
			(unsigned long long)r->capacity, replay_hit_tokens(&n->all), percent(x, n, n->fetched),
			gib(x, n->fetched), gib(x, n->spilled), (unsigned long long)n->all.evicted,
			(unsigned long long)n->all.refused, replay_saved_cost(&n->all));
	}
}

static void json(FILE *f, const struct runs *x)
{
	for (uint32_t i = 0; i < x->rows; i++) {
		const struct nodes_row *r = &x->row[i];
		const struct nodes_result *n = &r->result;

		fprintf(f, "{\"policy\": \"%s\", \"size\": %.9g, \"mode\": \"%s\", \"capacity\": %llu, ", r->policy,
			r->size, mode_name[r->mode], (unsigned long long)r->capacity);
		fprintf(f, "\"hit_tokens\": %.4f, \"fetched_tokens\": %.4f, ", replay_hit_tokens(&n->all),
			percent(x, n, n->fetched));
		fprintf(f, "\"fetched_gib\": %.1f, \"spilled_gib\": %.1f}\n", gib(x, n->fetched), gib(x, n->spilled));
	}
}

static int print(const struct runs *x)
{
	const char *path = x->options->csv;
	FILE *f = path ? fopen(path, "w") : NULL;
	int broken;

	if (x->options->json)
		json(stdout, x);
	else
		table(stdout, x);
	if (f)
		csv(f, x);
	broken = f ? ferror(f) : 0;
	if (path && (!f || fclose(f) || broken)) {
		fprintf(stderr, "terrace-replay: %s: %s\n", path, strerror(errno));
		return 1;
	}
	return 0;
}

int nodes_report(const struct trace *t, const struct options *o)
{
	struct runs *x = calloc(1, sizeof(*x));
	int code = 1;

	if (x) {
		x->trace = t;
		x->options = o;
		x->node_of = malloc((uint64_t)t->request_count + 1);
	}
	if (!x || !x->node_of || spread(x) || run_all(x))
		fprintf(stderr, "terrace-replay: no memory\n");
	else
		code = print(x);
	if (x)
		free(x->node_of);
	free(x);
	return code;
}
