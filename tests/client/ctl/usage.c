/* terracectl's command line: a table of lines that make no sense, each with its exit code and a word of the
 * message; help; and what is said when there is no daemon.
 */
#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/ctl/run.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define KEY "00112233445566778899aabbccddeeff"
#define NOWHERE "unix:/nonexistent/terraced.sock"

static const struct {
	const char *words[10];
	int code;
	const char *says; /* on standard error */
} lines[] = {
	{{NULL}, 2, "which command? There are status, stat,"},
	{{"--json"}, 2, "which command"},
	{{"frobnicate"}, 2, "no command 'frobnicate': there are status, stat,"},
	{{"--frobnicate", "status"}, 2, "frobnicate"},
	{{"status", "--frobnicate"}, 2, "frobnicate"},
	{{"status", "now"}, 2, "too many arguments, 'now'"},
	{{"status", "-q"}, 2, "-q: no such option"},
	{{"status", "--json=1"}, 2, "--json=1"},
	{{"status", "--timeout"}, 2, "--timeout: it wants a value"},
	{{"status", "--timeout", "0"}, 2, "--timeout 0"},
	{{"status", "--timeout", "-1"}, 2, "--timeout -1"},
	{{"status", "--timeout", "inf"}, 2, "--timeout inf"},
	{{"status", "--timeout", "5s"}, 2, "--timeout 5s"},
	{{"status", "--timeout", "86401"}, 2, "--timeout 86401"},
	{{"status", "--address", ""}, 2, "--address: it is empty"},
	{{"status", "--address", "10.1.2.3:80"}, 2, "10.1.2.3:80"},
	{{"status", "--address", "rubbish"}, 2, "rubbish"},
	{{"help", "frobnicate"}, 2, "no command"},
	{{"help", "stat", "now"}, 2, "too many arguments, 'now'"},
	{{"layouts", "now"}, 2, "too many arguments, 'now'"},
	{{"stat", "--watch", "soon"}, 2, "--watch soon"},
	{{"stat", "--count", "3"}, 2, "--count needs --watch"},
	{{"stat", "--watch", "1", "--count", "0"}, 2, "--count 0"},
	{{"lookup"}, 2, "keys or --tokens"},
	{{"lookup", "xyz"}, 2, "'xyz' is no key"},
	{{"lookup", "abc"}, 2, "'abc' is no key"},
	{{"lookup", KEY KEY KEY KEY "00"}, 2, "is no key"},
	{{"lookup", KEY, "0011"}, 2, "the same length"},
	{{"lookup", KEY, "--tokens", "-"}, 2, "one of them"},
	{{"lookup", KEY, "--salt", "a"}, 2, "need --tokens"},
	{{"lookup", "--tokens", "-", "--block-tokens", "15"}, 2, "--block-tokens 15"},
	{{"lookup", "--tokens", "-", "--block-tokens", "272"}, 2, "--block-tokens 272"},
	{{"lookup", "--layout", "zz", KEY}, 2, "--layout zz"},
	{{"lookup", "--layout", "1", "--layouts", "a.json", KEY}, 2, "not both"},
	{{"lookup", "--first-position", "1", KEY}, 2, "needs --layouts"},
	{{"lookup", "--layouts", "a.json", "--first-position", "2147483649", KEY}, 2, "--first-position 2147483649"},
	{{"lookup", "--layouts", "/nonexistent/l.json", "--first-position", "-1", KEY}, 2, "--first-position -1"},
	{{"lookup", "--tokens", "/nonexistent/tokens"}, 1, "No such file"},
	{{"lookup", "--tokens", "-"}, 1, "no whole block"},
	{{"lookup", "--layouts", "/nonexistent/l.json", KEY}, 1, "/nonexistent/l.json: No such file"},
	{{"lookup", "--layouts", "/", KEY}, 1, "/: Is a directory"},
	{{"lookup", "--tokens", "/"}, 1, "/: Is a directory"},
	{{"inspect"}, 2, "an argument is missing"},
	{{"inspect", KEY, KEY}, 2, "too many"},
	{{"inspect", "0g"}, 2, "'0g' is no key"},
	{{"inspect", "--layout", "00112233445566778", KEY}, 2, "16 hex digits"},
	{{"verify", "--rate", "fast"}, 2, "--rate fast"},
	{{"verify", "--rate", "5kB"}, 2, "--rate 5kB"},
	{{"verify", "--rate", "MiB"}, 2, "--rate MiB"},
	{{"verify", "--rate", "0"}, 2, "--rate 0"},
	{{"verify", "--rate", "18446744073709551616"}, 2, "--rate 18446744073709551616"},
	{{"verify", "--rate", "99999999TiB"}, 2, "--rate 99999999TiB"},
	{{"warm"}, 2, "an argument is missing"},
	{{"warm", "xyz"}, 2, "'xyz' is no key"},
	{{"warm", KEY, "0011"}, 2, "the same length"},
	{{"warm", "--layouts", "/nonexistent/l.json", KEY}, 1, "/nonexistent/l.json"},
	{{"flush", "0g"}, 2, "'0g' is no key"},
	{{"flush", "--layouts", "/nonexistent/l.json"}, 1, "/nonexistent/l.json"},
	{{"explain"}, 2, "an argument is missing"},
	{{"explain", "0g"}, 2, "'0g' is no key"},
	{{"explain", "--layout", "x", KEY}, 2, "--layout x"},
	{{"graph", "0g"}, 2, "'0g' is no key"},
	{{"--json", "graph", "--dot", KEY}, 2, "not both"},
	{{"trace", "play"}, 2, "not 'play'"},
	{{"trace", "record"}, 2, "the name is missing"},
	{{"trace", "stop", "t"}, 2, "it takes no name"},
	{{"trace", "record", "--seconds", "0", "t"}, 2, "--seconds 0"},
	{{"trace", "record", "--max", "0", "t"}, 2, "--max 0"},
	{{"compact", "all"}, 2, "too many arguments"},
	{{"compact", "--disk", "first"}, 2, "--disk first"},
	{{"compact", "--max", "0"}, 2, "--max 0"},
	{{"compact", "--max", "5kB"}, 2, "--max 5kB"},
	{{"drain", "--wait", "x"}, 2, "--wait x"},
	{{"drain", "--wait", "1", "--undo"}, 2, "not both"},
	{{"plan"}, 2, "--model is missing"},
	{{"plan", "--model", "/nonexistent/config.json"}, 2, "--format is missing"},
	{{"plan", "--model", "a", "--format", "tq9"}, 2, "--format tq9"},
	{{"plan", "--model", "a", "--format", "tq4", "--v-format", "tq9"}, 2, "--v-format tq9"},
	{{"plan", "--model", "a", "--format", "tq4", "--rope", "tq9"}, 2, "--rope tq9"},
	{{"plan", "--model", "/dev/null", "--format", "tq4", "--rope", "tq4"}, 1, "rope_format 5: it is fp16, "},
	{{"plan", "--model", "a", "--format", "tq4", "--memory", "5kB"}, 2, "--memory 5kB"},
	{{"plan", "--model", "a", "--format", "tq4", "--disk", "-1"}, 2, "--disk -1"},
	{{"plan", "--model", "a", "--format", "tq4", "--block-tokens", "0"}, 2, "--block-tokens 0"},
	{{"plan", "--model", "a", "--format", "tq4", "--state-tokens", "x"}, 2, "--state-tokens x"},
	{{"plan", "--model", "a", "--format", "tq4", "b"}, 2, "too many arguments"},
	{{"plan", "--model", "/nonexistent/config.json", "--format", "tq4"}, 1, "/nonexistent/config.json: No such file"},
	{{"plan", "--model", "/", "--format", "tq4"}, 1, "/: Is a directory"},
	{{"plan", "--model", "/dev/null", "--format", "tq4"}, 1, "/dev/null: plan: byte 0 is not what JSON has there"},
	{{"plan", "--model", "/dev/zero", "--format", "tq4"}, 1, "/dev/zero: larger than 1 MiB"},
	{{"plan", "--model", TEST_DATA "/models/qwen3-8b.json", "--format", "tq4", "--block-tokens", "24"}, 1, "block_tokens is 24"},
	{{"codec"}, 2, "an argument is missing"},
	{{"codec", "transcode"}, 2, "not 'transcode'"},
	{{"codec", "encode", "--dim", "128"}, 2, "--format is missing"},
	{{"codec", "encode", "--format", "tq9", "--dim", "128"}, 2, "no format 'tq9'"},
	{{"codec", "encode", "--format", "none", "--dim", "128"}, 2, "no format 'none'"},
	{{"codec", "encode", "--format", "opaque", "--dim", "128"}, 2, "have no codec here: convert them with the engine's own code"},
	{{"codec", "decode", "--format", "opaque", "--dim", "128"}, 2, "have no codec here"},
	{{"codec", "encode", "--format", "tq4"}, 2, "--dim is missing"},
	{{"codec", "encode", "--format", "tq4", "--dim", "100"}, 2, "--dim 100"},
	{{"codec", "encode", "--format", "tq4", "--dim", "4294967360"}, 2, "--dim 4294967360"},
	{{"codec", "encode", "--format", "tq4", "--dim", "512", "--rope", "tq4"}, 2, "--rope tq4: not a format"},
	{{"codec", "encode", "--format", "tq4", "--dim", "512", "--rope", "none"}, 2, "--rope none: not a format"},
	{{"codec", "encode", "--format", "tq4", "--dim", "128", "--rope", "bf16"}, 2, "of --dim 512: not 128"},
	{{"--address", NOWHERE, "status"}, 5, NOWHERE ": no daemon is there: No such file or directory: start terraced, or give its address"},
	{{"--address", NOWHERE, "stat"}, 5, NOWHERE},
	{{"--address", NOWHERE, "lookup", KEY}, 5, NOWHERE},
	{{"--address", NOWHERE, "lookup", KEY KEY KEY KEY}, 5, NOWHERE}, /* 64 bytes are a key */
	{{"--address", NOWHERE, "inspect", KEY}, 5, NOWHERE},
	{{"--address", NOWHERE, "verify"}, 5, NOWHERE},
	{{"--address", NOWHERE, "warm", KEY}, 5, NOWHERE},
	{{"--address", NOWHERE, "flush"}, 5, NOWHERE},
	{{"--address", NOWHERE, "explain", KEY}, 5, NOWHERE},
	{{"--address", NOWHERE, "graph", KEY}, 5, NOWHERE},
	{{"--address", NOWHERE, "trace", "stop"}, 5, NOWHERE},
	{{"--address", NOWHERE, "compact"}, 5, NOWHERE},
	{{"--address", NOWHERE, "drain"}, 5, NOWHERE},
	{{"--address", "127.0.0.1:1", "drain"}, 5, "127.0.0.1:1: no daemon is there: Connection refused: start terraced"},
	{{"--address", NOWHERE, "config"}, 5, NOWHERE},
	{{"--address", NOWHERE, "layouts"}, 5, NOWHERE},
};

