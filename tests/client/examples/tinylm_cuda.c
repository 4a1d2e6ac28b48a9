/* tinylm --device cuda over a device that is none (sim/device.h): the same perplexities and texts as on the CPU, blocks that
 * go to the daemon and come back, and words where there is no GPU. Numbers of real kernels: tests/gpu/tinylm.sh. */
#include <check.h>
#include <jansson.h>

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef TERRACE_TESTS_SMALL
#define PPL "--ppl --json --windows 1 --window-tokens 530 --chunk 100 --formats tq4"
#define DEMO "--demo --json --formats tq4 -n 4 --demo-windows 1 --window-tokens 32"
#else
#define PPL "--ppl --json --windows 1 --window-tokens 1100 --chunk 100 --formats fp16,fp8,tq4"
#define DEMO "--demo --json --formats fp8,tq2 -n 24 --demo-windows 1 --window-tokens 64"
#endif
#define MODEL "--model " TEST_DATA "/tinylm-8m "

static char folder[64], address[96];
static pid_t daemon_pid;

/* Runs tinylm with `environment` before it; returns its exit code, and its stdout in out (with stderr, if `both`). */
static int run(const char *environment, const char *arguments, bool both, char *out, size_t room)
{
	char command[2048];
	size_t got;
	FILE *f;
	int status;

	snprintf(command, sizeof(command), "%s %s " MODEL "%s %s </dev/null", environment, TINYLM, arguments,
		 both ? "2>&1" : "");
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	got = fread(out, 1, room - 1, f);
	out[got] = 0;
	status = pclose(f);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

#define ON_DEVICE "LD_LIBRARY_PATH=" HOST_DEVICE

static json_t *json_of(const char *arguments)
{
	static char out[1 << 16];
	int code = run(ON_DEVICE, arguments, false, out, sizeof(out));
	json_t *root = json_loads(out, 0, NULL);

	ck_assert_msg(code == 0, "tinylm %s: exit code %d:\n%s", arguments, code, out);
	ck_assert_msg(root != NULL, "tinylm %s said:\n%s", arguments, out);
	return root;
}

START_TEST(test_refusals)
{
	static const struct {
		const char *environment, *arguments, *says;
		int code;
	} rows[] = {
		{ "SIM_GPU_PROBLEM='no such thing' " ON_DEVICE, "--ppl --device cuda",
		  "tinylm: --device cuda: no CUDA device: no such thing", 2 },
		{ "LD_LIBRARY_PATH=" HOST_DEVICE "/empty", "--ppl --device cuda", "tinylm: --device cuda: no CUDA:", 2 },
		{ "LD_LIBRARY_PATH=" HOST_DEVICE "/empty", "--ppl --device cpu --windows 1 --window-tokens 16", "tq4 ", 0 },
		{ ON_DEVICE, "--ppl --device gpu", "cpu or cuda", 2 },
		{ ON_DEVICE, "--ppl --device", "--device needs D", 2 },
		{ ON_DEVICE, "--generate x --format fp32 --device cuda", "packed", 2 },
		{ ON_DEVICE, "--ppl --device cuda --windows 1 --chunk 1025", "at most 1024", 1 },
		{ ON_DEVICE, "--ppl --device cuda --windows 1 --window-tokens 16 --formats fp8/tq2",
		  "no kernel", 1 },
	};
	char out[8192];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int code = run(rows[i].environment, rows[i].arguments, true, out, sizeof(out));

		ck_assert_msg(code == rows[i].code, "tinylm %s: exit code %d, not %d:\n%s", rows[i].arguments, code,
			      rows[i].code, out);
		ck_assert_msg(strstr(out, rows[i].says) != NULL, "tinylm %s said:\n%s", rows[i].arguments, out);
	}
}
END_TEST

/* How far apart perplexities in nats may be, some 1000 tokens: noise of 1e-4 in attention makes other codes here and there, which
 * moved the coarser formats by as much as half of this in experiments; what reads wrong tokens moves them by far more. */
static double bound_of(const char *format)
{
	return strncmp(format, "fp", 2) == 0 ? 1e-3 : 1e-2;
}

/* Rows of several spans, chunks that begin within a block, blocks that do not divide a span. The kernels are the CPU's, but for the
 * order of sums. */
START_TEST(test_perplexity)
{
#ifdef TERRACE_TESTS_SMALL
	const char *const extra[] = { " --block-tokens 48" };
#else
	const char *const extra[] = { "", " --block-tokens 48" };
#endif

	for (size_t e = 0; e < sizeof(extra) / sizeof(extra[0]); e++) {
		char arguments[256];
		json_t *cpu, *device, *rows;

		snprintf(arguments, sizeof(arguments), PPL "%s", extra[e]);
		cpu = json_of(arguments);
		strcat(arguments, " --device cuda");
		device = json_of(arguments);
		rows = json_object_get(device, "formats");
		ck_assert_uint_ge(json_array_size(rows), 2);
		for (size_t i = 0; i < json_array_size(rows); i++) {
			const char *format = json_string_value(json_object_get(json_array_get(rows, i), "format"));
			const json_t *a = json_array_get(json_object_get(cpu, "formats"), i), *b = json_array_get(rows, i);
			double by = json_real_value(json_object_get(b, "nats")) - json_real_value(json_object_get(a, "nats"));

			ck_assert_msg(by > -bound_of(format) && by < bound_of(format), "%s: %+.6f nats", format, by);
		}
		json_decref(cpu);
		json_decref(device);
	}
}
END_TEST

