/* terrace-bench NAME [OPTION]...; README.md says what each bench means. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/echo.h"
#include "tests/bench/pairs.h"
#include "tests/bench/raw_tls.h"

struct bench_options bench_options = {.rounds = BENCH_ROUNDS, .pairs = BENCH_PAIRS, .redis = "redis-server"};

static const struct bench benches[] = {
	{"rpc", "unary calls against a bare gRPC echo", bench_rpc},
	{"lease", "lease, read in place, release against Redis GET", bench_lease},
	{"index", "bytes a block and lookups with a million blocks", bench_index},
	{"kernels", "encode, decode, attend of every format", bench_kernels},
	{"repack", "int4_pth to and from an engine's pages", bench_repack},
	{"put", "puts by borrow and by stream against Redis SET", bench_put},
	{"opaque", "opaque blocks beside packed ones of as many bytes", bench_opaque},
	{"network", "blocks by stream over TLS to another machine against one raw TLS stream", bench_network},
	{"fetch", "lists of blocks leased from another member of a cluster against one raw TLS stream", bench_fetch},
	{"member", "lookups and leases of a member of a cluster against those of a lone daemon", bench_member},
	{"nvme", "a disk's ring on io_uring and on threads against fio", bench_nvme},
	{"restart", "a restart with a million blocks on disk", bench_restart},
	{"spill", "lookups in memory while everything put is spilled", bench_spill},
	{"advisor", "the advisor's round at a million blocks, and lookups beside it", bench_advisor},
	{"vram", "blocks between disk, memory and a GPU against the device itself", bench_vram},
	{"lists", "long calls to and from a GPU against the device itself", bench_lists},
	{"sums", "checksums of blocks in memory that no cache has", bench_sums},
	{"caches", "copies to a GPU of what processors have just read", bench_caches},
	{"tail", "where the slowest .1 % of the calls went, beside storms", bench_tail},
	{"clients", "1 to 12 engine processes that look up, lease and put; another build beside", bench_clients, true},
	{"growth", "puts of 8 engine processes while memory grows", bench_growth, true},
	{"handover", "the first put of a model where another one has filled memory", bench_handover, true},
};
enum { BENCH_COUNT = sizeof(benches) / sizeof(benches[0]) };

static void print_usage(FILE *to)
{
	fprintf(to,
		"usage: terrace-bench {NAME | all} [OPTION]...\n       terrace-bench --list\n"
		"  --json           one JSON object a line: bench, case, value, unit, baseline, ratio, "
		"target, ok\n"
		"  --check          exit code 1 if a target is missed\n"
		"  --quick          %d rounds instead of %d: to see that it works\n"
		"  --busy-poll      the daemon and its client poll for %d ms before they sleep\n"
		"  --no-near        every call goes by gRPC\n"
		"  --terraced PATH  the daemon to measure; without it the one of this build\n"
		"  --against BUILD  the folder of another build: clients, growth and handover run its daemon and\n"
		"                   library, all others its own terrace-bench, in turns with this build's\n"
		"  --pairs N        so many runs of both builds' terrace-bench instead of %d, at most %d\n"
		"  --seconds S      no further pair is begun after so many seconds; what was measured is printed\n"
		"  --redis PATH     redis-server; without it the one in $PATH\n"
		"Exit codes: 0 done, 1 failed or (--check) a target was missed, 2 usage, 77 the bench needs "
		"what is not installed.\n",
		BENCH_ROUNDS_QUICK, BENCH_ROUNDS, BENCH_BUSY_POLL_MS, BENCH_PAIRS, BENCH_PAIRS_MAX);
}

static int list(void)
{
	for (int i = 0; i < BENCH_COUNT; i++)
		printf("%-8s %s\n", benches[i].name, benches[i].summary);
	return 0;
}

/* The build's layout: this program in tests/, the daemon in daemon/. */
static const char *find_terraced(void)
{
	static char path[4096 + 32];
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (!slash)
		return "terraced";
	*slash = '\0';
	snprintf(path, sizeof(path), "%s/../daemon/terraced", self);
	if (access(path, X_OK) == 0)
		return path;
	snprintf(path, sizeof(path), "%s/terraced", self);
	return access(path, X_OK) == 0 ? path : "terraced";
}