START_TEST(line_is_refused)
{
	struct ctl_run run = ctl_run(lines[_i].words, NULL, 0);

	ck_assert_msg(run.code == lines[_i].code, "exit code %d, not %d: %s", run.code, lines[_i].code,
		      run.err);
	ck_assert_msg(strstr(run.err, lines[_i].says) != NULL, "'%s' is not in: %s", lines[_i].says, run.err);
	ck_assert_msg(run.code != 2 || run.err[0] == '{' || strstr(run.err, "--help") != NULL, "no way to help: %s", run.err);
	ck_assert_msg(run.out_bytes == 0, "on standard output: %s", run.out);
	ctl_run_free(&run);
}
END_TEST

/* The same lines with --json: one JSON object on standard error says it all, for every command. */
START_TEST(line_is_refused_in_json)
{
	const char *words[12] = {"--json"};
	json_error_t problem;
	struct ctl_run run;
	json_t *tree;

	for (int i = 0; lines[_i].words[i]; i++)
		words[i + 1] = lines[_i].words[i];
	run = ctl_run(words, NULL, 0);
	ck_assert_msg(run.code == lines[_i].code, "exit code %d, not %d: %s", run.code, lines[_i].code, run.err);
	tree = json_loads(run.err, 0, &problem);
	ck_assert_msg(tree != NULL, "%s: %s", problem.text, run.err);
	ck_assert_int_eq(json_integer_value(json_object_get(tree, "exit")), run.code);
	ck_assert_msg(strstr(json_string_value(json_object_get(tree, "error")), lines[_i].says) != NULL, "'%s' is not in: %s", lines[_i].says, run.err);
	ck_assert_int_eq(json_object_get(tree, "status") != NULL, run.code == 5);
	ck_assert_msg(run.out_bytes == 0, "on standard output: %s", run.out);
	json_decref(tree);
	ctl_run_free(&run);
}
END_TEST

