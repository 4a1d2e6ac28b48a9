/* tinylm against a live daemon: the demo holds; a second turn reuses the first one's generated tail; and a daemon that dies, at
 * any moment, costs nothing but time. Each test starts a terraced of its own in a temporary folder. */
#include "client/examples/tinylm/engine.h"
#include "client/examples/tinylm/generate.h"

#include <check.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef TERRACE_TESTS_SMALL
#define DEMO_SIZE "--formats tq4 -n 4 --demo-windows 1 --window-tokens 48"
#else
#define DEMO_SIZE "--formats fp8/tq4,tq2 -n 24 --demo-windows 1"
#endif

enum { BLOCK = 16 };

static const char prompt_text[] =
	"The configuration file has one option in a line. Empty lines and lines that start with a '#' character are ignored. "
	"If the file is changed while the daemon is running, the daemon must be told to read it again, with the reload "
	"command or the SIGHUP signal. The following options are available:";

static char folder[64], address[96];
static pid_t daemon_pid;

static void start_daemon(void)
{
	char socket[96], data[96], log[96];

	strcpy(folder, "/tmp/tinylm-demo-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(address, sizeof(address), "unix:%s/t.sock", folder);
	snprintf(socket, sizeof(socket), "%s/t.sock", folder);
	snprintf(data, sizeof(data), "%s/data", folder);
	snprintf(log, sizeof(log), "%s/log", folder);
	daemon_pid = fork();
	ck_assert_int_ge(daemon_pid, 0);
	if (daemon_pid == 0) {
		int fd;

		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no daemon behind */
		fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
		execl(TERRACED, "terraced", "--data-dir", data, "--socket", socket, (char *)NULL);
		_exit(127);
	}
}

static void end_daemon(int signal_number)
{
	int status;

	if (daemon_pid <= 0)
		return;
	kill(daemon_pid, signal_number);
	ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
	daemon_pid = 0;
	if (signal_number == SIGTERM)
		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void remove_folder(void)
{
	char command[128];

	end_daemon(SIGTERM);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	ck_assert_int_eq(system(command), 0);
}

/* ---- an engine in this process ----------------------------------------------------------------------------------- */

static struct engine engine;
static struct kvspec spec;
static uint32_t *prompt, prompt_count;

static void open_engine(void)
{
	struct fault fault;

	ck_assert_msg(engine_open(&engine, TEST_DATA "/tinylm-8m", 2, 64, 0, &fault), "%s", fault.text);
	ck_assert(kvspec_parse("tq4", &spec, &fault));
	ck_assert(generate_prompt(&engine.model, engine.forward.positions, prompt_text, strlen(prompt_text), &prompt, &prompt_count, &fault));
	ck_assert_uint_gt(prompt_count, 4 * BLOCK);
}

static void close_engine(void)
{
	free(prompt);
	engine_close(&engine);
}

/* The daemon may still be starting: prefix_cache_open waits three seconds for it each time. What ends this proves nothing. */
static void open_cache(struct prefix_cache *cache)
{
	const time_t until = time(NULL) + 90;
	struct terrace_layout layout;
	struct fault fault;

	kvcache_layout(&engine.model.config, engine.model.fingerprint, spec.k, spec.v, BLOCK, &layout);
	while (time(NULL) < until) {
		if (prefix_cache_open(cache, address, &layout, NULL, &fault))
			return;
		if (waitpid(daemon_pid, NULL, WNOHANG) != 0)
			ck_abort_msg("terraced has ended; see %s/log", folder);
		nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
	}
	ck_abort_msg("%s", fault.text);
}

static struct generated generate(struct prefix_cache *cache, const uint32_t *tokens, uint32_t count,
				 struct generate_options options)
{
	struct generated g;
	struct fault fault;

	options.block_tokens = BLOCK;
	ck_assert_msg(generate_run(&engine.forward, &spec, cache, tokens, count, &options, &g, &fault), "%s", fault.text);
	return g;
}

static void assert_same(const struct generated *a, const struct generated *b)
{
	ck_assert_uint_eq(a->count, b->count);
	ck_assert_mem_eq(a->tokens, b->tokens, a->count * sizeof(*a->tokens));
}

START_TEST(test_reuse)
{
	const struct generate_options options = { .tokens_max = 50 };
	struct prefix_cache cache;
	struct generated alone, first, second;

	start_daemon();
	open_engine();
	open_cache(&cache);
	alone = generate(NULL, prompt, prompt_count, options);
	first = generate(&cache, prompt, prompt_count, options);
	second = generate(&cache, prompt, prompt_count, options);
	ck_assert_msg(cache.note.text[0] == 0 || strstr(cache.note.text, "exists"), "%s", cache.note.text);
	ck_assert_uint_eq(first.stats.reused_tokens, 0);
	/* The last token is not run, so the tokens that are there number one less. */
	ck_assert_uint_eq(first.stats.stored_blocks, (prompt_count + first.count - 1) / BLOCK);
	ck_assert_uint_eq(second.stats.reused_tokens, (prompt_count - 1) / BLOCK * BLOCK);
	assert_same(&alone, &first);
	assert_same(&alone, &second);
	generated_free(&alone);
	generated_free(&first);
	generated_free(&second);
	prefix_cache_close(&cache);
	close_engine();
	remove_folder();
}
END_TEST

/* The conversation goes on: the second prompt is the first one and its answer, whose blocks were stored as they filled. */
START_TEST(test_second_turn)
{
	const struct generate_options options = { .tokens_max = 60 };
	struct prefix_cache cache;
	struct generated first, second, alone;
	uint32_t *turn, count;

	start_daemon();
	open_engine();
	open_cache(&cache);
	first = generate(&cache, prompt, prompt_count, options);
	ck_assert_msg(cache.note.text[0] == 0, "%s", cache.note.text);
	count = prompt_count + first.count;
	turn = malloc(count * sizeof(*turn));
	memcpy(turn, prompt, prompt_count * sizeof(*turn));
	memcpy(turn + prompt_count, first.tokens, first.count * sizeof(*turn));
	alone = generate(NULL, turn, count, options);
	second = generate(&cache, turn, count, options);
	ck_assert_msg(cache.note.text[0] == 0, "%s", cache.note.text);
	ck_assert_uint_eq(second.stats.reused_tokens, (count - 1) / BLOCK * BLOCK);
	assert_same(&alone, &second);
	free(turn);
	generated_free(&alone);
	generated_free(&first);
	generated_free(&second);
	prefix_cache_close(&cache);
	close_engine();
	remove_folder();
}
END_TEST

/* ---- a daemon that dies ------------------------------------------------------------------------------------------ */

static uint32_t emitted, kill_at;

static void kill_when_due(void *arg, uint32_t token)
{
	(void)arg;
	(void)token;
	if (++emitted == kill_at)
		end_daemon(SIGKILL);
}

/* Killed after so many tokens: before the tail block is full, and just before one is published. */
START_TEST(test_death_while_generating)
{
	const struct generate_options plain = { .tokens_max = 48 };
	struct generate_options killing = plain;
	struct generated alone, with;
	struct prefix_cache cache;

	open_engine();
	killing.emit = kill_when_due;
	alone = generate(NULL, prompt, prompt_count, plain);
	for (uint32_t i = 0; i < 3; i++) {
		start_daemon();
		open_cache(&cache);
		emitted = 0;
		kill_at = i == 0 ? 1 : BLOCK - prompt_count % BLOCK + BLOCK * (i - 1);
		with = generate(&cache, prompt, prompt_count, killing);
		ck_assert_int_eq(daemon_pid, 0);
		ck_assert(cache.gone);
		assert_same(&alone, &with);
		generated_free(&with);
		prefix_cache_close(&cache);
		remove_folder();
	}
	generated_free(&alone);
	close_engine();
}
END_TEST

/* Killed before the first call. */
START_TEST(test_death_before_prefill)
{
	const struct generate_options options = { .tokens_max = 24 };
	struct prefix_cache cache;
	struct generated alone, with;

	start_daemon();
	open_engine();
	open_cache(&cache);
	alone = generate(NULL, prompt, prompt_count, options);
	end_daemon(SIGKILL);
	with = generate(&cache, prompt, prompt_count, options);
	ck_assert(cache.gone);
	ck_assert_uint_eq(with.stats.reused_tokens, 0);
	assert_same(&alone, &with);
	generated_free(&alone);
	generated_free(&with);
	prefix_cache_close(&cache);
	close_engine();
	remove_folder();
}
END_TEST

static void *kill_soon(void *arg)
{
	nanosleep(&(struct timespec){ 0, (long)(intptr_t)arg }, NULL);
	kill(daemon_pid, SIGKILL);
	return NULL;
}

/* Killed at some moment of the prefill or shortly after, by another thread. */
START_TEST(test_death_at_any_moment)
{
	const struct generate_options options = { .tokens_max = 20 };
	struct generated alone, half, with;
	struct prefix_cache cache;
	pthread_t killer;

	open_engine();
	alone = generate(NULL, prompt, prompt_count, options);
	for (int i = 0; i < 8; i++) {
		start_daemon();
		open_cache(&cache);
		half = generate(&cache, prompt, prompt_count / 2, options);
		ck_assert_int_eq(pthread_create(&killer, NULL, kill_soon, (void *)(intptr_t)(i * 2000000)), 0);
		with = generate(&cache, prompt, prompt_count, options);
		pthread_join(killer, NULL);
		end_daemon(SIGKILL);
		assert_same(&alone, &with);
		generated_free(&half);
		generated_free(&with);
		prefix_cache_close(&cache);
		remove_folder();
	}
	generated_free(&alone);
	close_engine();
}
END_TEST

/* ---- the program ------------------------------------------------------------------------------------------------- */

START_TEST(test_demo)
{
	char command[1024], out[65536];
	struct prefix_cache cache;
	size_t got;
	FILE *f;
	int status;

	start_daemon();
	open_engine();
	open_cache(&cache); /* waits for the daemon */
	prefix_cache_close(&cache);
	close_engine();
	snprintf(command, sizeof(command),
		 "%s --model %s/tinylm-8m --demo --daemon %s " DEMO_SIZE " --json 2>&1", TINYLM,
		 TEST_DATA, address);
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	got = fread(out, 1, sizeof(out) - 1, f);
	out[got] = 0;
	status = pclose(f);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the demo failed:\n%s", out);
	ck_assert_msg(strstr(out, "\"ok\": true") != NULL, "the demo said:\n%s", out);
	remove_folder();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tinylm_demo");
	TCase *cases = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 200);
	tcase_add_test(cases, test_reuse);
	tcase_add_test(cases, test_second_turn);
	tcase_add_test(cases, test_death_while_generating);
	tcase_add_test(cases, test_death_before_prefill);
	tcase_add_test(cases, test_death_at_any_moment);
	tcase_add_test(cases, test_demo);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
