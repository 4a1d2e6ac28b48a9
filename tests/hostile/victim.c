/* An engine that minds its own business: `victim ADDRESS`, until its input ends.
 *
 * It holds a lease and a reservation for all of that time, looks at its bytes again and again, and makes every call of the library. Each call
 * has to end well: what others do at the same daemon is not to be noticed. First it prints one line with its handles, which a hostile client may
 * try. Exit status: 0; 1 a call did not end well, or a byte is not what it was.
 */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/memory/attachment.h"
#include "client/include/terrace.h"
#include "client/call/lease.h"
#include "client/call/reserve.h"
#include "client/session/session.h"

enum { LAYOUTS = 2, HELD = 16, RESERVED = 4, ROUND = 4, KEY_BYTES = 24, PAUSE_MS = 5, FLUSH_EVERY = 64 };
#define CALL_US 60000000ull /* ends a call that hangs */

static struct terrace_client *client;
static struct terrace_session *session;
static struct terrace_layout layouts[LAYOUTS];
static uint64_t block_bytes[LAYOUTS];
static uint8_t *want, *got;                 /* each has room for a block */
static unsigned long calls, misses;

static void __attribute__((format(printf, 1, 2))) die(const char *format, ...)
{
	va_list args;

	printf("VICTIM ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(" (%s), after %lu calls\n", terrace_error(), calls);
	exit(1);
}

static void well(enum terrace_status status, const char *call)
{
	calls++;
	if (status)
		die("%s: %s", call, terrace_status_text(status));
}

static void key_of(uint8_t key[KEY_BYTES], uint64_t number)
{
	memset(key, 0, KEY_BYTES);
	memcpy(key, "victim", 6);
	memcpy(key + 8, &number, sizeof number);
}

static void keys_of(uint8_t *keys, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		key_of(keys + i * KEY_BYTES, first + i);
}

/* Every word says which block it is of, and where it stands there. */
static void fill(void *block, uint64_t number, uint32_t layout)
{
	uint64_t *words = block;

	for (uint64_t i = 0; i < block_bytes[layout] / sizeof *words; i++)
		words[i] = number << 32 | (uint64_t)layout << 24 | i;
}

static void check(const void *block, uint64_t number, uint32_t layout, const char *where)
{
	fill(want, number, layout);
	if (memcmp(block, want, block_bytes[layout]) != 0)
		die("%s: block %llu of layout %u has other bytes", where, (unsigned long long)number, layout);
}

static void check_lease(const struct terrace_lease *lease, uint64_t first, uint32_t count, const char *where)
{
	if (terrace_lease_count(lease) != count)
		die("%s: %u of %u blocks are leased", where, terrace_lease_count(lease), count);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t l = 0; l < LAYOUTS; l++)
			check(terrace_lease_block(lease, i, l), first + i, l, where);
}

/* Reserves blocks and writes them. */
static struct terrace_reservation *reserve(uint64_t first, uint32_t count)
{
	uint8_t keys[HELD * KEY_BYTES];
	enum terrace_status statuses[HELD];
	struct terrace_reservation *r;

	keys_of(keys, first, count);
	well(terrace_reserve(session, &(struct terrace_keys){ keys, count, KEY_BYTES }, NULL, CALL_US, statuses, &r), "reserve");
	for (uint32_t i = 0; i < count; i++) {
		if (statuses[i])
			die("reserve: block %u: %s", i, terrace_status_text(statuses[i]));
		for (uint32_t l = 0; l < LAYOUTS; l++)
			fill(terrace_reservation_block(r, i, l), first + i, l);
	}
	return r;
}

static struct terrace_lease *commit(struct terrace_reservation *r, uint64_t first, uint32_t count, const char *where)
{
	enum terrace_status statuses[HELD];
	struct terrace_lease *lease;

	well(terrace_commit(r, CALL_US, statuses, &lease), "commit");
	for (uint32_t i = 0; i < count; i++)
		if (statuses[i])
			die("%s: block %u: %s", where, i, terrace_status_text(statuses[i]));
	if (!lease)
		die("%s: no lease", where);
	check_lease(lease, first, count, where);
	return lease;
}

/* ---- rounds ---- */

static void read_held(const uint8_t *keys)
{
	const struct terrace_keys held = { keys, HELD, KEY_BYTES };
	uint8_t states[HELD * LAYOUTS];
	struct terrace_lease *lease;
	uint32_t prefix, tokens;

	well(terrace_lookup(session, &held, CALL_US, &prefix, states), "lookup");
	if (prefix != HELD)
		die("lookup: %u of %u blocks", prefix, HELD);
	well(terrace_lease(session, &held, TERRACE_LEASE_ALL, CALL_US, &lease), "lease");
	check_lease(lease, 0, HELD, "lease");
	terrace_release(lease);
	well(terrace_get(session, 1, keys, KEY_BYTES, got, &tokens, CALL_US), "get");
	check(got, 0, 1, "get");
	well(terrace_touch(session, &held, CALL_US), "touch");
}