/* What a public model takes, as text and as JSON; the numbers are client_plan's affair. */
START_TEST(a_plan_is_printed)
{
	struct ctl_run text = CTL_RUN("plan", "--model", TEST_DATA "/models/gemma-3-27b.json", "--format", "tq4", "--memory", "64GiB", "--disk", "1TiB");
	struct ctl_run json = CTL_RUN("--json", "plan", "--model", TEST_DATA "/models/gemma-3-27b.json", "--format", "tq4", "--memory", "64GiB");
	struct ctl_run opaque = CTL_RUN("plan", "--model", TEST_DATA "/models/deepseek-v3.json", "--format", "opaque");
	struct ctl_run latent = CTL_RUN("plan", "--model", TEST_DATA "/models/deepseek-v3.json", "--format", "tq4",
					"--rope", "fp8");
	static const char *const wanted[] = {"model_type   gemma3_text\n", "  full        10  tq4       tq4       none     16       128       0            16       337920      344064        21504\n",
					    "  window      52  tq4       tq4       none     16       128    1024            16      1757184     1761280       110080\n",
					    "  memory    68719476736   522247\n", "  disk    1099511627776  8355967\n"};
	json_t *tree;

	ck_assert_int_eq(text.code, 0);
	for (size_t i = 0; i < COUNT(wanted); i++)
		ck_assert_msg(strstr((char *)text.out, wanted[i]) != NULL, "no %s in: %s", wanted[i], text.out);
	tree = json_loadb((char *)json.out, json.out_bytes, 0, NULL);
	ck_assert_ptr_nonnull(tree);
	ck_assert_uint_eq(json_array_size(json_object_get(tree, "groups")), 2);
	ck_assert_uint_eq(json_array_size(json_object_get(tree, "tiers")), 1);
	ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(json_object_get(tree, "layouts"), 1), "window")), 1024);
	json_decref(tree);
	ck_assert_msg(strstr((char *)opaque.out, "note         opaque: no packed format") != NULL, "%s", opaque.out);
	ck_assert_msg(strstr((char *)latent.out, "  latent      61  tq4       none      fp8       1       512       0 "
						 "           16       316224      323584        20224\n") != NULL,
		      "%s", latent.out);
	ck_assert_ptr_null(strstr((char *)latent.out, "note"));
	ctl_run_free(&text);
	ctl_run_free(&json);
	ctl_run_free(&opaque);
	ctl_run_free(&latent);
}
END_TEST

