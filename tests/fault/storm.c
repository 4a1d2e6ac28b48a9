/* The engines of the kill storm (tests/fault/test_kill.py) and of the endurance run (tests/fault/test_endurance.py): small processes that use a daemon hard and are killed at any moment.
 *
 *     storm victim ADDRESS SEED   leases and checks, reserves, half-writes, commits, aborts, for ever; "ready" once it has begun
 *     storm reader ADDRESS        leases and checks for ever, with the victims' share of the machine left to them; at SIGTERM prints how many
 *                                 blocks it checked
 *     storm holder ADDRESS        leases, forks a child that keeps the mapping, prints "PID OF CHILD" and waits
 *     storm worker ADDRESS SEED   what a victim does, at a moderate pace; at SIGTERM prints how many blocks it checked
 *     storm weaver ADDRESS SEED   leases block after block and holds the last few, until SIGTERM: the graph gets the edges that it may have
 *     storm hog ADDRESS SEED      leases as much as it can get, again and again, for five seconds
 *
 * Every block describes itself (storm_blocks.h). Exit 1: a wrong byte, told on stderr.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/storm_blocks.h"

enum { KEYS = 512, RUN = STORM_RUN };

static struct terrace_layout layout = {
	.size = sizeof(struct terrace_layout),
	.fingerprint = "storm",
	.layers = 4,
	.heads = 4,
	.total_heads = 4,
	.head_dim_k = 128,
	.head_dim_v = 128,
	.block_tokens = 16,
	.k_format = TERRACE_FORMAT_TQ4,
	.v_format = TERRACE_FORMAT_TQ4,
};
static uint64_t words;
static volatile sig_atomic_t ended;

static void fill(uint64_t *block, uint64_t number, uint64_t seed, uint64_t count)
{
	block[0] = seed;
	for (uint64_t i = 1; i < count; i++)
		block[i] = storm_word(number, seed, i);
}

static void check(const uint64_t *block, uint64_t number)
{
	if (storm_wrong(block, number, words))
		exit(1);
}

/* Leases a random run and checks every word of it. Returns the blocks checked. */
static uint64_t lease_and_check(struct terrace_session *session)
{
	uint8_t bytes[RUN][16];
	uint64_t first;
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, RUN);
	struct terrace_lease *lease;
	enum terrace_status status = terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease);
	if (status == TERRACE_MISS || status == TERRACE_EXHAUSTED)
		return 0;
	storm_must(status, "lease");
	uint32_t count = terrace_lease_count(lease);
	for (uint32_t i = 0; i < count; i++)
		check(terrace_lease_block(lease, i, 0), first + i);
	terrace_release(lease);
	return count;
}

static void put(struct terrace_session *session)
{
	uint8_t bytes[RUN][16];
	uint64_t first;
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, 1 + (uint32_t)storm_draw(RUN));
	struct terrace_reservation *reservation;
	enum terrace_status statuses[RUN];
	enum terrace_status status = terrace_reserve(session, &keys, NULL, 0, statuses, &reservation);
	if (status == TERRACE_EXHAUSTED)
		return;
	storm_must(status, "reserve");
	uint64_t kind = storm_draw(3);
	for (uint32_t i = 0; i < keys.count; i++) {
		uint64_t *block = terrace_reservation_block(reservation, i, 0);
		if (block != NULL)
			fill(block, first + i, storm_draw(UINT64_MAX), kind == 0 ? 1 + storm_draw(words) : words);
	}
	if (kind == 0)
		terrace_abort(reservation);
	else
		storm_must(terrace_commit(reservation, 0, statuses, NULL), "commit");
}

static void forget(struct terrace_session *session)
{
	uint8_t bytes[RUN][16];
	uint64_t first;
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, 1);
	storm_must(terrace_delete(session, &keys, 0, NULL), "delete");
}

static _Noreturn void victim(struct terrace_session *session)
{
	for (uint64_t turn = 0;; turn++) {
		lease_and_check(session);
		put(session);
		if (storm_draw(8) == 0)
			forget(session);
		if (turn == 0) {
			puts("ready");
			fflush(stdout);
		}
	}
}

static void on_term(int signum)
{
	(void)signum;
	ended = 1;
}

static int reader(struct terrace_session *session)
{
	const struct timespec pause = { 0, 300 * 1000 };
	uint64_t checked = 0;

	signal(SIGTERM, on_term);
	puts("ready");
	fflush(stdout);
	while (!ended) {
		checked += lease_and_check(session);
		nanosleep(&pause, NULL);
	}
	printf("%" PRIu64 "\n", checked);
	return 0;
}