static void write_some(uint64_t number)
{
	enum terrace_status statuses[ROUND], status;
	uint8_t key[KEY_BYTES], keys[ROUND * KEY_BYTES];
	struct terrace_lease *lease = commit(reserve(number, 2), number, 2, "commit");

	terrace_release(lease);
	terrace_abort(reserve(number + 2, 1));
	key_of(key, number + 3);
	for (uint32_t l = 0; l < LAYOUTS; l++) {
		fill(want, number + 3, l);
		well(terrace_put(session, l, key, KEY_BYTES, NULL, want, CALL_US), "put");
	}
	status = terrace_get(session, 0, key, KEY_BYTES, got, NULL, CALL_US);
	if (status == TERRACE_MISS)
		misses++; /* it was evicted: nothing holds it */
	else
		well(status, "get of what was put");
	if (!status)
		check(got, number + 3, 0, "put");
	keys_of(keys, number, ROUND); /* memory is not to be full of them */
	well(terrace_delete(session, &(struct terrace_keys){ keys, ROUND, KEY_BYTES }, CALL_US, statuses), "delete");
}

static void flush(const uint8_t *keys)
{
	const struct terrace_keys held = { keys, HELD, KEY_BYTES };
	enum terrace_status statuses[HELD];
	uint32_t blocks;

	well(terrace_flush(session, &held, CALL_US, statuses), "flush");
	for (uint32_t i = 0; i < HELD; i++)
		if (statuses[i])
			die("flush: block %u: %s", i, terrace_status_text(statuses[i]));
	well(terrace_warm(session, &held, true, CALL_US, &blocks), "warm");
	if (blocks != HELD)
		die("warm: %u of %u blocks", blocks, HELD);
}

static bool input_ended(void)
{
	struct pollfd f = { .fd = STDIN_FILENO, .events = POLLIN };
	char byte;

	return poll(&f, 1, PAUSE_MS) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

/* ---- begin and end ---- */

static void open_up(const char *address)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;

	connect.address = address;
	options.engine = "victim";
	for (int l = 0; l < LAYOUTS; l++) {
		layouts[l] = (struct terrace_layout)TERRACE_LAYOUT_INIT;
		memcpy(layouts[l].fingerprint, "the victim's own", 16);
		layouts[l].layers = 2;
		layouts[l].heads = layouts[l].total_heads = 2;
		layouts[l].head_dim_k = layouts[l].head_dim_v = 64;
		layouts[l].block_tokens = 16;
		layouts[l].k_format = layouts[l].v_format = l ? TERRACE_FORMAT_FP8 : TERRACE_FORMAT_TQ4;
		block_bytes[l] = terrace_block_bytes(&layouts[l]);
	}
	want = malloc(block_bytes[0] + block_bytes[1]);
	got = malloc(block_bytes[0] + block_bytes[1]);
	if (!want || !got)
		abort();
	well(terrace_connect(&connect, &client), "connect");
	well(terrace_session_open(client, layouts, LAYOUTS, &options, &session), "session_open");
}

static void print_handles(const struct terrace_lease *lease, const struct terrace_reservation *r)
{
	printf("handles lease=%llu attachment=%llu", (unsigned long long)lease->id, (unsigned long long)lease->places.attachment->id);
	for (uint32_t i = 0; i < r->count; i++)
		printf(" reservation=%llu", (unsigned long long)r->ids[i]);
	for (uint32_t i = 0; i < lease->places.mapping_count; i++)
		printf(" extent=%u", lease->places.mappings[i]->extent);
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct terrace_reservation *kept;
	struct terrace_lease *lease, *late;
	struct terrace_watch *watch;
	uint8_t keys[HELD * KEY_BYTES];
	uint64_t number = 1000;

	if (argc != 2)
		return 2;
	open_up(argv[1]);
	keys_of(keys, 0, HELD);
	lease = commit(reserve(0, HELD), 0, HELD, "the lease that is held");
	kept = reserve(500, RESERVED);
	well(terrace_watch_open(session, true, &watch), "watch_open");
	print_handles(lease, kept);
	for (unsigned round = 0; !input_ended(); round++, number += ROUND) {
		check_lease(lease, 0, HELD, "the lease that is held");
		read_held(keys);
		write_some(number);
		if (round % FLUSH_EVERY == 0)
			flush(keys);
	}
	check_lease(lease, 0, HELD, "the lease that is held, at the end");
	late = commit(kept, 500, RESERVED, "the reservation that is held");
	printf("victim calls=%lu misses=%lu\n", calls, misses);
	terrace_release(late);
	terrace_release(lease);
	terrace_watch_close(watch);
	terrace_session_close(session);
	terrace_disconnect(client);
	free(want);
	free(got);
	return 0;
}
