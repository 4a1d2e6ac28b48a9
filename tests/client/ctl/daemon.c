/* terracectl against a live daemon: every command's answer and exit code, in both forms, with blocks that are
 * there, are not, and are damaged. A block is damaged the way a stray write of an engine would do it: through
 * the mapping that wrote it.
 */
#include <check.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/include/terrace.h"
#include "tests/client/ctl/run.h"

enum { TOKENS = 16, BLOCKS = 3, START_S = 60, GRAPH_S = 30 };

static char folder[64], address[128];
static pid_t daemon_pid;
static struct terrace_client *client;
static struct terrace_session *session;
static struct terrace_layout layout;
static uint8_t keys[BLOCKS + 1][16]; /* the last is not stored */
static char hex[BLOCKS + 1][33];
static uint8_t *first_block;

static void start_daemon(void)
{
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;
	char data[96], socket[96], log[96];
	const time_t until = time(NULL) + START_S;
	enum terrace_status status;
	int fd;

	snprintf(folder, sizeof(folder), "/tmp/terrace-ctl-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(data, sizeof(data), "%s/data", folder);
	snprintf(socket, sizeof(socket), "%s/t.sock", folder);
	snprintf(log, sizeof(log), "%s/log", folder);
	snprintf(address, sizeof(address), "unix:%s", socket);
	daemon_pid = fork();
	if (daemon_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fd = open(log, O_CREAT | O_WRONLY, 0600);
		dup2(fd, 1);
		dup2(fd, 2);
		execl(TERRACED, TERRACED, "--data-dir", data, "--socket", socket, "--host-bytes", "16MiB",
		      "--extent-bytes", "1MiB", (char *)NULL);
		_exit(127);
	}
	while (access(socket, F_OK) && time(NULL) < until) { /* gRPC waits a second after a refusal */
		ck_assert_msg(waitpid(daemon_pid, NULL, WNOHANG) == 0, "%s did not start", TERRACED);
		nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
	}
	options.address = address;
	options.timeout_us = 30000000;
	status = terrace_connect(&options, &client);
	ck_assert_msg(status == TERRACE_OK, "no daemon: %s", terrace_error());
}

static void store_blocks(void)
{
	struct terrace_keys all = {.bytes = keys[0], .count = BLOCKS, .key_bytes = 16};
	struct terrace_reservation *reservation = NULL;
	enum terrace_status statuses[BLOCKS];
	uint32_t tokens[(BLOCKS + 1) * TOKENS];

	for (uint32_t i = 0; i < (BLOCKS + 1) * TOKENS; i++)
		tokens[i] = 100 + i;
	for (int i = 0; i <= BLOCKS; i++) {
		terrace_chain_hash(i ? keys[i - 1] : NULL, tokens + i * TOKENS, TOKENS, NULL, 0, keys[i]);
		for (int j = 0; j < 16; j++)
			snprintf(hex[i] + 2 * j, 3, "%02x", keys[i][j]);
	}
	ck_assert_int_eq(terrace_reserve(session, &all, NULL, 0, statuses, &reservation), TERRACE_OK);
	for (uint32_t i = 0; i < BLOCKS; i++)
		memset(terrace_reservation_block(reservation, i, 0), (int)i, terrace_block_bytes(&layout));
	first_block = terrace_reservation_block(reservation, 0, 0);
	ck_assert_int_eq(terrace_commit(reservation, 0, statuses, NULL), TERRACE_OK);
	for (uint32_t i = 0; i < BLOCKS; i++)
		ck_assert_int_eq(statuses[i], TERRACE_OK);
}

static void set_up(void)
{
	start_daemon();
	layout = (struct terrace_layout)TERRACE_LAYOUT_INIT;
	terrace_fingerprint("ctl", 3, layout.fingerprint);
	layout.layers = 2;
	layout.heads = layout.total_heads = 2;
	layout.head_dim_k = layout.head_dim_v = 64;
	layout.block_tokens = TOKENS;
	layout.k_format = TERRACE_FORMAT_FP8;
	layout.v_format = TERRACE_FORMAT_TQ4;
	ck_assert_int_eq(terrace_session_open(client, &layout, 1, NULL, &session), TERRACE_OK);
	store_blocks();
}

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
	(void)s;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void show_log(void)
{
	char path[96], line[512];
	FILE *log;

	snprintf(path, sizeof(path), "%s/log", folder);
	log = fopen(path, "r");
	while (log && fgets(line, sizeof(line), log))
		fputs(line, stderr);
	if (log)
		fclose(log);
}

static void tear_down(void)
{
	int status;

	terrace_session_close(session);
	terrace_disconnect(client);
	kill(daemon_pid, SIGTERM);
	ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		show_log();
	nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "terraced ended with %d", status);
}

