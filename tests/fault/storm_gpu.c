/* The engines of the kill storm on a GPU (tests/fault/test_kill_gpu.py), which is the simulated device: they lease, attend and write in its
 * memory, by work on a stream, and are killed at any moment.
 *
 *     storm_gpu victim ADDRESS SEED   all that, for ever; "ready" once it has begun
 *     storm_gpu reader ADDRESS SEED   leases and checks for ever; "checked" once it has checked a block; at SIGTERM prints how many
 *                                   blocks it checked
 *
 * Every block describes itself (storm_blocks.h); the work on the stream looks at every word.
 * Exit 1: a wrong byte, told on stderr. 3: a call failed, or a lease's copies never came, which the daemon's death is a reason for.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/storm_blocks.h"
#include "tests/sim/device.h"
#include "tests/sim/stream.h"

enum { KEYS = 96, RUN = STORM_RUN, HEADS = 4, DIM = 128, BLOCK_TOKENS = 64, LAYERS = 8 };

static struct terrace_layout layout = {
	.size = sizeof(struct terrace_layout),
	.fingerprint = "storm on a GPU",
	.layers = LAYERS,
	.heads = HEADS,
	.total_heads = HEADS,
	.head_dim_k = DIM,
	.head_dim_v = DIM,
	.block_tokens = BLOCK_TOKENS,
	.k_format = TERRACE_FORMAT_TQ4,
	.v_format = TERRACE_FORMAT_TQ4,
};
static struct terrace_session *session;
static struct sim_stream *stream;
static uint64_t words;
static volatile sig_atomic_t ended;

/* ---- work on the stream -------------------------------------------------------------------------------------------- */

/* Blocks to look at, or to fill. */
struct job {
	uint64_t addresses[RUN], first, seed;
	uint32_t count;
	atomic_uint *wrong; /* NULL: nobody asks later, so that a wrong byte ends the process at once */
};

static enum status look(void *arg, bool failed)
{
	struct job *j = arg;

	for (uint32_t i = 0; i < j->count && !failed; i++) {
		if (!j->addresses[i] || !storm_wrong(sim_at(j->addresses[i]), j->first + i, words))
			continue;
		if (!j->wrong)
			_exit(1);
		atomic_fetch_add(j->wrong, 1);
	}
	free(j);
	return STATUS_OK;
}

/* In two halves, with time to be killed in between. */
static enum status fill(void *arg, bool failed)
{
	struct job *j = arg;

	for (uint32_t i = 0; i < j->count && !failed; i++) {
		uint64_t *block = j->addresses[i] ? sim_at(j->addresses[i]) : NULL;

		for (uint64_t k = 1; block && k < words; k++) {
			block[k] = storm_word(j->first + i, j->seed, k);
			if (k == words / 2)
				nanosleep(&(struct timespec){0, 20000}, NULL);
		}
		if (block)
			block[0] = j->seed;
	}
	free(j);
	return STATUS_OK;
}

static struct job *job_make(uint64_t first, uint32_t count, atomic_uint *wrong)
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		exit(3);
	j->first = first;
	j->count = count;
	j->wrong = wrong;
	j->seed = storm_draw(UINT64_MAX);
	return j;
}

static void stream_put(enum status (*run)(void *arg, bool failed), struct job *j)
{
	if (!sim_stream_put(stream, run, j))
		exit(3);
}

/* ---- attention ----------------------------------------------------------------------------------------------------- */

/* What attention wants besides blocks, in memory that counts as the device's. */
static struct {
	float q[HEADS * DIM], out[HEADS * DIM], lse[HEADS];
	uint64_t blocks[RUN];
	uint32_t kv_tokens;
	_Alignas(256) uint8_t workspace[4096];
} scratch;

/* Over bytes that mean nothing: only that they can be reached counts. */
static void attend(const uint64_t *addresses, uint32_t count)
{
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;

	for (uint32_t i = 0; i < count; i++)
		if (!addresses[i])
			return;
	memcpy(scratch.blocks, addresses, count * sizeof(*addresses));
	scratch.kv_tokens = count * BLOCK_TOKENS;
	o.layer = (uint32_t)storm_draw(LAYERS);
	o.sequences = o.queries = 1;
	o.q_heads = HEADS;
	o.q = sim_mark(scratch.q);
	o.blocks = sim_mark(scratch.blocks);
	o.blocks_stride = count;
	o.kv_tokens = sim_mark(&scratch.kv_tokens);
	o.out = sim_mark(scratch.out);
	o.lse = sim_mark(scratch.lse);
	o.workspace = sim_mark(scratch.workspace);
	o.workspace_bytes = sizeof(scratch.workspace);
	storm_must(terrace_cuda_attend_plan(&layout, &o, stream), "plan");
	storm_must(terrace_cuda_attend(&layout, &o, stream), "attend");
	if (sim_stream_synchronize(stream) != STATUS_OK)
		exit(3);
}

/* ---- what an engine does ------------------------------------------------------------------------------------------- */

static void judge(struct terrace_lease *lease, const atomic_uint *wrong)
{
	storm_must(terrace_lease_check(lease), "the lease's copies");
	if (atomic_load(wrong))
		exit(1);
}