static bool read_number(const char *option, const char *text, unsigned max, unsigned *number)
{
	char *end;
	const unsigned long n = strtoul(text, &end, 10);

	if (text[0] >= '1' && text[0] <= '9' && !*end && n <= max) {
		*number = (unsigned)n;
		return true;
	}
	fprintf(stderr, "terrace-bench: %s '%s': give a number from 1 to %u\n", option, text, max);
	return false;
}

/* -1: go on; else the exit code. */
static int parse(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},	 {"check", no_argument, NULL, 'c'},
		{"quick", no_argument, NULL, 'q'},	 {"busy-poll", no_argument, NULL, 'b'},
		{"no-near", no_argument, NULL, 'n'},
		{"against", required_argument, NULL, 'a'},
		{"pairs", required_argument, NULL, 'p'},
		{"seconds", required_argument, NULL, 's'},
		{"terraced", required_argument, NULL, 't'},
		{"redis", required_argument, NULL, 'r'}, {"list", no_argument, NULL, 'l'},
		{"help", no_argument, NULL, 'h'},	 {0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case 'j':
			bench_options.json = true;
			break;
		case 'c':
			bench_options.check = true;
			break;
		case 'q':
			bench_options.quick = true;
			bench_options.rounds = BENCH_ROUNDS_QUICK;
			break;
		case 'b':
			bench_options.busy_poll = true;
			break;
		case 'n':
			bench_options.no_local = true;
			break;
		case 'a':
			bench_options.against = optarg;
			break;
		case 'p':
			if (!read_number("--pairs", optarg, BENCH_PAIRS_MAX, &bench_options.pairs))
				return 2;
			break;
		case 's':
			if (!read_number("--seconds", optarg, BENCH_SECONDS_MAX, &bench_options.seconds))
				return 2;
			break;
		case 't':
			bench_options.terraced = optarg;
			break;
		case 'r':
			bench_options.redis = optarg;
			bench_options.redis_named = true;
			break;
		case 'l':
			return list();
		case 'h':
			print_usage(stdout);
			return 0;
		default:
			print_usage(stderr);
			return 2;
		}
	}
	if (optind + 1 != argc) {
		print_usage(stderr);
		return 2;
	}
	return -1;
}

static int run_named(int argc, char **argv)
{
	bool all, known = false;
	int code, skipped = 0, run = 0;

	if (argc == 3 && !strcmp(argv[1], ECHO_SERVER_COMMAND))
		return echo_serve(argv[2]);
	if (argc == 3 && !strcmp(argv[1], RAW_TLS_SERVER_COMMAND))
		return raw_tls_serve(argv[2]);
	code = parse(argc, argv);
	if (code >= 0)
		return code;
	all = !strcmp(argv[optind], "all");
	for (int i = 0; i < BENCH_COUNT; i++)
		known = known || !strcmp(argv[optind], benches[i].name);
	if (!all && !known) {
		fprintf(stderr, "terrace-bench: no bench '%s'; --list names them\n", argv[optind]);
		return 2;
	}
	if (!bench_options.terraced)
		bench_options.terraced = find_terraced();
	bench_folder_make();
	for (int i = 0; i < BENCH_COUNT; i++) {
		if (!all && strcmp(argv[optind], benches[i].name))
			continue;
		run++;
		if (bench_options.against && !benches[i].two_builds)
			skipped += pairs_run(benches[i].name) == BENCH_SKIPPED;
		else
			skipped += benches[i].run() == BENCH_SKIPPED;
	}
	if (skipped == run)
		return BENCH_SKIPPED;
	return bench_options.check && bench_missed() ? 1 : 0;
}

int main(int argc, char **argv)
{
	const int code = run_named(argc, argv);

	if (!fflush(stdout) && !ferror(stdout))
		return code;
	fprintf(stderr, "terrace-bench: standard output: %s\n", strerror(errno));
	return 1;
}