/* ---- with a daemon ----------------------------------------------------------------------------------------------- */

/* lends: the memory of the device. */
static void start(bool lends)
{
	const time_t until = time(NULL) + 60;
	char socket[96], data[96], log[96];

	strcpy(folder, "/tmp/tinylm-cuda-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(address, sizeof(address), "unix:%s/t.sock", folder);
	snprintf(socket, sizeof(socket), "%s/t.sock", folder);
	snprintf(data, sizeof(data), "%s/data", folder);
	snprintf(log, sizeof(log), "%s/log", folder);
	daemon_pid = fork();
	ck_assert_int_ge(daemon_pid, 0);
	if (daemon_pid == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
		if (lends)
			setenv("LD_LIBRARY_PATH", HOST_DEVICE, 1);
		execl(TERRACED, "terraced", "--data-dir", data, "--socket", socket, "--gpus", lends ? "all" : "off", "--gpu-bytes",
		      "64MiB", (char *)NULL);
		_exit(127);
	}
	while (access(socket, F_OK) != 0 && time(NULL) < until)
		usleep(50000);
	ck_assert_int_eq(access(socket, F_OK), 0);
}

static void start_daemon(void)
{
	start(false);
}

static void start_lender(void)
{
	start(true);
}

/* A number of the daemon's statistics. */
static double stat_of(const char *name)
{
	char command[512], line[256];
	double value = -1;
	FILE *f;

	snprintf(command, sizeof(command), "%s --address %s stat '%s'", TERRACECTL, address, name);
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			value = strtod(line + strlen(name), NULL);
	ck_assert_int_eq(pclose(f), 0);
	ck_assert_msg(value >= 0, "no %s", name);
	return value;
}

static void stop_daemon(void)
{
	char command[128];
	int status;

	kill(daemon_pid, SIGTERM);
	ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	ck_assert_int_eq(system(command), 0);
}

/* The demo checks its own promises: texts with and without the daemon are the same, also from a second process. */
START_TEST(test_demo)
{
	char arguments[256];
	json_t *root;

	snprintf(arguments, sizeof(arguments), DEMO " --device cuda --daemon %s", address);
	root = json_of(arguments);
	ck_assert(json_is_true(json_object_get(root, "ok")));
	json_decref(root);
}
END_TEST

#define PROMPT "'The configuration file has one option in a line. Empty lines and lines that start with a number sign are " \
	"ignored. If the file is changed while the daemon is running, the daemon must be told to read it again, with the reload " \
	"command or the signal for it. The following options are available:'"

/* Blocks that one device stored serve the other, both ways: the texts are that of an engine on its own. */
static void check_across(void)
{
	char arguments[768];
	json_t *alone = json_of("--generate " PROMPT " -n 24 --json");

	for (int stored_by = 0; stored_by < 2; stored_by++) {
		for (int turn = 0; turn < 2; turn++) {
			json_t *root;

			snprintf(arguments, sizeof(arguments), "--generate " PROMPT
				 " -n 24 --json --salt across%d --daemon %s --device %s", stored_by, address,
				 (turn == 0) == (stored_by == 0) ? "cpu" : "cuda");
			root = json_of(arguments);
			ck_assert_str_eq(json_string_value(json_object_get(root, "text")),
					 json_string_value(json_object_get(alone, "text")));
			ck_assert_int_ge(json_integer_value(json_object_get(root, turn ? "reused_tokens" : "stored_blocks")),
					 turn ? 48 : 4);
			json_decref(root);
		}
	}
	json_decref(alone);
}

START_TEST(test_across)
{
	check_across();
}
END_TEST

/* The same, attended where they lie in the GPU's memory: nothing is copied in or out but by the daemon. */
START_TEST(test_lent)
{
	check_across();
	ck_assert(stat_of("terrace_blocks{tier=gpu}") >= 8);
	ck_assert(stat_of("terrace_moved_bytes_total{from=host,to=gpu}") > 0);
	ck_assert(stat_of("terrace_moved_bytes_total{from=gpu,to=host}") > 0);
	ck_assert(stat_of("terrace_leases") == 0 && stat_of("terrace_reservations") == 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tinylm_cuda");
	TCase *alone = tcase_create("alone"), *served = tcase_create("daemon"), *lent = tcase_create("lent");
	SRunner *runner;
	int failed;

	tcase_set_timeout(alone, 250);
	tcase_add_test(alone, test_refusals);
	tcase_add_test(alone, test_perplexity);
	tcase_set_timeout(served, 250);
	tcase_add_checked_fixture(served, start_daemon, stop_daemon);
	tcase_add_test(served, test_demo);
	tcase_add_test(served, test_across);
	suite_add_tcase(suite, alone);
	suite_add_tcase(suite, served);
	tcase_set_timeout(lent, 250);
	tcase_add_checked_fixture(lent, start_lender, stop_daemon);
	tcase_add_test(lent, test_demo);
	tcase_add_test(lent, test_lent);
	suite_add_tcase(suite, lent);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
