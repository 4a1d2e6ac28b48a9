/* Time to the first token of a prompt whose beginning is stored: on the GPU, in host memory (brought to the GPU, or attended in place), on a
 * disk, beside computing it anew.
 *
 *     tinylm_ttft --model DIR [--tokens N] [--rounds N] [--format F] [--block-tokens N] [--terraced PATH] [--json] [--quick]
 *
 * The engine is tinylm (client/examples/tinylm) on the device that the loader finds: a real GPU, or the simulated one. The prompt is its
 * demo's document over and over, as long as asked for: positions that the model was not trained with are computed like the others, and what it
 * says there is worth little as a text, but it is the same work, and must be the same text. It is stored under a salt for each tier and round,
 * flushed, and the daemon is started anew, so that all of it is on the disk alone; Warm then brings what is to be in memory, or on the
 * GPU. Sets are measured in turns, with one session, after one set that opens the GPU. The texts must be the same in all cases, and all but the last block reused, or the exit code is 1.
 * 77: there is no GPU. The times prove nothing but on an idle machine.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/examples/tinylm/demo_text.h"
#include "client/examples/tinylm/device.h"
#include "client/examples/tinylm/engine.h"
#include "client/examples/tinylm/generate.h"
#include "client/examples/tinylm/kvdevice.h"
#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum { TOKENS = 16384, TOKENS_QUICK = 300, ROUNDS = 5, ROUNDS_QUICK = 1, ROUNDS_MAX = 32, GENERATED = 24, CHUNK = 256, RESTORE_S = 30 };
enum tier { RECOMPUTED, ON_DISK, IN_MEMORY, IN_PLACE, ON_GPU, TIERS };
enum { STORED = TIERS - ON_DISK }; /* sets a round */

static const char *const tier_names[TIERS] = { "recompute", "nvme", "host", "host_in_place", "vram" };

struct bench_options bench_options = { .rounds = ROUNDS };

struct ttft {
	const char *model;
	struct kvspec format;
	uint32_t count, block_tokens; /* tokens of the prompt, of a block */
	struct engine engine;
	struct service service;
	struct terrace_layout layout;
	struct prefix_cache cache;
	uint32_t *prompt, text_count, *text;  /* what it goes on with */
	uint8_t (*keys)[PREFIX_KEY_BYTES];
	double ms[TIERS][ROUNDS_MAX];
	unsigned done[TIERS];
	uint32_t reused[TIERS];
};

static void must(bool ok, const struct fault *fault)
{
	if (!ok)
		bench_die("%s", fault->text);
}

/* ---- the prompt --------------------------------------------------------------------------------------------------- */

static void prompt_make(struct ttft *t)
{
	struct fault fault;
	uint32_t *ids;
	size_t n;

	must(tokenizer_encode(&t->engine.model.tokenizer, demo_document, strlen(demo_document), &ids, &n, &fault), &fault);
	t->prompt = malloc(t->count * sizeof(*t->prompt));
	t->keys = calloc(t->count, sizeof(*t->keys));
	if (!t->prompt || !t->keys)
		bench_die("out of memory");
	for (uint32_t i = 0; i < t->count; i++)
		t->prompt[i] = i ? ids[(i - 1) % n] : t->engine.model.config.bos;
	free(ids);
}

/* Blocks that a prompt can have from the cache: the last token's logits are nobody's. */
static uint32_t reusable(const struct ttft *t)
{
	return (t->count - 1) / t->block_tokens;
}

static struct terrace_keys keys_of(struct ttft *t, uint32_t set)
{
	snprintf(t->cache.salt, sizeof(t->cache.salt), "set %u", set);
	prefix_cache_keys(&t->cache, t->prompt, 0, reusable(t), t->keys);
	return (struct terrace_keys){ t->keys[0], reusable(t), PREFIX_KEY_BYTES };
}

/* ---- one prompt --------------------------------------------------------------------------------------------------- */