/* Runs a command with --json and parses what it printed; 3, "nothing there", gives NULL if `or_nothing`. */
static json_t *ask_maybe(int code, bool or_nothing, const char *const *words)
{
	const char *line[16] = {"--address", address, "--timeout", "30", "--json"};
	struct ctl_run run;
	json_error_t error;
	json_t *tree = NULL;

	for (int i = 0; words[i]; i++)
		line[5 + i] = words[i];
	run = ctl_run(line, NULL, 0);
	if (!or_nothing || run.code != 3) {
		ck_assert_msg(run.code == code, "%s: exit code %d, not %d: %s", words[0], run.code, code, run.err);
		tree = json_loadb((char *)run.out, run.out_bytes, 0, &error);
		ck_assert_msg(tree != NULL, "%s: %s: %s", words[0], error.text, run.out);
	}
	ctl_run_free(&run);
	return tree;
}

static json_t *ask(int code, const char *const *words)
{
	return ask_maybe(code, false, words);
}
#define ASK(code, ...) ask(code, (const char *const[]){__VA_ARGS__, NULL})

static json_int_t number(const json_t *tree, const char *name)
{
	ck_assert_msg(json_is_integer(json_object_get(tree, name)), "no number %s", name);
	return json_integer_value(json_object_get(tree, name));
}

static const char *text(const json_t *tree, const char *name)
{
	ck_assert_msg(json_is_string(json_object_get(tree, name)), "no text %s", name);
	return json_string_value(json_object_get(tree, name));
}

START_TEST(status_and_stat)
{
	json_t *tree = ASK(0, "status");
	struct ctl_run run;

	ck_assert_str_eq(text(tree, "health"), "SERVING");
	ck_assert_str_eq(text(tree, "state"), "serving");
	ck_assert_uint_eq(strtoull(text(tree, "epoch"), NULL, 16), terrace_session_epoch(session));
	json_decref(tree);
	tree = ASK(0, "stat");
	ck_assert_uint_gt(json_array_size(json_object_get(tree, "stats")), 10);
	json_decref(tree);
	tree = ASK(3, "stat", "no_such_statistic");
	ck_assert_uint_eq(json_array_size(json_object_get(tree, "stats")), 0);
	json_decref(tree);
	run = CTL_RUN("stat", "--address", address, "--watch", "0.05", "--count", "3",
		      "terrace_stored_blocks*", "sessions_opened");
	ck_assert_int_eq(run.code, 0);
	ck_assert_ptr_nonnull(strstr((char *)run.out, "per_second"));
	ck_assert_ptr_nonnull(strstr((char *)run.out, "terrace_stored_blocks_total"));
	ck_assert_ptr_nonnull(strstr((char *)run.out, "terrace_sessions_opened_total"));
	ck_assert_ptr_null(strstr((char *)run.out, "lease"));
	ctl_run_free(&run);
}
END_TEST