static const char *const commands[] = {"status", "stat", "config", "layouts", "lookup", "inspect", "explain", "graph", "trace", "warm", "flush", "compact", "verify", "drain", "codec", "plan"};

/* --help anywhere prints the command's page and does nothing; "help COMMAND" is the same. */
START_TEST(help_is_a_page)
{
	const char *sections[] = {"NAME\n", "SYNOPSIS\n", "DESCRIPTION\n", "EXIT STATUS\n"};
	struct ctl_run run = CTL_RUN(commands[_i], "--help"), same = CTL_RUN("help", commands[_i]);

	ck_assert_int_eq(run.code, 0);
	for (size_t i = 0; i < COUNT(sections); i++)
		ck_assert_msg(strstr((char *)run.out, sections[i]) != NULL, "no %s in: %s", sections[i],
			      run.out);
	for (char *line = strtok((char *)same.out, "\n"); line; line = strtok(NULL, "\n"))
		ck_assert_msg(strlen(line) <= 96, "a long line: %s", line);
	ck_assert_uint_eq(same.out_bytes, run.out_bytes);
	ctl_run_free(&run);
	ctl_run_free(&same);
}
END_TEST

START_TEST(overview_names_all)
{
	struct ctl_run run = CTL_RUN("--help"), version = CTL_RUN("--version");

	ck_assert_int_eq(run.code, 0);
	for (size_t i = 0; i < COUNT(commands); i++)
		ck_assert_ptr_nonnull(strstr((char *)run.out, commands[i]));
	ck_assert_int_eq(version.code, 0);
	ck_assert_ptr_nonnull(strstr((char *)version.out, "terracectl 0."));
	ctl_run_free(&run);
	ctl_run_free(&version);
}
END_TEST

