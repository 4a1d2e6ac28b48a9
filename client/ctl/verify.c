/* terracectl verify: many short calls. So there is progress to show, and an interrupt stops the daemon's work too. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/values.h"
#include "client/value/clock.h"
#include "client/ctl/daemon.h"
#include "client/ctl/output.h"
#include "terrace.pb-c.h"

enum { OPTION_RATE, OPTION_REBUILD };
enum { PIECE_MS = 500, LOOK_MS = 100, BAR_COLUMNS = 30 };
#define VERIFY_TIMEOUT_US (3600ull * 1000000)
#define CALL_TIMEOUT_US (60ull * 1000000)

struct sums {
	uint64_t blocks, bytes, corrupt, unread, total;
	uint64_t began_us;
	bool complete;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

/* Shows the progress in one line of a terminal, which is written over and over. Blocks come and go meanwhile: it never
 * says more than all. */
static void show_bar(const struct sums *s)
{
	const double seconds = (double)(client_now_us() - s->began_us + 1) / 1e6;
	const uint64_t total = s->total > s->blocks ? s->total : s->blocks;
	const int full = total ? (int)(s->blocks * BAR_COLUMNS / total) : BAR_COLUMNS;

	fprintf(stderr, "\r[%.*s%*s] %3d %%  %llu of %llu blocks, %.1f MiB/s, %llu damaged\x1b[K", full,
		"##############################", BAR_COLUMNS - full, "", total ? (int)(s->blocks * 100 / total) : 100,
		(unsigned long long)s->blocks, (unsigned long long)total, (double)s->bytes / seconds / (1 << 20),
		(unsigned long long)s->corrupt);
}

static void clear_bar(void)
{
	fputs("\r\x1b[K", stderr);
}

/* Waits to keep the rate, until_us at most. An interrupt is seen soon. */
static void rest(uint64_t wait_ms, uint64_t until_us)
{
	const uint64_t began_us = client_now_us(), left_ms = until_us > began_us ? (until_us - began_us) / 1000 : 0;

	if (wait_ms > left_ms)
		wait_ms = left_ms;
	while (wait_ms && !interrupted) {
		const uint64_t ms = wait_ms < LOOK_MS ? wait_ms : LOOK_MS;

		usleep((useconds_t)ms * 1000);
		wait_ms -= ms;
	}
}

static int verify(const struct ctl_args *args, struct ctl_daemon *d, uint64_t rate, struct sums *s)
{
	const uint64_t until = s->began_us + (args->timeout_us ? args->timeout_us : VERIFY_TIMEOUT_US);
	const bool bar = !args->json && isatty(STDERR_FILENO);
	Terrace__V1__VerifyRequest request = TERRACE__V1__VERIFY_REQUEST__INIT;
	int code = CTL_OK;

	request.max_bytes_per_second = rate;
	request.max_ms = PIECE_MS;
	request.rebuild = args->value[OPTION_REBUILD] != NULL;
	while (!s->complete && !interrupted && !code) {
		const uint64_t now = client_now_us(), left = until > now ? until - now : 1;
		Terrace__V1__VerifyReply *reply;

		code = ctl_daemon_call(d, CLIENT_ADMIN_VERIFY, &request.base, &terrace__v1__verify_reply__descriptor,
				       left < CALL_TIMEOUT_US ? left : CALL_TIMEOUT_US, &reply);
		if (code)
			break;
		s->blocks += reply->blocks;
		s->bytes += reply->bytes;
		s->corrupt += reply->corrupt;
		s->unread += reply->unread;
		s->total = reply->total_blocks;
		s->complete = reply->next == 0;
		request.from = reply->next;
		if (bar)
			show_bar(s);
		rest(reply->wait_ms, until);
	}
	if (bar)
		clear_bar();
	return code;
}

static int print_sums(const struct ctl_args *args, const struct sums *s)
{
	struct json_t *tree = out_object();

	out_put_uint(tree, "blocks", s->blocks);
	out_put_uint(tree, "bytes", s->bytes);
	out_put_uint(tree, "corrupt", s->corrupt);
	out_put_uint(tree, "unread", s->unread);
	out_put_uint(tree, "elapsed_ms", (client_now_us() - s->began_us) / 1000);
	out_put_bool(tree, "complete", s->complete);
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	if (!s->complete)
		return ctl_failed("verify: it was interrupted before the end: what was printed is of a part; run it again for all");
	if (s->unread)
		ctl_failed("verify: %llu blocks were not read: their disk is slow or has failed: see its health in 'terracectl stat'", (unsigned long long)s->unread);
	return s->corrupt ? CTL_DAMAGED : s->unread ? CTL_FAILED : CTL_OK;
}

int ctl_run_verify(const struct ctl_args *args)
{
	struct sigaction action = {.sa_handler = on_signal};
	const char *rate = args->value[OPTION_RATE];
	struct sums s = {.began_us = client_now_us()};
	uint64_t bytes_per_second = 0;
	struct ctl_daemon d;
	int code;

	if (rate && (!ctl_parse_bytes(rate, &bytes_per_second) || !bytes_per_second))
		return ctl_usage(args->command, "verify: --rate %s: not a number of bytes above 0, as 100MiB", rate);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	code = ctl_daemon_open(args, &d);
	if (!code)
		code = verify(args, &d, bytes_per_second, &s);
	if (!code)
		code = print_sums(args, &s);
	ctl_daemon_close(&d);
	return code;
}