START_TEST(config_and_layouts)
{
	json_t *tree = ASK(0, "config", "data_dir", "policy"), *rows = json_object_get(tree, "options"), *shown;
	char path[128], id[17];

	ck_assert_uint_eq(json_array_size(rows), 3);
	ck_assert_str_eq(text(json_array_get(rows, 0), "name"), "data_dir");
	ck_assert_str_eq(text(json_array_get(rows, 0), "origin"), "flag");
	ck_assert_str_eq(text(json_array_get(rows, 1), "value"), "lru");
	ck_assert_str_eq(text(json_array_get(rows, 2), "name"), "disk_policy");
	json_decref(tree);
	json_decref(ASK(3, "config", "no_such_option"));

	tree = ASK(0, "layouts");
	rows = json_object_get(tree, "layouts");
	ck_assert_uint_eq(json_array_size(rows), 1);
	ck_assert_int_eq(number(json_array_get(rows, 0), "host_blocks"), BLOCKS);
	ck_assert_int_eq(number(json_array_get(rows, 0), "block_bytes"), (json_int_t)terrace_block_bytes(&layout));
	snprintf(id, sizeof(id), "%s", text(json_array_get(rows, 0), "layout_id"));
	shown = json_object_get(json_array_get(rows, 0), "layout");
	snprintf(path, sizeof(path), "%s/known.json", folder);
	ck_assert_int_eq(json_dump_file(shown, path, 0), 0);
	json_decref(tree);
	json_decref(ASK(0, "lookup", "--layouts", path, hex[0]));
	json_decref(ASK(0, "lookup", "--layout", id, hex[0]));
}
END_TEST

static void refused_line(const char *const *words, const char *says)
{
	struct ctl_run run = ctl_run(words, NULL, 0);

	ck_assert_int_eq(run.code, 1);
	ck_assert_msg(strstr(run.err, says) != NULL, "'%s' is not in: %s", says, run.err);
	ctl_run_free(&run);
}

/* What `layouts --json` prints goes to --layouts as it is, and so does what `inspect --json` prints; not a row whose id is another's. */
START_TEST(printed_layouts_are_read)
{
	char path[128], says[256];

	snprintf(path, sizeof(path), "%s/printed.json", folder);
	for (size_t i = 0; i < 2; i++) {
		json_t *tree = i ? ASK(0, "inspect", hex[0]) : ASK(0, "layouts");

		ck_assert_int_eq(json_dump_file(tree, path, 0), 0);
		json_decref(ASK(0, "lookup", "--layouts", path, hex[0]));
		json_decref(ASK(0, "warm", "--layouts", path, hex[0]));
		refused_line((const char *const[]){"--address", address, "flush", "--layouts", path, hex[0], NULL}, "disk");
		ck_assert_int_eq(json_object_set_new(json_array_get(json_object_get(tree, i ? "blocks" : "layouts"), 0), "layout_id",
						     json_string("00000000000000ff")), 0);
		ck_assert_int_eq(json_dump_file(tree, path, 0), 0);
		snprintf(says, sizeof(says), "%s: layout 0: 'layout_id': not the id of the layout beside it", path);
		refused_line((const char *const[]){"--address", address, "lookup", "--layouts", path, hex[0], NULL}, says);
		json_decref(tree);
	}
}
END_TEST

START_TEST(lookup_by_key)
{
	json_t *tree = ASK(0, "lookup", hex[0], hex[1], hex[2]);

	ck_assert_int_eq(number(tree, "prefix"), 3);
	ck_assert_int_eq(number(tree, "stored"), 3);
	json_decref(tree);
	tree = ASK(3, "lookup", hex[0], hex[3], hex[2]);
	ck_assert_int_eq(number(tree, "prefix"), 1);
	ck_assert_int_eq(number(tree, "stored"), 2);
	json_decref(tree);
	tree = ASK(3, "lookup", "--layout", "1", hex[0]);
	ck_assert_int_eq(number(tree, "stored"), 0);
	json_decref(tree);
}
END_TEST

