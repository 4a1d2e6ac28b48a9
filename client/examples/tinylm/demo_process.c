/* Both ends of the second process: the parent spawns and reads a pipe, the child (demo_second) prints one JSON object. */
#include "demo_process.h"

#include "demo.h"
#include "demo_case.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { OUTPUT_MAX = 1 << 20, WAIT_SECONDS = 120 };

/* ---- parent ------------------------------------------------------------------------------------------------------ */

static bool start(const struct options *o, const char *salt, int out_fd, pid_t *pid, struct fault *fault)
{
	char count[16], block_tokens[16], chunk[16], threads[16], temperature[32], seed[24];
	char *argv[] = { "tinylm",  "--demo-second", "--model",        (char *)o->model,      "--daemon", (char *)o->address,
			 "--salt",  (char *)salt,    "--format",       (char *)o->format.name, "-n",      count,
			 "--chunk", chunk,           "--block-tokens", block_tokens,          "--temperature", temperature,
			 "--seed",  seed,            "--device", o->cuda ? "cuda" : "cpu", o->threads ? "--threads" : NULL,         threads,    NULL };
	posix_spawn_file_actions_t actions;
	int error;

	snprintf(count, sizeof(count), "%u", o->count);
	snprintf(block_tokens, sizeof(block_tokens), "%u", o->block_tokens);
	snprintf(chunk, sizeof(chunk), "%u", o->chunk);
	snprintf(threads, sizeof(threads), "%u", o->threads);
	snprintf(temperature, sizeof(temperature), "%.9g", (double)o->temperature);
	snprintf(seed, sizeof(seed), "%" PRIu64, o->seed);
	error = posix_spawn_file_actions_init(&actions);
	if (error != 0)
		return fault_set(fault, "cannot start a second process: %s", strerror(error));
	error = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
	if (error == 0)
		error = posix_spawn(pid, "/proc/self/exe", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (error != 0)
		return fault_set(fault, "cannot start a second process: %s", strerror(error));
	return true;
}

/* Reads until the pipe closes. Returns the bytes, or -1 when time or room is up. */
static ssize_t read_all(int fd, char *buffer, size_t room)
{
	time_t end = time(NULL) + WAIT_SECONDS;
	size_t got = 0;

	while (got < room) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		time_t left = end - time(NULL);
		ssize_t n;

		if (left <= 0 || poll(&p, 1, (int)left * 1000) == 0)
			return -1;
		n = read(fd, buffer + got, room - got);
		if (n == 0)
			return (ssize_t)got;
		if (n < 0 && errno != EINTR)
			return -1;
		got += n > 0 ? (size_t)n : 0;
	}
	return -1;
}

static bool parse_reply(const char *text, size_t bytes, const struct generated *expected, struct demo_second *out,
			struct fault *fault)
{
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
	const json_t *tokens = json_object_get(root, "tokens");

	if (!json_is_array(tokens)) {
		json_decref(root);
		return fault_set(fault, "the second process said nothing that makes sense");
	}
	out->reused = (uint32_t)json_integer_value(json_object_get(root, "reused_tokens"));
	out->prefill_seconds = json_real_value(json_object_get(root, "prefill_ms")) / 1e3;
	out->same = json_array_size(tokens) == expected->count;
	for (uint32_t i = 0; i < expected->count && out->same; i++)
		out->same = json_integer_value(json_array_get(tokens, i)) == (json_int_t)expected->tokens[i];
	json_decref(root);
	return true;
}

static bool converse(const struct options *o, const char *salt, int fds[2], char *buffer, ssize_t *got, pid_t *pid,
		     struct fault *fault)
{
	int status = 0;

	if (!start(o, salt, fds[1], pid, fault))
		return false;
	close(fds[1]);
	fds[1] = -1;
	*got = read_all(fds[0], buffer, OUTPUT_MAX);
	if (*got < 0)
		kill(*pid, SIGKILL);
	while (waitpid(*pid, &status, 0) < 0 && errno == EINTR)
		;
	if (*got < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return fault_set(fault, "the second process failed");
	return true;
}

bool demo_process_run(const struct options *options, const char *salt, const struct generated *expected,
		      struct demo_second *out, struct fault *fault)
{
	char *buffer = malloc(OUTPUT_MAX);
	int fds[2] = { -1, -1 };
	ssize_t got = 0;
	pid_t pid = 0;
	bool ok;

	if (!buffer || pipe2(fds, O_CLOEXEC) != 0) {
		free(buffer);
		return fault_set(fault, "no pipe for a second process: %s", strerror(errno));
	}
	ok = converse(options, salt, fds, buffer, &got, &pid, fault) &&
	     parse_reply(buffer, (size_t)got, expected, out, fault);
	out->process = pid;
	close(fds[0]);
	if (fds[1] >= 0)
		close(fds[1]);
	free(buffer);
	return ok;
}

/* ---- child ------------------------------------------------------------------------------------------------------- */

static void print_reply(const struct generated *g)
{
	json_t *tokens = json_array(), *root;

	for (uint32_t i = 0; i < g->count; i++)
		json_array_append_new(tokens, json_integer(g->tokens[i]));
	root = json_pack("{s:i, s:f, s:o}", "reused_tokens", (int)g->stats.reused_tokens, "prefill_ms",
			 g->stats.prefill_seconds * 1e3, "tokens", tokens);
	if (root)
		json_dumpf(root, stdout, JSON_COMPACT);
	json_decref(root);
}

static bool second_run(const struct options *o, struct engine *e, struct demo_prompts *prompts, struct prefix_cache *cache,
		       struct generated *g, struct fault *fault)
{
	struct generate_options generate = { .tokens_max = o->count, .temperature = o->temperature, .seed = o->seed,
					     .block_tokens = o->block_tokens };
	struct terrace_layout layout;

	if (!engine_open(e, o->model, o->threads, o->chunk, 0, fault) || !demo_prompts_make(&e->model, prompts, fault))
		return false;
	e->forward.cuda = o->cuda;
	kvcache_layout(&e->model.config, e->model.fingerprint, o->format.k, o->format.v, o->block_tokens, &layout);
	return prefix_cache_open(cache, o->address, &layout, o->salt, fault) &&
	       generate_run(&e->forward, &o->format, cache, prompts->b, prompts->b_count, &generate, g, fault);
}

int demo_second(const struct options *options)
{
	struct demo_prompts prompts = { 0 };
	struct prefix_cache cache = { 0 };
	struct engine engine = { 0 };
	struct generated g = { 0 };
	struct fault fault;
	bool ok = second_run(options, &engine, &prompts, &cache, &g, &fault);

	if (ok)
		print_reply(&g);
	else
		fprintf(stderr, "tinylm: second process: %s\n", fault.text);
	generated_free(&g);
	prefix_cache_close(&cache);
	demo_prompts_free(&prompts);
	engine_close(&engine);
	return ok ? EXIT_OK : EXIT_FAILED;
}