static const struct {
	const char *json, *says;
} layouts[] = {
	{"", "line 1"},
	{"[]", "it has no layouts"}, {"{\"layouts\": []}", "it has no layouts"}, {"{\"layouts\": [{\"layout\": 1}]}", "'layout': not an object"},
	{"[1]", "not an object"},
	{"{\"layers\": \"many\"}", "'layers'"},
	{"{\"layers\": -1}", "'layers'"},
	{"{\"layers\": 4294967296}", "'layers'"},
	{"{\"colour\": 1}", "'colour'"},
	{"{\"fingerprint\": \"00\"}", "'fingerprint'"},
	{"{\"k_format\": \"tq9\"}", "'k_format'"},
	{"{\"keep_last\": -1}", "'keep_last'"}, {"{\"keep_last\": true}", "'keep_last'"},
	{"{\"partial\": 1}", "'partial'"}, {"{\"sparse\": \"yes\"}", "'sparse'"},
	{"{\"unit_tokens\": 16}", "'unit_tokens'"},
	{"{\"unit_tokens\": 0, \"layouts\": [{}]}", "unit_tokens: it is a number of 1 to 65535"},
	{"{\"unit_tokens\": \"16\", \"layouts\": [{}]}", "unit_tokens: it is a number of 1 to 65535"},
	{"{\"layout_version\": 99}", "'layout_version'"},
	{"{\"head_dim_k\": 80, \"rotation_version\": 1}", "'rotation_version': not the one of these head dims"},
	{"{\"head_dim_k\": 64, \"rotation_version\": 2}", "'rotation_version': not the one of these head dims"},
	{"{\"head_dim_k\": 64, \"rotation_version\": \"1\"}", "'rotation_version'"},
	{"{\"int4_rounding\": \"bf16\"}", "'int4_rounding'"},
	{"{\"rope_dim\": -1}", "'rope_dim'"}, {"{\"rope_format\": 2}", "'rope_format'"},
	{"{\"layers\": 1, \"layers\": 1}", "duplicate"},
	{"{\"layers\": 1}", "layout 0"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": -16}", "'opaque_bytes'"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": \"16\"}", "'opaque_bytes'"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": 17, \"opaque_name\": \"a/1\"}", "no multiple of 16"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": 4294967312, \"opaque_name\": \"a/1\"}", "more than 1073737728"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": 16, \"opaque_name\": 1}", "'opaque_name'"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": 16, \"opaque_name\": \"a\"}", "no version"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": 16, \"opaque_name\": \"a/1\", \"head_dim_k\": 64}", "of codecs"},
	{"{\"k_format\": \"opaque\", \"block_tokens\": 16, \"opaque_bytes\": 16, \"opaque_name\": \"a/1\", \"codebook_version\": 1}",
	 "'codebook_version'"},
};

START_TEST(bad_layouts_are_refused)
{
	char path[] = "/tmp/terrace-layouts-XXXXXX";
	int fd = mkstemp(path);
	struct ctl_run run;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, layouts[_i].json, strlen(layouts[_i].json)),
			 (ssize_t)strlen(layouts[_i].json));
	close(fd);
	run = CTL_RUN("lookup", "--layouts", path, KEY);
	unlink(path);
	ck_assert_msg(run.code == 1, "exit code %d: %s", run.code, run.err);
	ck_assert_msg(strstr(run.err, layouts[_i].says) != NULL, "'%s' is not in: %s", layouts[_i].says,
		      run.err);
	ctl_run_free(&run);
}
END_TEST

