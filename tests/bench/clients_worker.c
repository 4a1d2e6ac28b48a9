/* One engine process of `terrace-bench clients`: terrace-bench-client ADDRESS NUMBER. It connects, opens a session, and then carries
 * out the commands that come on its standard input (clients.h) until that ends. It uses the public header alone.
 *
 * A block's bytes follow from its key: each 64-bit word is the key's first word mixed with the word's index. So any process can verify a
 * block that another one has put.
 */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "client/include/terrace.h"
#include "tests/bench/clients.h"

enum { CONNECT_US = 30 * 1000 * 1000, CALL_US = 10 * 1000 * 1000, FLUSH_US = 60 * 1000 * 1000 };
enum { CLIENTS_STORE_KEYS = 64, CLIENTS_STORE_BYTES = 4 << 20, CLIENTS_FIRST_PAUSE_US = 200 };

struct worker {
	struct terrace_client *client;
	struct terrace_session *session;
	uint64_t block_bytes, number, puts, calls, random;
	struct clients_result result;
};

static _Noreturn void die(const char *what, enum terrace_status status)
{
	fprintf(stderr, "terrace-bench-client: %s: %s: %s\n", what, terrace_status_text(status), terrace_error());
	exit(1);
}

static void check(enum terrace_status status, const char *what)
{
	if (status != TERRACE_OK)
		die(what, status);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Key `index` of the blocks that process `owner` has put; owner 0: those of the fill. */
static void key_make(uint8_t key[CLIENTS_KEY_BYTES], uint64_t owner, uint64_t index)
{
	const uint64_t words[2] = { mix(owner << 40 | (index + 1)), mix(~(owner << 40 | (index + 1))) };

	memcpy(key, words, CLIENTS_KEY_BYTES);
}

static uint64_t key_word(const uint8_t *key)
{
	uint64_t word;

	memcpy(&word, key, sizeof(word));
	return word;
}

static void block_write(uint64_t *words, uint64_t bytes, const uint8_t *key)
{
	const uint64_t first = key_word(key);

	for (uint64_t i = 0; i < bytes / 8; i++)
		words[i] = first ^ i * 0x9e3779b97f4a7c15u;
}

static void block_verify(struct worker *w, const uint64_t *words, const uint8_t *key)
{
	const uint64_t first = key_word(key);
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < w->block_bytes / 8; i++)
		wrong |= words[i] ^ first ^ i * 0x9e3779b97f4a7c15u;
	w->result.verified++;
	w->result.wrong += wrong != 0;
}

/* Stores those of the keys that are not stored yet. */
static void put(struct worker *w, const uint8_t *keys, uint32_t count)
{
	const struct terrace_keys k = { .bytes = keys, .count = count, .key_bytes = CLIENTS_KEY_BYTES };
	struct terrace_reservation *reservation = NULL;
	enum terrace_status status = terrace_reserve(w->session, &k, NULL, CALL_US, NULL, &reservation);

	if (status == TERRACE_EXHAUSTED) {
		w->result.refused += count;
		return;
	}
	check(status, "reserve");
	for (uint32_t i = 0; i < count; i++) {
		uint64_t *words = terrace_reservation_block(reservation, i, 0);

		if (words)
			block_write(words, w->block_bytes, keys + (size_t)i * CLIENTS_KEY_BYTES);
		else
			w->result.refused++;
	}
	check(terrace_commit(reservation, CALL_US, NULL, NULL), "commit");
}

/* Leases what is there of the keys; with `verify` the bytes are looked at. */
static void lease(struct worker *w, const uint8_t *keys, uint32_t count, enum terrace_lease_mode mode, bool verify)
{
	const struct terrace_keys k = { .bytes = keys, .count = count, .key_bytes = CLIENTS_KEY_BYTES };
	struct terrace_lease *leased = NULL;
	const enum terrace_status status = terrace_lease(w->session, &k, mode, CALL_US, &leased);

	if (status == TERRACE_MISS && mode == TERRACE_LEASE_PREFIX) {
		w->result.missing += count;
		return;
	}
	check(status, "lease");
	w->result.missing += count - terrace_lease_count(leased);
	for (uint32_t i = 0; verify && i < terrace_lease_count(leased); i++)
		block_verify(w, terrace_lease_block(leased, i, 0), keys + (size_t)i * CLIENTS_KEY_BYTES);
	terrace_release(leased);
}

