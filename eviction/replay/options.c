/* Every argument is `--name value`, but for the two flags. */
#include "eviction/replay/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/policy.h"
#include "eviction/replay/policies.h"

#define TOKEN_BYTES 34816 /* 544 KiB a block of 16 tokens */

static const char usage[] =
	"usage: terrace-replay --trace FILE [options]\n"
	"  --trace FILE           Mooncake or Qwen-Bailian JSON lines, or the text form; .xz is read as it is\n"
	"  --policy NAME,NAME     policies, `opt` (Belady's with bypass), `opt-nobypass`, or `all`; default all\n"
	"  --size SHARE,SHARE     of the cache, as shares of the trace's unique blocks; default 0.01,0.05,0.1\n"
	"  --hint end:RECALL:FALSE  tells the policy of ended sessions: of RECALL of those that ended, and of FALSE of the others\n"
	"  --recompute-growth N[:M]  attention over N tokens costs as much as the rest of the model: saved_cost is counted by that, and policies\n"
	"                         go by M, if it is given, else by N; 0, the default: all tokens cost the same (`gdsf`: 32768)\n"
	"  --count FROM:TO        counts only requests in that share of the trace; the others are run, too\n"
	"  --offline              adds lru, opt, graph, and graph with a model fitted offline, `offline-past` on the parts of the trace before\n"
	"                         and `offline-cross` on all others; and the shares of the gap and of the gain: about\n"
	"                         10 s a size for 300,000 accesses, a minute for 5 million\n"
	"  --folds N              a table for each of N parts of the trace in time, what came before being past; no other outputs\n"
	"  --json                 prints an object a policy and size instead of a table\n"
	"  --csv FILE             writes the numbers there, too\n"
	"  --svg FILE             draws hit rates over size there\n"
	"  --nodes N              N nodes serve the trace: alone, with peers, with peers that take what is dropped;\n"
	"                         and one node with the memory of all. A size is that of all, an N-th each; no --svg,\n"
	"                         --count, --folds, --offline\n"
	"  --load A:B:..          shares of the nodes in the sessions; default: equal\n"
	"  --spread WHAT          `session`, the default: a session stays on a node; or `request`: it does not\n"
	"  --room WHAT            `all`, the default; `own`: a size is a share of the blocks of a node's own requests\n"
	"  --told N               peers are told of every N-th block of a chain; default 16, as the daemon's\n"
	"  --sent WHAT            `use`, the default, as in the daemon: to send a block is a use of it; or `none`\n"
	"  --token-bytes N        of a token on the wire; default 34816 (Llama 3 8B in 4 bits)\n"
	"  --seed N               of the spread; default 1\n"
	"  --help\n";

const char *options_usage(void)
{
	return usage;
}

static bool number(const char *text, double min, double max, double *out)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		return false;
	*out = value;
	return true;
}

/* Two numbers of 0 to 1 with a colon between. */
static bool pair(const char *text, double *a, double *b)
{
	const char *colon = strchr(text, ':');
	char first[32];

	if (!colon || (size_t)(colon - text) >= sizeof(first))
		return false;
	memcpy(first, text, (size_t)(colon - text));
	first[colon - text] = '\0';
	return number(first, 0, 1, a) && number(colon + 1, 0, 1, b);
}

static bool policy_add(struct options *o, const char *name)
{
	if (o->policy_count == OPTIONS_POLICIES_MAX || strlen(name) >= OPTIONS_NAME_MAX)
		return false;
	if (!replay_policy_find(name) && strcmp(name, "opt") != 0 && strcmp(name, "opt-nobypass") != 0)
		return false;
	strcpy(o->policies[o->policy_count++], name);
	return true;
}

static bool policy_has(const struct options *o, const char *name)
{
	for (uint32_t i = 0; i < o->policy_count; i++)
		if (strcmp(o->policies[i], name) == 0)
			return true;
	return false;
}