static const struct {
	const char *text;
	size_t bytes;
} bad_tokens[] = {
	{"1 2 x", 5}, {"1 2 -3", 6}, {"4294967296", 10}, {"1.5", 3}, {"99999999999999999999999999", 26},
	{"1 2\0 3 4 5 6 7 8 9 10 11 12 13 14 15 16", 40}, {"\0", 1},
};

START_TEST(bad_tokens_are_refused)
{
	struct ctl_run run = ctl_run((const char *const[]){"lookup", "--tokens", "-", NULL}, bad_tokens[_i].text,
				     bad_tokens[_i].bytes);

	ck_assert_int_eq(run.code, 1);
	ck_assert_msg(strstr(run.err, "is no token id") != NULL, "%s", run.err);
	ctl_run_free(&run);
}
END_TEST

static const struct {
	const char *line; /* a shell's, behind a program */
	const char *program;
} unprinted[] = {
	{"--version >/dev/full", TERRACECTL},	{"--version >&-", TERRACECTL},	    {"--help >/dev/full", TERRACECTL},
	{"help stat >&-", TERRACECTL},		{"--version >/dev/full", TERRACED}, {"--help >&-", TERRACED},
	{"--print-config >/dev/full", TERRACED}, {"--check-config --data-dir /tmp >&-", TERRACED},
};