static void stored_keys(uint8_t *keys, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		key_make(keys + (size_t)i * CLIENTS_KEY_BYTES, 0, (first + i) % CLIENTS_KEYS);
}

static void fill(struct worker *w)
{
	uint8_t keys[CLIENTS_LEASE_KEYS * CLIENTS_KEY_BYTES];

	for (uint32_t i = 0; i < CLIENTS_KEYS; i += CLIENTS_LEASE_KEYS) {
		stored_keys(keys, i, CLIENTS_LEASE_KEYS);
		put(w, keys, CLIENTS_LEASE_KEYS);
	}
}

static void call_lookup(struct worker *w)
{
	uint8_t keys[CLIENTS_LOOKUP_KEYS * CLIENTS_KEY_BYTES];
	const struct terrace_keys k = { .bytes = keys, .count = CLIENTS_LOOKUP_KEYS, .key_bytes = CLIENTS_KEY_BYTES };
	uint32_t prefix = 0;

	stored_keys(keys, w->random, CLIENTS_LOOKUP_KEYS);
	check(terrace_lookup(w->session, &k, CALL_US, &prefix, NULL), "lookup");
	w->result.missing += CLIENTS_LOOKUP_KEYS - prefix;
}

static void call_absent(struct worker *w)
{
	uint8_t keys[CLIENTS_LOOKUP_KEYS * CLIENTS_KEY_BYTES];
	const struct terrace_keys k = { .bytes = keys, .count = CLIENTS_LOOKUP_KEYS, .key_bytes = CLIENTS_KEY_BYTES };
	uint32_t prefix = 0;

	for (uint32_t i = 0; i < CLIENTS_LOOKUP_KEYS; i++)
		key_make(keys + (size_t)i * CLIENTS_KEY_BYTES, w->number + 1, w->puts++);
	check(terrace_lookup(w->session, &k, CALL_US, &prefix, NULL), "lookup");
	w->result.missing += CLIENTS_LOOKUP_KEYS - prefix;
}

static void call_lease(struct worker *w)
{
	uint8_t keys[CLIENTS_LEASE_KEYS * CLIENTS_KEY_BYTES];

	stored_keys(keys, w->random, CLIENTS_LEASE_KEYS);
	lease(w, keys, CLIENTS_LEASE_KEYS, TERRACE_LEASE_ALL, w->calls % CLIENTS_VERIFY_EVERY == 0);
}

static void call_lease_some(struct worker *w)
{
	uint8_t keys[CLIENTS_LEASE_KEYS * CLIENTS_KEY_BYTES];

	stored_keys(keys, w->random, CLIENTS_LEASE_KEYS);
	lease(w, keys, CLIENTS_LEASE_KEYS, TERRACE_LEASE_PREFIX, w->calls % CLIENTS_VERIFY_EVERY == 0);
}

static void call_put(struct worker *w)
{
	uint8_t keys[CLIENTS_PUT_KEYS * CLIENTS_KEY_BYTES];

	for (uint32_t i = 0; i < CLIENTS_PUT_KEYS; i++)
		key_make(keys + (size_t)i * CLIENTS_KEY_BYTES, w->number + 1, w->puts++);
	put(w, keys, CLIENTS_PUT_KEYS);
	if (w->calls % CLIENTS_VERIFY_EVERY == 0)
		lease(w, keys, CLIENTS_PUT_KEYS, TERRACE_LEASE_PREFIX, true);
}

static void note_time(struct clients_result *r, uint64_t ns)
{
	const double bucket = CLIENTS_STEPS * log2((double)(ns ? ns : 1));

	r->histogram[bucket < CLIENTS_BUCKETS - 1 ? (int)bucket : CLIENTS_BUCKETS - 1]++;
}

static void run(struct worker *w, enum clients_call call, uint64_t run_ns)
{
	static void (*const calls[CLIENTS_CALLS_ALL])(struct worker *) = {
		[CLIENTS_LOOKUP] = call_lookup, [CLIENTS_LEASE] = call_lease, [CLIENTS_PUT] = call_put,
		[CLIENTS_LEASE_SOME] = call_lease_some,
		[CLIENTS_ABSENT] = call_absent,
	};
	const uint64_t start = now_ns();
	uint64_t before = start, after = start;

	while (after - start < run_ns) {
		w->random = mix(w->random + 0x9e3779b97f4a7c15u);
		calls[call](w);
		after = now_ns();
		note_time(&w->result, after - before);
		before = after;
		w->calls++;
		w->result.calls++;
	}
	w->result.ns = after - start;
}