/* Adds what --offline compares, unless it is there anyway. */
static bool offline(struct options *o)
{
	static const char names[][OPTIONS_NAME_MAX] = { "lru", "opt", "graph", OPTIONS_OFFLINE_PAST, OPTIONS_OFFLINE_CROSS };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (policy_has(o, names[i]))
			continue;
		if (o->policy_count == OPTIONS_POLICIES_MAX)
			return false;
		strcpy(o->policies[o->policy_count++], names[i]);
	}
	return true;
}

static bool policies(struct options *o, const char *text)
{
	char word[OPTIONS_NAME_MAX];

	if (strcmp(text, "all") == 0) {
		for (const struct policy_ops *const *row = replay_policy_table; *row; row++)
			if (!policy_add(o, (*row)->name))
				return false;
		return policy_add(o, "opt-nobypass") && policy_add(o, "opt");
	}
	for (;; text++) {
		size_t n = strcspn(text, ",");

		if (n >= sizeof(word))
			return false;
		memcpy(word, text, n);
		word[n] = '\0';
		if (!policy_add(o, word))
			return false;
		text += n;
		if (!*text)
			return true;
	}
}

static bool sizes(struct options *o, const char *text)
{
	char word[32];

	for (;; text++) {
		size_t n = strcspn(text, ",");

		if (n >= sizeof(word) || o->size_count == OPTIONS_SIZES_MAX)
			return false;
		memcpy(word, text, n);
		word[n] = '\0';
		if (!number(word, 1e-9, 1, &o->sizes[o->size_count++]))
			return false;
		text += n;
		if (!*text)
			return true;
	}
}

static bool hint(struct options *o, const char *text)
{
	o->hint = true;
	return strncmp(text, "end:", 4) == 0 && pair(text + 4, &o->recall, &o->false_rate);
}

/* N or N:M. */
static bool growth(struct options *o, const char *text)
{
	const char *colon = strchr(text, ':');
	char first[32];
	size_t digits = strcspn(text, ":");
	double n, m;

	if (digits >= sizeof(first))
		return false;
	memcpy(first, text, digits);
	first[digits] = '\0';
	if (!number(first, 0, UINT32_MAX, &n) || !number(colon ? colon + 1 : text, 0, UINT32_MAX, &m))
		return false;
	o->growth = (uint32_t)n;
	o->weigh = (uint32_t)m;
	return n == o->growth && m == o->weigh;
}

static bool counted(struct options *o, const char *text)
{
	return pair(text, &o->from, &o->to) && o->from < o->to;
}

static bool folds(struct options *o, const char *text)
{
	double n;

	if (!number(text, 1, OPTIONS_FOLDS_MAX, &n) || n != (uint32_t)n)
		return false;
	o->folds = (uint32_t)n;
	return true;
}

/* ---- several nodes ---- */

static bool whole(const char *text, double min, double max, uint32_t *out)
{
	double n;

	if (!number(text, min, max, &n) || n != (uint32_t)n)
		return false;
	*out = (uint32_t)n;
	return true;
}

/* A:B:.., at most NODES_MAX of them; how many must be as many as there are nodes. */
static bool load(struct options *o, const char *text)
{
	uint64_t total = 0;
	char word[32];

	for (o->loads = 0;; text++) {
		const size_t n = strcspn(text, ":");

		if (n >= sizeof(word) || o->loads == NODES_MAX)
			return false;
		memcpy(word, text, n);
		word[n] = '\0';
		if (!whole(word, 0, 1000000, &o->spread.load[o->loads]))
			return false;
		total += o->spread.load[o->loads++];
		text += n;
		if (!*text)
			return total > 0;
	}
}

/* One of two words. */
static bool either(const char *text, const char *no, const char *yes, bool *out)
{
	*out = strcmp(text, yes) == 0;
	return *out || strcmp(text, no) == 0;
}