static void text_check(struct ttft *t, const struct generated *g)
{
	if (!t->text) {
		t->text = malloc(GENERATED * sizeof(*t->text));
		if (!t->text)
			bench_die("out of memory");
		t->text_count = g->count;
		memcpy(t->text, g->tokens, g->count * sizeof(*t->text));
	}
	if (g->count != t->text_count || memcmp(g->tokens, t->text, g->count * sizeof(*t->text)) != 0)
		bench_die("ttft: another text");
}

/* Milliseconds from the prompt to its logits. cache NULL: computed. */
static double generate(struct ttft *t, struct prefix_cache *cache, uint32_t *reused)
{
	const struct generate_options o = { .tokens_max = GENERATED, .seed = 1, .block_tokens = t->block_tokens };
	struct generated g;
	struct fault fault;
	double ms;

	must(generate_run(&t->engine.forward, &t->format, cache, t->prompt, t->count, &o, &g, &fault), &fault);
	if (cache && cache->gone)
		bench_die("ttft: %s", cache->note.text);
	text_check(t, &g);
	*reused = g.stats.reused_tokens;
	ms = g.stats.prefill_seconds * 1e3;
	generated_free(&g);
	return ms;
}

static void measure(struct ttft *t, enum tier tier)
{
	double ms = generate(t, tier == RECOMPUTED ? NULL : &t->cache, &t->reused[tier]);

	t->ms[tier][t->done[tier]++] = ms;
	if (t->reused[tier] != (tier == RECOMPUTED ? 0 : reusable(t) * t->block_tokens))
		bench_die("ttft: %s: %u tokens reused of %u", tier_names[tier], t->reused[tier], t->count);
}

/* ---- where the prefix is ------------------------------------------------------------------------------------------ */

static bool all_are(struct ttft *t, const struct terrace_keys *keys, enum terrace_state state)
{
	uint8_t *states = malloc(keys->count);
	uint32_t prefix = 0;
	bool are;

	if (!states)
		bench_die("out of memory");
	service_check(terrace_lookup(t->cache.session, keys, 0, &prefix, states), "lookup");
	are = prefix == keys->count;
	for (uint32_t i = 0; i < prefix && are; i++)
		are = states[i] == state;
	free(states);
	return are;
}

static void bring(struct ttft *t, const struct terrace_keys *keys, int32_t gpu)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;
	uint32_t blocks = 0;

	o.wait = true;
	o.gpu = gpu;
	service_check(terrace_warm_with(t->cache.session, keys, &o, 0, &blocks), "warm");
	if (blocks != keys->count)
		bench_die("ttft: %u of %u blocks were warmed", blocks, keys->count);
}

/* What is on the GPU has no address here. */
static void stayed_in_memory(struct ttft *t, const struct terrace_keys *keys)
{
	struct terrace_lease *lease;

	service_check(prefix_cache_lease(&t->cache, keys, TERRACE_LEASE_ALL, &lease), "lease");
	for (uint32_t i = 0; i < keys->count; i++) {
		if (!terrace_lease_block(lease, i, 0))
			bench_die("ttft: block %u was to be attended in memory, and is on the GPU", i);
	}
	terrace_release(lease);
}

static void measure_set(struct ttft *t, uint32_t set, enum tier tier)
{
	struct terrace_keys keys = keys_of(t, set);

	if (!all_are(t, &keys, TERRACE_STATE_DISK))
		bench_die("ttft: set %u is not on the disk alone", set);
	if (tier != ON_DISK)
		bring(t, &keys, -1);
	if (tier == ON_GPU)
		bring(t, &keys, t->cache.gpu);
	t->cache.in_place = tier == IN_PLACE;
	measure(t, tier);
	if (tier == IN_PLACE)
		stayed_in_memory(t, &keys);
	t->cache.in_place = false;
}

/* ---- the daemon --------------------------------------------------------------------------------------------------- */