/* Token ids from standard input, and the layout as inspect prints it. */
START_TEST(lookup_by_tokens_and_layout)
{
	char list[1024] = "", path[128];
	json_t *tree = ASK(0, "inspect", hex[0]), *shown;
	struct ctl_run run;

	for (int i = 0; i < (BLOCKS + 1) * TOKENS; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%d", i ? ", " : "[", 100 + i);
	shown = json_object_get(json_array_get(json_object_get(tree, "blocks"), 0), "layout");
	snprintf(path, sizeof(path), "%s/layout.json", folder);
	ck_assert_int_eq(json_dump_file(shown, path, 0), 0);
	json_decref(tree);
	run = ctl_run((const char *const[]){"--address", address, "lookup", "--tokens", "-", "--layouts",
					    path, NULL},
		      list, strlen(list));
	ck_assert_msg(run.code == 3, "exit code %d: %s", run.code, run.err);
	ck_assert_msg(strstr((char *)run.out, "prefix  3") != NULL, "%s", run.out);
	ctl_run_free(&run);
	run = ctl_run((const char *const[]){"--address", address, "lookup", "--tokens", "-", NULL}, list,
		      strlen(list) - 5 * TOKENS);
	ck_assert_msg(run.code == 0, "exit code %d: %s", run.code, run.err);
	ctl_run_free(&run);
	tree = ASK(0, "lookup", "--layouts", path, hex[0], hex[1]);
	ck_assert_int_eq(number(tree, "prefix"), 2);
	json_decref(tree);
}
END_TEST

/* A hybrid in a file: unit_tokens beside the layouts, a rule in each. The full layout covers two keys a block, the
 * state three. */
enum { FULL, STATES, GROUPS };

static void hybrid_layouts(struct terrace_layout out[GROUPS], struct terrace_layout_rule rules[GROUPS])
{
	out[FULL] = layout;
	out[FULL].block_tokens = 2 * TOKENS;
	out[STATES] = (struct terrace_layout)TERRACE_LAYOUT_INIT;
	memcpy(out[STATES].fingerprint, layout.fingerprint, sizeof(layout.fingerprint));
	out[STATES].k_format = TERRACE_FORMAT_OPAQUE;
	out[STATES].opaque_bytes = 512;
	strcpy(out[STATES].opaque_name, "ctl/state/1");
	out[STATES].block_tokens = 3 * TOKENS;
	rules[FULL] = rules[STATES] = (struct terrace_layout_rule)TERRACE_LAYOUT_RULE_INIT;
	rules[FULL].partial = true;
	rules[STATES].keep_last = 1;
	rules[STATES].sparse = true;
}

/* The full block of the first two keys, a partial one of the third, and the state behind it. */
static void store_hybrid(void)
{
	static const uint64_t cells[BLOCKS] = {0, 1 << FULL, 1 << FULL | 1 << STATES};
	const struct terrace_keys all = {.bytes = keys[0], .count = BLOCKS, .key_bytes = 16};
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_reserve_options where = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_layout layouts[GROUPS];
	struct terrace_layout_rule rules[GROUPS];
	struct terrace_reservation *reservation;
	struct terrace_session *hybrid;

	hybrid_layouts(layouts, rules);
	options.unit_tokens = TOKENS;
	options.rules = rules;
	where.cells = cells;
	ck_assert_int_eq(terrace_session_open(client, layouts, GROUPS, &options, &hybrid), TERRACE_OK);
	ck_assert_int_eq(terrace_reserve_with(hybrid, &all, NULL, &where, 0, NULL, &reservation), TERRACE_OK);
	ck_assert_int_eq(terrace_commit(reservation, 0, NULL, NULL), TERRACE_OK);
	terrace_session_close(hybrid);
}

/* The daemon's row of the layout with so many tokens a block. */
static json_t *row_of(const json_t *tree, json_int_t block_tokens)
{
	const json_t *rows = json_object_get(tree, "layouts");

	for (size_t i = 0; i < json_array_size(rows); i++) {
		json_t *shown = json_object_get(json_array_get(rows, i), "layout");

		if (number(shown, "block_tokens") == block_tokens)
			return json_array_get(rows, i);
	}
	ck_abort_msg("no layout of %d tokens", (int)block_tokens);
	return NULL;
}

static void write_hybrid(char path[128])
{
	json_t *known = ASK(0, "layouts"), *full = row_of(known, 2 * TOKENS), *state = row_of(known, 3 * TOKENS), *file;

	json_object_set_new(json_object_get(full, "layout"), "partial", json_true());
	json_object_set_new(json_object_get(state, "layout"), "keep_last", json_integer(1));
	json_object_set_new(json_object_get(state, "layout"), "sparse", json_true());
	file = json_pack("{s:i, s:[O, O]}", "unit_tokens", TOKENS, "layouts", full, state);
	ck_assert_ptr_nonnull(file);
	snprintf(path, 128, "%s/hybrid.json", folder);
	ck_assert_int_eq(json_dump_file(file, path, 0), 0);
	json_decref(file);
	json_decref(known);
}

START_TEST(lookup_shows_cells)
{
	static const char *const cells[BLOCKS][GROUPS] = {{"absent", "none"}, {"host", "none"}, {"host", "host"}};
	struct ctl_run run;
	char path[128];
	json_t *tree;

	store_hybrid();
	write_hybrid(path);
	tree = ASK(0, "lookup", "--layouts", path, hex[0], hex[1], hex[2]);
	ck_assert_int_eq(number(tree, "prefix"), 3);
	ck_assert_int_eq(number(tree, "stored"), 2);
	for (size_t i = 0; i < BLOCKS; i++) {
		const json_t *row = json_array_get(json_object_get(tree, "blocks"), i);
		const json_t *shown = json_object_get(row, "cells");
		size_t stored = 0;

		ck_assert_uint_eq(json_array_size(shown), GROUPS);
		for (size_t l = 0; l < GROUPS; l++) {
			ck_assert_str_eq(json_string_value(json_array_get(shown, l)), cells[i][l]);
			stored += !strcmp(cells[i][l], "host");
		}
		ck_assert_uint_eq(json_array_size(json_object_get(row, "layouts")), stored);
		ck_assert_int_eq(json_is_true(json_object_get(row, "stored")), stored > 0);
	}
	json_decref(tree);
	run = CTL_RUN("--address", address, "lookup", "--layouts", path, hex[0], hex[1], hex[2]);
	ck_assert_msg(strstr((char *)run.out, "cells") && strstr((char *)run.out, "host none"), "%s", run.out);
	ctl_run_free(&run);
	tree = ASK(3, "lookup", "--layouts", path, hex[0], hex[1]); /* no state there */
	ck_assert_int_eq(number(tree, "prefix"), 0);
	json_decref(tree);
	tree = ASK(0, "lookup", "--layouts", path, "--first-position", "2", hex[2]);
	ck_assert_int_eq(number(tree, "prefix"), 1);
	json_decref(tree);
	/* It has other tokens there. */
	json_decref(ASK(3, "lookup", "--layouts", path, "--first-position", "1", hex[2]));
	tree = ASK(0, "warm", "--layouts", path, hex[0], hex[1], hex[2]);
	ck_assert_int_eq(number(tree, "stored"), 2);
	json_decref(tree);
	json_decref(ASK(3, "warm", "--layouts", path, hex[0], hex[1]));
}
END_TEST

/* Tokens are cut into units; and a layout may have more of them than packed ones do. */
START_TEST(lookup_cuts_tokens_by_the_unit)
{
	static char list[8 * 4096];
	char path[128];
	const char *const line[] = {"--address", address, "lookup", "--tokens", "-", "--layouts", path, NULL};
	struct ctl_run run;
	json_t *file;

	store_hybrid();
	write_hybrid(path);
	for (int i = 0; i < BLOCKS * TOKENS; i++)
		sprintf(list + strlen(list), "%d ", 100 + i);
	run = ctl_run(line, list, strlen(list));
	ck_assert_msg(run.code == 0 && strstr((char *)run.out, "prefix  3"), "exit code %d: %s%s", run.code, run.err,
		      run.out);
	ctl_run_free(&run);
	for (int i = 0; i < 4096; i++)
		sprintf(list + 7 * i, "%06d ", i);
	file = json_pack("{s:s, s:i, s:i, s:s, s:s}", "k_format", "opaque", "block_tokens", 4096, "opaque_bytes", 16,
			 "opaque_name", "ctl/long/1", "fingerprint", "0100000000000000000000000000000000000000000000000000000000000000");
	ck_assert_int_eq(json_dump_file(file, path, 0), 0);
	json_decref(file);
	run = ctl_run(line, list, strlen(list));
	ck_assert_msg(run.code == 3 && strstr((char *)run.out, "keys    1"), "exit code %d: %s%s", run.code, run.err,
		      run.out);
	ctl_run_free(&run);
}
END_TEST

/* As an engine does that minds no rule: the library has made the page one that can be read alone, or will soon. */
static void damage(uint8_t *at)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	ck_assert_int_eq(mprotect((void *)((uintptr_t)at & ~(page - 1)), page, PROT_READ | PROT_WRITE), 0);
	*at ^= 1;
}

START_TEST(inspect_and_damage)
{
	json_t *tree = ASK(0, "inspect", hex[0]), *block;

	block = json_array_get(json_object_get(tree, "blocks"), 0);
	ck_assert_str_eq(text(block, "state"), "stored");
	ck_assert_int_eq(number(block, "tokens"), TOKENS);
	ck_assert_int_eq(number(block, "block_bytes"), (json_int_t)terrace_block_bytes(&layout));
	ck_assert(json_is_true(json_object_get(block, "checksum_ok")));
	json_decref(tree);
	json_decref(ASK(3, "inspect", hex[3]));
	tree = ASK(0, "verify", "--rate", "100MiB");
	ck_assert_int_eq(number(tree, "blocks"), BLOCKS);
	json_decref(tree);
	damage(first_block + 7);
	json_decref(ASK(4, "inspect", hex[0]));
	tree = ASK(4, "verify");
	ck_assert_int_eq(number(tree, "corrupt"), 1);
	json_decref(tree);
	json_decref(ASK(3, "lookup", hex[0])); /* dropped */
	json_decref(ASK(0, "verify"));
}
END_TEST

static void refused(const char *says, const char *verb, const char *name)
{
	struct ctl_run run = CTL_RUN("--address", address, "trace", verb, name);

	ck_assert_int_eq(run.code, 1);
	ck_assert_msg(strstr(run.err, says) != NULL, "'%s' is not in: %s", says, run.err);
	ctl_run_free(&run);
}

/* The edges of the first block's node, once the advisor has heard of the puts and the lease: the heaviest is of that type then. */
static json_t *await_edges(const char *type)
{
	const time_t until = time(NULL) + GRAPH_S;

	for (;;) {
		json_t *tree = ask_maybe(0, true, (const char *const[]){"graph", hex[0], NULL});
		json_t *row = json_array_get(json_object_get(tree, "edges"), 0);

		if (row && (!strcmp(text(row, "type"), type) || time(NULL) > until))
			return tree;
		json_decref(tree);
		ck_assert_msg(time(NULL) <= until, "no edges");
		nanosleep(&(struct timespec){0, 100 * 1000 * 1000}, NULL);
	}
}

START_TEST(explain_graph_and_trace)
{
	struct terrace_keys all = {.bytes = keys[0], .count = BLOCKS, .key_bytes = 16};
	struct terrace_lease *lease = NULL;
	json_t *tree, *row;

	tree = ASK(0, "explain", hex[1]);
	ck_assert_uint_eq(json_array_size(json_object_get(tree, "blocks")), 1);
	row = json_array_get(json_object_get(tree, "blocks"), 0);
	ck_assert_str_eq(text(row, "tier"), "host");
	ck_assert_str_eq(text(row, "policy"), "lru");
	ck_assert_int_eq(number(row, "rank"), 1);
	json_decref(tree);
	json_decref(ASK(3, "explain", hex[3]));
	ck_assert_int_eq(terrace_lease(session, &all, TERRACE_LEASE_ALL, 0, &lease), TERRACE_OK);
	terrace_release(lease);
	tree = await_edges("prefix_share");
	row = json_array_get(json_object_get(tree, "edges"), 0);
	ck_assert_str_eq(text(row, "type"), "prefix_share");
	ck_assert_str_eq(text(row, "key"), hex[1]);
	ck_assert_str_eq(text(row, "tier"), "host");
	json_decref(tree);
	json_decref(ASK(3, "graph", hex[3]));
	struct ctl_run dot = CTL_RUN("--address", address, "graph", "--dot", hex[0]);

	ck_assert_int_eq(dot.code, 0);
	ck_assert_ptr_nonnull(strstr((char *)dot.out, "digraph"));
	ck_assert_ptr_nonnull(strstr((char *)dot.out, hex[1]));
	ctl_run_free(&dot);
	refused("no trace is being recorded", "stop", NULL);
	tree = ASK(0, "trace", "record", "--seconds", "0.1", "first");
	ck_assert_int_eq(number(tree, "requests"), 0);
	ck_assert_ptr_nonnull(strstr(text(tree, "path"), "/data/traces/first"));
	json_decref(tree);
	refused("exists", "record", "first");
	refused("letters", "record", "../first");
	json_decref(ASK(0, "stat", "evictions"));
}
END_TEST

START_TEST(drain_and_undo)
{
	struct terrace_keys one = {.bytes = keys[0], .count = 1, .key_bytes = 16};
	struct terrace_lease *lease = NULL;
	json_t *tree;

	ck_assert_int_eq(terrace_lease(session, &one, TERRACE_LEASE_ALL, 0, &lease), TERRACE_OK);
	tree = ASK(3, "drain", "--wait", "0.1");
	ck_assert(json_is_false(json_object_get(tree, "drained")));
	ck_assert_int_eq(number(tree, "leases"), 1);
	json_decref(tree);
	tree = ASK(3, "status");
	ck_assert_str_eq(text(tree, "health"), "NOT_SERVING");
	ck_assert_str_eq(text(tree, "state"), "draining");
	json_decref(tree);
	json_decref(ASK(0, "lookup", hex[0])); /* an operator still sees what is there */
	json_decref(ASK(0, "drain", "--undo"));
	json_decref(ASK(0, "status"));
	terrace_release(lease);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("ctl_daemon");
	TCase *tests = tcase_create("daemon");
	int failed;
	SRunner *runner;

	tcase_set_timeout(tests, 120);
	tcase_add_checked_fixture(tests, set_up, tear_down);
	tcase_add_test(tests, status_and_stat);
	tcase_add_test(tests, config_and_layouts);
	tcase_add_test(tests, printed_layouts_are_read);
	tcase_add_test(tests, lookup_by_key);
	tcase_add_test(tests, lookup_by_tokens_and_layout);
	tcase_add_test(tests, lookup_shows_cells);
	tcase_add_test(tests, lookup_cuts_tokens_by_the_unit);
	tcase_add_test(tests, inspect_and_damage);
	tcase_add_test(tests, explain_graph_and_trace);
	tcase_add_test(tests, drain_and_undo);
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