static int worker(struct terrace_session *session)
{
	const struct timespec pause = { 0, 1000 * 1000 };
	uint64_t checked = 0;

	signal(SIGTERM, on_term);
	puts("ready");
	fflush(stdout);
	while (!ended) {
		checked += lease_and_check(session);
		if (storm_draw(4) == 0)
			put(session);
		if (storm_draw(64) == 0)
			forget(session);
		nanosleep(&pause, NULL);
	}
	printf("%" PRIu64 "\n", checked);
	return 0;
}

static int weaver(struct terrace_session *session)
{
	struct terrace_lease *held[5] = { NULL };
	uint8_t bytes[RUN][16];
	uint64_t first;

	signal(SIGTERM, on_term);
	for (uint64_t turn = 0; !ended; turn++) {
		struct terrace_keys keys = storm_keys(bytes, KEYS, &first, 1);
		struct terrace_lease **oldest = &held[turn % 5];
		enum terrace_status status;

		terrace_release(*oldest);
		*oldest = NULL;
		status = terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, oldest);
		if (status != TERRACE_MISS && status != TERRACE_EXHAUSTED)
			storm_must(status, "lease");
	}
	for (int i = 0; i < 5; i++)
		terrace_release(held[i]);
	return 0;
}

static _Noreturn void holder(struct terrace_session *session)
{
	uint8_t bytes[RUN][16];
	for (uint64_t i = 0; i < 2; i++)
		storm_name(bytes[i], KEYS + i);
	struct terrace_keys keys = { bytes[0], 2, 16 };
	struct terrace_reservation *reservation;
	struct terrace_lease *lease;
	enum terrace_status statuses[2];
	storm_must(terrace_reserve(session, &keys, NULL, 0, statuses, &reservation), "reserve");
	for (uint32_t i = 0; i < 2; i++)
		fill(terrace_reservation_block(reservation, i, 0), KEYS + i, 1, words);
	storm_must(terrace_commit(reservation, 0, statuses, &lease), "commit");
	/* The library keeps mappings from children; an engine that undoes that must not get its child hurt either. */
	uintptr_t page = (uintptr_t)terrace_lease_block(lease, 0, 0) & ~(uintptr_t)4095;
	if (madvise((void *)page, 4096, MADV_DOFORK) != 0) {
		perror("madvise");
		exit(3);
	}
	pid_t child = fork();
	if (child == 0) {
		for (int fd = 3; fd < 256; fd++)
			close(fd);
		for (;;)
			pause();
	}
	printf("%d\n", (int)child);
	fflush(stdout);
	for (;;)
		pause();
}

static int hog(struct terrace_session *session)
{
	uint8_t bytes[64][16];
	struct terrace_lease *held[64];
	uint32_t most = 0;
	time_t end = time(NULL) + 5;
	while (time(NULL) < end) {
		uint32_t n = 0;
		for (uint64_t i = 0; i < 64; i++) {
			uint64_t number = storm_draw(KEYS);
			storm_name(bytes[i], number);
			struct terrace_keys keys = { bytes[i], 1, 16 };
			struct terrace_reservation *reservation;
			enum terrace_status status, got;
			status = terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &held[n]);
			if (status == TERRACE_OK) {
				check(terrace_lease_block(held[n++], 0, 0), number);
				continue;
			}
			if (status == TERRACE_EXHAUSTED)
				continue;
			if (status != TERRACE_MISS)
				storm_must(status, "lease");
			storm_must(terrace_reserve(session, &keys, NULL, 0, &got, &reservation), "reserve");
			if (got == TERRACE_OK)
				fill(terrace_reservation_block(reservation, 0, 0), number, storm_draw(UINT64_MAX), words);
			storm_must(terrace_commit(reservation, 0, &got, NULL), "commit");
		}
		most = n > most ? n : most;
		while (n > 0)
			terrace_release(held[--n]);
	}
	printf("%u\n", most);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: storm victim|reader|worker|weaver|holder|hog ADDRESS [SEED]\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	storm_seed(argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
	words = terrace_block_bytes(&layout) / 8;
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	connect.address = argv[2];
	connect.timeout_us = 20000000;
	struct terrace_client *client;
	struct terrace_session *session;
	storm_must(terrace_connect(&connect, &client), "connect");
	storm_must(terrace_session_open(client, &layout, 1, NULL, &session), "open");
	int code = 2;
	if (strcmp(argv[1], "victim") == 0)
		victim(session);
	else if (strcmp(argv[1], "reader") == 0)
		code = reader(session);
	else if (strcmp(argv[1], "worker") == 0)
		code = worker(session);
	else if (strcmp(argv[1], "weaver") == 0)
		code = weaver(session);
	else if (strcmp(argv[1], "holder") == 0)
		holder(session);
	else if (strcmp(argv[1], "hog") == 0)
		code = hog(session);
	terrace_session_close(session);
	terrace_disconnect(client);
	return code;
}