/* As option(). */
static int nodes_option(struct options *o, const char *name, const char *value)
{
	uint32_t seed;

	if (strcmp(name, "--nodes") == 0)
		return whole(value, 1, NODES_MAX, &o->spread.nodes);
	if (strcmp(name, "--load") == 0)
		return load(o, value);
	if (strcmp(name, "--spread") == 0)
		return either(value, "session", "request", &o->spread.by_request);
	if (strcmp(name, "--room") == 0)
		return either(value, "all", "own", &o->own_room);
	if (strcmp(name, "--sent") == 0)
		return either(value, "use", "none", &o->sent_is_none);
	if (strcmp(name, "--told") == 0)
		return whole(value, 1, 1 << 20, &o->told_every);
	if (strcmp(name, "--token-bytes") == 0)
		return number(value, 1, 1e9, &o->token_bytes);
	if (strcmp(name, "--seed") == 0 && whole(value, 0, UINT32_MAX, &seed))
		return (o->spread.seed = seed, 1);
	return strcmp(name, "--seed") == 0 ? 0 : -1;
}

static const char *nodes_problem(struct options *o)
{
	if (!o->spread.nodes)
		return o->loads ? "--load is of --nodes" : NULL;
	if (o->svg || o->folds || o->offline || o->from > 0 || o->to < 1)
		return "--nodes goes with no --svg, --folds, --offline and --count";
	if (o->loads && o->loads != o->spread.nodes)
		return "--load has another number of nodes than --nodes";
	for (uint32_t i = 0; !o->loads && i < o->spread.nodes; i++)
		o->spread.load[i] = 1;
	return NULL;
}

/* 1: taken, 0: the value is wrong, -1: no such option. */
static int option(struct options *o, const char *name, const char *value)
{
	if (strcmp(name, "--trace") == 0)
		return (o->trace = value, 1);
	if (strcmp(name, "--csv") == 0)
		return (o->csv = value, 1);
	if (strcmp(name, "--svg") == 0)
		return (o->svg = value, 1);
	if (strcmp(name, "--policy") == 0)
		return (o->policy_count = 0, policies(o, value));
	if (strcmp(name, "--size") == 0)
		return (o->size_count = 0, sizes(o, value));
	if (strcmp(name, "--hint") == 0)
		return hint(o, value);
	if (strcmp(name, "--recompute-growth") == 0)
		return growth(o, value);
	if (strcmp(name, "--count") == 0)
		return counted(o, value);
	if (strcmp(name, "--folds") == 0)
		return folds(o, value);
	return nodes_option(o, name, value);
}

bool options_parse(int argc, char **argv, struct options *out, char *why, size_t why_bytes)
{
	*out = (struct options){ .to = 1, .told_every = NODES_TOLD_EVERY, .token_bytes = TOKEN_BYTES };
	out->spread.seed = 1;
	sizes(out, "0.01,0.05,0.1");
	for (int i = 1; i < argc; i++) {
		int taken;

		if (strcmp(argv[i], "--json") == 0) {
			out->json = true;
			continue;
		}
		if (strcmp(argv[i], "--offline") == 0) {
			out->offline = true;
			continue;
		}
		if (strcmp(argv[i], "--help") == 0) {
			out->help = true;
			return true;
		}
		if (i + 1 == argc) {
			snprintf(why, why_bytes, "%s: unknown, or its value is missing", argv[i]);
			return false;
		}
		taken = option(out, argv[i], argv[i + 1]);
		if (taken < 1) {
			snprintf(why, why_bytes, taken ? "%s: no such option" : "%s: cannot be %s", argv[i], argv[i + 1]);
			return false;
		}
		i++;
	}
	if (!out->policy_count && !out->offline)
		policies(out, "all");
	if (!out->trace)
		snprintf(why, why_bytes, "--trace is missing");
	else if (out->offline && !offline(out))
		snprintf(why, why_bytes, "--policy names too many");
	else if (out->folds && (out->json || out->csv || out->svg || out->offline || out->from > 0 || out->to < 1))
		snprintf(why, why_bytes, "--folds goes with no other output, no --offline and no --count");
	else if (nodes_problem(out))
		snprintf(why, why_bytes, "%s", nodes_problem(out));
	else
		return true;
	return false;
}