/* A new key, of none that were put. */
static void key_next(struct worker *w, uint8_t *key)
{
	key_make(key, w->number + 1, w->puts++);
}

static void store(struct worker *w, uint64_t bytes)
{
	uint8_t keys[CLIENTS_STORE_KEYS * CLIENTS_KEY_BYTES];
	const uint64_t wanted = CLIENTS_STORE_BYTES / w->block_bytes;
	const uint32_t count = wanted < 1 ? 1 : wanted < CLIENTS_STORE_KEYS ? (uint32_t)wanted : CLIENTS_STORE_KEYS;

	for (uint64_t done = 0; done < bytes; done += count * w->block_bytes) {
		for (uint32_t i = 0; i < count; i++)
			key_next(w, keys + (size_t)i * CLIENTS_KEY_BYTES);
		put(w, keys, count);
	}
}

static void first(struct worker *w, uint64_t most_ns)
{
	const uint64_t start = now_ns();
	uint8_t key[CLIENTS_KEY_BYTES];
	uint64_t refused;

	key_next(w, key);
	do {
		refused = w->result.refused;
		put(w, key, 1);
		w->result.calls++;
		w->result.ns = now_ns() - start;
	} while (w->result.refused > refused && w->result.ns < most_ns && !usleep(CLIENTS_FIRST_PAUSE_US));
	w->result.refused = w->result.refused > refused;
	if (!w->result.refused)
		lease(w, key, 1, TERRACE_LEASE_ALL, true);
}

static void session_open(struct worker *w, const char *model, uint32_t layers)
{
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_layout layout = TERRACE_LAYOUT_INIT;

	terrace_fingerprint(model, strlen(model), layout.fingerprint);
	layout.layers = layers;
	layout.heads = layout.total_heads = 4;
	layout.head_dim_k = layout.head_dim_v = 128;
	layout.block_tokens = 16;
	layout.k_format = layout.v_format = TERRACE_FORMAT_TQ4;
	w->block_bytes = terrace_block_bytes(&layout);
	options.engine = "terrace-bench-client";
	check(terrace_session_open(w->client, &layout, 1, &options, &w->session), "open session");
	if (!terrace_session_borrows(w->session))
		die("the session does not borrow", TERRACE_PRECONDITION);
}

/* Its blocks have a size of their own, of the first 31 models at least. */
static void model_open(struct worker *w, uint32_t number)
{
	char name[32];

	snprintf(name, sizeof(name), "bench model %u", number);
	terrace_session_close(w->session);
	session_open(w, name, 1 + number * 12 % 31);
}

static void begin(struct worker *w, const char *address)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;

	connect.address = address;
	connect.timeout_us = CONNECT_US;
	check(terrace_connect(&connect, &w->client), "connect");
	session_open(w, "bench clients", 4);
}

/* False: there is no such command. */
static bool obey(struct worker *w, const struct clients_order *order)
{
	w->result = (struct clients_result){ 0 };
	if (order->command == CLIENTS_FILL)
		fill(w);
	else if (order->command == CLIENTS_RUN && order->call < CLIENTS_CALLS_ALL)
		run(w, (enum clients_call)order->call, order->run_ns);
	else if (order->command == CLIENTS_MODEL)
		model_open(w, order->call);
	else if (order->command == CLIENTS_STORE)
		store(w, order->bytes);
	else if (order->command == CLIENTS_FLUSH)
		check(terrace_flush(w->session, NULL, FLUSH_US, NULL), "flush");
	else if (order->command == CLIENTS_FIRST)
		first(w, order->run_ns);
	else
		return false;
	return true;
}

int main(int argc, char **argv)
{
	struct worker w = { 0 };
	struct clients_order order;

	if (argc != 3) {
		fprintf(stderr, "usage: terrace-bench-client ADDRESS NUMBER, started by terrace-bench clients\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	w.number = w.random = strtoull(argv[2], NULL, 10);
	begin(&w, argv[1]);
	while (read(STDIN_FILENO, &order, sizeof(order)) == sizeof(order)) {
		if (!obey(&w, &order))
			return 2;
		if (write(STDOUT_FILENO, &w.result, sizeof(w.result)) != sizeof(w.result))
			return 1;
	}
	terrace_session_close(w.session);
	terrace_disconnect(w.client);
	return 0;
}