static void open_daemon(struct ttft *t)
{
	char disk[128];
	struct fault fault;

	snprintf(disk, sizeof(disk), "%s/disk:2GiB", bench_options.folder);
	service_start_with(&t->service, "512MiB", (const char *const[]){ "--disks", disk, "--gpus", "all", "--gpu-bytes", "512MiB",
									 "--prefetch-bytes", "0", NULL });
	must(prefix_cache_open(&t->cache, t->service.address, &t->layout, "", &fault), &fault);
	prefix_cache_use_gpu(&t->cache);
	if (t->cache.gpu < 0)
		bench_die("ttft: the daemon lends no GPU");
}

static void close_daemon(struct ttft *t)
{
	prefix_cache_close(&t->cache);
	service_stop(&t->service);
}

static void store(struct ttft *t, uint32_t sets)
{
	open_daemon(t);
	for (uint32_t s = 0; s < sets; s++) {
		struct terrace_keys keys = keys_of(t, s);
		uint32_t reused;

		generate(t, &t->cache, &reused);
		if (reused)
			bench_die("ttft: a set that was there before");
		service_check(terrace_flush(t->cache.session, &keys, 60 * 1000 * 1000, NULL), "flush");
	}
	close_daemon(t);
}

static void await_restored(struct ttft *t, uint32_t sets)
{
	const struct timespec pause = { 0, 10 * 1000 * 1000 };
	uint64_t until = bench_now_ns() + RESTORE_S * 1000000000ull;

	for (uint32_t s = 0; s < sets; s++) {
		struct terrace_keys keys = keys_of(t, s);

		while (!all_are(t, &keys, TERRACE_STATE_DISK)) {
			if (bench_now_ns() > until)
				bench_die("ttft: set %u did not come back with the daemon", s);
			nanosleep(&pause, NULL);
		}
	}
}

/* Set 0 opens the GPU; then a set for each place a round, whose tiers change places. */
static void run(struct ttft *t)
{
	const uint32_t sets = STORED * bench_options.rounds + 1;

	store(t, sets);
	open_daemon(t);
	await_restored(t, sets);
	for (int twice = 0; twice < 2; twice++) {
		uint32_t reused;

		keys_of(t, 0);
		generate(t, &t->cache, &reused);
	}
	for (unsigned r = 0; r < bench_options.rounds; r++) {
		measure(t, RECOMPUTED);
		for (uint32_t i = 0; i < STORED; i++)
			measure_set(t, 1 + STORED * r + i, ON_DISK + (r + i) % STORED);
	}
	close_daemon(t);
}

/* ---- words -------------------------------------------------------------------------------------------------------- */

static uint64_t text_hash(const struct ttft *t)
{
	uint64_t x = 0xcbf29ce484222325u;

	for (uint32_t i = 0; i < t->text_count; i++)
		x = (x ^ t->text[i]) * 0x100000001b3u;
	return x;
}

/* What had to cross the bus. */
static double came_gb(const struct ttft *t, int tier)
{
	if (tier != ON_DISK && tier != IN_MEMORY && tier != IN_PLACE)
		return 0;
	return (double)(t->reused[tier] / t->block_tokens * terrace_block_bytes(&t->layout)) * 1e-9;
}

static void print_row(struct ttft *t, int tier, double base)
{
	const double ms = bench_median(t->ms[tier], t->done[tier]), gb = came_gb(t, tier);

	if (bench_options.json)
		printf("{\"bench\":\"ttft\",\"engine\":\"tinylm\",\"tier\":\"%s\",\"tokens\":%u,\"trained_tokens\":%u,\"reused\":%u,\"ms\":%.3f,"
		       "\"of_recompute\":%.4f,\"gb\":%.5f,\"gb_s\":%.3f,\"rounds\":%u,\"format\":\"%s\",\"text\":\"%016" PRIx64 "\"}\n",
		       tier_names[tier], t->count, t->engine.model.config.positions_max, t->reused[tier], ms, ms / base, gb, gb / ms * 1e3,
		       t->done[tier], t->format.name, text_hash(t));
	else
		printf("%-13s %8u %9.2f %11.3f %9.2f  %016" PRIx64 "\n", tier_names[tier], t->reused[tier], ms, ms / base, gb / ms * 1e3,
		       text_hash(t));
}