/* Leases a random run on the GPU and has every word of it looked at; the blocks looked at. */
static uint64_t lease_and_check(void)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	uint8_t bytes[RUN][16];
	uint64_t first;
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, RUN);
	atomic_uint wrong = 0;
	struct terrace_lease *lease;
	enum terrace_status status;
	uint64_t addresses[RUN];
	struct job *j;
	uint32_t count;

	o.gpu = 0;
	o.gpu_or_host = storm_draw(2) == 0;
	status = terrace_lease_with(session, &keys, &o, 0, &lease);
	if (status == TERRACE_MISS || status == TERRACE_EXHAUSTED)
		return 0;
	storm_must(status, "lease");
	count = terrace_lease_count(lease);
	storm_must(terrace_lease_addresses(lease, 0, addresses), "addresses");
	/* All layers are one wait, or one each. */
	for (uint32_t l = storm_draw(2) ? LAYERS - 1 : 0; l < LAYERS; l++)
		storm_must(terrace_lease_wait_layer(lease, l, stream), "wait");
	if (storm_draw(2) == 0 && terrace_lease_check(lease) == TERRACE_OK) {
		j = job_make(first, count, NULL);
		memcpy(j->addresses, addresses, sizeof(addresses));
		stream_put(look, j);
		storm_must(terrace_release_after(lease, stream), "release");
		return count;
	}
	j = job_make(first, count, &wrong);
	memcpy(j->addresses, addresses, sizeof(addresses));
	stream_put(look, j);
	attend(addresses, count);
	if (sim_stream_synchronize(stream) != STATUS_OK)
		exit(3);
	judge(lease, &wrong);
	terrace_release(lease);
	return count;
}

static void host_lease_and_check(void)
{
	uint8_t bytes[RUN][16];
	uint64_t first;
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, RUN);
	struct terrace_lease *lease;
	enum terrace_status status = terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease);

	if (status == TERRACE_MISS || status == TERRACE_EXHAUSTED)
		return;
	storm_must(status, "host lease");
	for (uint32_t i = 0; i < terrace_lease_count(lease); i++)
		if (storm_wrong(terrace_lease_block(lease, i, 0), first + i, words))
			exit(1);
	terrace_release(lease);
}

static void host_put(void)
{
	uint8_t bytes[RUN][16];
	uint64_t first, seed = storm_draw(UINT64_MAX);
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, 1 + (uint32_t)storm_draw(RUN));
	struct terrace_reservation *r;
	enum terrace_status status = terrace_reserve(session, &keys, NULL, 0, NULL, &r);

	if (status == TERRACE_EXHAUSTED)
		return;
	storm_must(status, "host reserve");
	for (uint32_t i = 0; i < keys.count; i++) {
		uint64_t *block = terrace_reservation_block(r, i, 0);

		for (uint64_t k = 0; block && k < words; k++)
			block[k] = k ? storm_word(first + i, seed, k) : seed;
	}
	storm_must(terrace_commit(r, 0, NULL, NULL), "host commit");
}

static void put(void)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	uint8_t bytes[RUN][16];
	uint64_t first;
	struct terrace_keys keys = storm_keys(bytes, KEYS, &first, 1 + (uint32_t)storm_draw(RUN));
	struct job *j = job_make(first, keys.count, NULL);
	struct terrace_reservation *r;
	struct terrace_lease *lease = NULL;
	struct terrace_op *op;
	enum terrace_status status;

	o.gpu = 0;
	status = terrace_reserve_with(session, &keys, NULL, &o, 0, NULL, &r);
	if (status == TERRACE_EXHAUSTED) {
		free(j);
		return;
	}
	storm_must(status, "reserve");
	storm_must(terrace_reservation_addresses(r, 0, j->addresses), "addresses");
	stream_put(fill, j);
	if (storm_draw(3)) {
		storm_must(terrace_commit_after(r, stream, 0, NULL, &op), "commit_after");
		storm_must(terrace_commit_finish(op, NULL), "commit");
		return;
	}
	if (sim_stream_synchronize(stream) != STATUS_OK)
		exit(3);
	if (storm_draw(2)) {
		terrace_abort(r);
		return;
	}
	storm_must(terrace_commit(r, 0, NULL, &lease), "commit");
	terrace_release(lease);
}

static _Noreturn void victim(void)
{
	for (uint64_t turn = 0;; turn++) {
		uint8_t key[RUN][16];
		uint64_t first;
		struct terrace_keys one = storm_keys(key, KEYS, &first, 1);

		put();
		if (storm_draw(2))
			host_put();
		lease_and_check();
		if (storm_draw(4) == 0)
			host_lease_and_check();
		if (storm_draw(16) == 0)
			storm_must(terrace_delete(session, &one, 0, NULL), "delete");
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

static void reader(void)
{
	uint64_t checked = 0;

	signal(SIGTERM, on_term);
	puts("ready");
	fflush(stdout);
	while (!ended) {
		uint64_t got = lease_and_check();

		if (got && !checked) {
			puts("checked");
			fflush(stdout);
		}
		checked += got;
		if (!got)
			nanosleep(&(struct timespec){0, 1000000}, NULL);
	}
	printf("%" PRIu64 "\n", checked);
}

int main(int argc, char **argv)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_client *client;

	if (argc != 4) {
		fprintf(stderr, "usage: storm_gpu victim|reader ADDRESS SEED\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	storm_seed(strtoull(argv[3], NULL, 10));
	words = terrace_block_bytes(&layout) / 8;
	stream = sim_stream_create();
	storm_must(terrace_cuda_load(SIM_PLUGIN), "plugin");
	connect.address = argv[2];
	connect.timeout_us = 20000000;
	options.gpu = true;
	storm_must(terrace_connect(&connect, &client), "connect");
	storm_must(terrace_session_open(client, &layout, 1, &options, &session), "open");
	if (strcmp(argv[1], "victim") == 0)
		victim();
	reader();
	sim_stream_destroy(stream);
	terrace_session_close(session);
	terrace_disconnect(client);
	return 0;
}