/* Daemons that start at the same time with one socket: one gets it. gRPC takes the path from whoever has it. */
START_TEST(one_daemon_a_socket)
{
	enum { DAEMONS = 4 };
	char folder[] = "/tmp/terrace-usage-XXXXXX", data[DAEMONS][48], path[64];
	pid_t pids[DAEMONS];
	int ended = 0, status;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/s", folder);
	for (int i = 0; i < DAEMONS; i++) {
		snprintf(data[i], sizeof(data[i]), "%s/%d", folder, i);
		pids[i] = fork();
		if (pids[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(TERRACED, TERRACED, "--data-dir", data[i], "--socket", path, "--fd-socket", "off", "--host-bytes", "1MiB",
		      "--log-level", "error", (char *)NULL);
		_exit(127);
	}
	while (ended < DAEMONS - 1) { /* those that end by themselves: the suite's time limit is the bound */
		pid_t gone = waitpid(-1, &status, 0);

		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		for (int i = 0; i < DAEMONS; i++)
			pids[i] = pids[i] == gone ? 0 : pids[i];
		ended++;
	}
	for (int i = 0; i < DAEMONS; i++) {
		if (pids[i])
			kill(pids[i], SIGTERM);
	}
	ck_assert_int_gt(waitpid(-1, &status, 0), 0);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < DAEMONS; i++) {
		snprintf(path, sizeof(path), "%s/%d/lock", folder, i);
		unlink(path);
		rmdir(data[i]);
	}
	ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

/* Layouts with a head dim of the second rotation version, int4_pth of a bf16 model and a rope part are taken as
 * they are printed: what is wrong is the address then. */
START_TEST(later_layouts_are_read)
{
#define LATER(rest)                                                                                                   \
	"{\"fingerprint\": \"0000000000000000000000000000000000000000000000000000000000000000\", \"layers\": 1, " \
	"\"heads\": 1, \"block_tokens\": 16, " rest "}"
	static const char *const sound[] = {
		LATER("\"head_dim_k\": 80, \"k_format\": \"tq4\", \"v_format\": \"fp8\", \"rotation_version\": 2"),
		LATER("\"head_dim_k\": 64, \"head_dim_v\": 512, \"k_format\": \"tq4\", \"v_format\": \"fp8\", "
		      "\"rotation_version\": 2"),
		LATER("\"head_dim_k\": 64, \"k_format\": \"int4_pth\", \"v_format\": \"tq4\", \"int4_rounding\": 1"),
		LATER("\"head_dim_k\": 512, \"k_format\": \"tq4\", \"v_format\": \"none\", \"rotation_version\": 2, "
		      "\"rope_dim\": 64, \"rope_format\": \"bf16\""),
	};
#undef LATER
	char path[] = "/tmp/terrace-layouts-XXXXXX";
	int fd = mkstemp(path);
	struct ctl_run run;

	ck_assert_int_eq(write(fd, sound[_i], strlen(sound[_i])), (ssize_t)strlen(sound[_i]));
	close(fd);
	run = CTL_RUN("lookup", "--address", "rubbish", "--layouts", path, KEY);
	unlink(path);
	ck_assert_msg(run.code == 2 && strstr(run.err, "rubbish"), "exit code %d: %s", run.code, run.err);
	ctl_run_free(&run);
}
END_TEST

/* Whichever way a command takes to the daemon: what is no address is a mistake of the line. */
START_TEST(no_address_is_usage)
{
	static const char sound[] = "{\"fingerprint\": \"0000000000000000000000000000000000000000000000000000000000000000\", \"layers\": 1, "
				    "\"heads\": 1, \"head_dim_k\": 64, \"block_tokens\": 16, \"k_format\": \"tq4\", \"v_format\": \"tq4\"}";
	static const char *const through[] = {"lookup", "warm", "flush"};
	char path[] = "/tmp/terrace-layouts-XXXXXX";
	int fd = mkstemp(path);

	ck_assert_int_eq(write(fd, sound, sizeof(sound) - 1), sizeof(sound) - 1);
	close(fd);
	for (size_t i = 0; i < COUNT(through); i++) {
		struct ctl_run run = CTL_RUN(through[i], "--address", "rubbish", "--layouts", path, KEY);

		ck_assert_msg(run.code == 2, "exit code %d: %s", run.code, run.err);
		ck_assert_ptr_nonnull(strstr(run.err, "rubbish"));
		ctl_run_free(&run);
	}
	unlink(path);
}
END_TEST

/* What could not be printed is a failure, and said. */
START_TEST(unprinted_is_failed)
{
	char line[1024], said[256] = "";
	FILE *run;
	int status;

	snprintf(line, sizeof(line), "{ %s %s; } 2>&1", unprinted[_i].program, unprinted[_i].line);
	run = popen(line, "r");
	ck_assert_ptr_nonnull(run);
	ck_assert_uint_gt(fread(said, 1, sizeof(said) - 1, run), 0);
	status = pclose(run);
	ck_assert_int_eq(WEXITSTATUS(status), 1);
	ck_assert_msg(strstr(said, ": standard output: ") != NULL, "%s", said);
}
END_TEST

/* A daemon without a standard error does not log into the first file that it opens, which is the lock of its data folder. */
START_TEST(log_goes_nowhere_else)
{
	char folder[] = "/tmp/terrace-usage-XXXXXX", line[1024], lock[64];
	struct stat st;
	int status;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(lock, sizeof(lock), "%s/lock", folder);
	snprintf(line, sizeof(line), "exec %s --data-dir %s --socket %s 2>&-", TERRACED, folder, lock);
	status = system(line); /* the lock is no socket: logged, and the end */
	ck_assert_int_eq(WEXITSTATUS(status), 1);
	ck_assert_int_eq(stat(lock, &st), 0);
	ck_assert_int_eq(st.st_size, 0);
	unlink(lock);
	ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("ctl_usage");
	TCase *tests = tcase_create("usage");
	int failed;
	SRunner *runner;

	unsetenv("TERRACE_ADDRESS");
	tcase_set_timeout(tests, 60);
	tcase_add_loop_test(tests, line_is_refused, 0, COUNT(lines));
	tcase_add_loop_test(tests, line_is_refused_in_json, 0, COUNT(lines));
	tcase_add_test(tests, a_plan_is_printed);
	tcase_add_loop_test(tests, help_is_a_page, 0, COUNT(commands));
	tcase_add_test(tests, overview_names_all);
	tcase_add_loop_test(tests, bad_layouts_are_refused, 0, COUNT(layouts));
	tcase_add_loop_test(tests, later_layouts_are_read, 0, 4);
	tcase_add_loop_test(tests, bad_tokens_are_refused, 0, COUNT(bad_tokens));
	tcase_add_test(tests, one_daemon_a_socket);
	tcase_add_test(tests, no_address_is_usage);
	tcase_add_test(tests, log_goes_nowhere_else);
	tcase_add_loop_test(tests, unprinted_is_failed, 0, COUNT(unprinted));
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