static void print_rows(struct ttft *t)
{
	double base = bench_median(t->ms[RECOMPUTED], t->done[RECOMPUTED]);

	if (!bench_options.json)
		printf("tinylm, %u tokens (it was trained with %u), packed as %s, blocks of %u\n%-13s %8s %9s %11s %9s  %s\n",
		       t->count, t->engine.model.config.positions_max, t->format.name, t->block_tokens, "prefix from", "reused",
		       "ms", "of compute", "GB/s", "text");
	for (int i = 0; i < TIERS; i++)
		print_row(t, i, base);
}

static int usage(FILE *to)
{
	fprintf(to, "usage: tinylm_ttft --model DIR [--tokens N] [--rounds N] [--format F] [--block-tokens N] [--terraced PATH] [--json] "
		    "[--quick]\n");
	return to == stderr ? 2 : 0;
}

static uint32_t number(const char *text, uint32_t least, uint32_t most)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (*end || n < least || n > most) {
		fprintf(stderr, "tinylm_ttft: %s is not a number from %u to %u\n", text, least, most);
		exit(2);
	}
	return (uint32_t)n;
}

/* -1: go on; else the exit code. */
static int parse(struct ttft *t, int argc, char **argv)
{
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' }, { "tokens", required_argument, NULL, 'n' },
		{ "rounds", required_argument, NULL, 'r' }, { "format", required_argument, NULL, 'f' },
		{ "block-tokens", required_argument, NULL, 'b' }, { "terraced", required_argument, NULL, 't' },
		{ "json", no_argument, NULL, 'j' }, { "quick", no_argument, NULL, 'q' }, { "help", no_argument, NULL, 'h' }, { 0 },
	};
	const char *format = "tq4";
	struct fault fault;
	int c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case 'm': t->model = optarg; break;
		case 'n': t->count = number(optarg, 34, 1 << 20); break;
		case 'r': bench_options.rounds = number(optarg, 1, ROUNDS_MAX); break;
		case 'f': format = optarg; break;
		case 'b': t->block_tokens = number(optarg, 16, 256); break;
		case 't': bench_options.terraced = optarg; break;
		case 'j': bench_options.json = true; break;
		case 'q': t->count = TOKENS_QUICK; bench_options.rounds = ROUNDS_QUICK; break;
		case 'h': return usage(stdout);
		default: return usage(stderr);
		}
	}
	if (!t->model || optind != argc)
		return usage(stderr);
	if (kvspec_parse(format, &t->format, &fault) && t->format.packed)
		return -1;
	fprintf(stderr, "tinylm_ttft: %s is no packed format\n", format);
	return 2;
}

/* A chunk is as long as the GPU takes it with this context. */
static void open_engine(struct ttft *t)
{
	const uint32_t context = t->count + GENERATED;
	const struct terrace_layout blocks = { .block_tokens = t->block_tokens };
	const uint32_t most = kvdevice_rows_max(&blocks, context);
	struct fault fault;

	must(engine_open(&t->engine, t->model, 0, most < CHUNK ? most : CHUNK, context, &fault), &fault);
	t->engine.forward.cuda = true;
	kvcache_layout(&t->engine.model.config, t->engine.model.fingerprint, t->format.k, t->format.v, t->block_tokens, &t->layout);
}

int main(int argc, char **argv)
{
	struct ttft t = { .count = TOKENS, .block_tokens = 16 };
	struct fault fault;
	int code = parse(&t, argc, argv);

	if (code >= 0)
		return code;
	if (!bench_options.terraced)
		bench_options.terraced = "terraced";
	if (!device_load(&fault)) {
		fprintf(stderr, "tinylm_ttft: skipped, %s\n", fault.text);
		return 77;
	}
	bench_folder_make();
	open_engine(&t);
	prompt_make(&t);
	run(&t);
	print_rows(&t);
	engine_close(&t.engine);
	free(t.prompt);
	free(t.keys);
	free(t.text);
	return 0;
}
