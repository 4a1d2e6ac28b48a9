/* The synchronous calls against the fake daemon: what comes back, what is mapped, what happens when the daemon goes. */
#include "tests/client/rig.h"
#include "tests/client/unmap.h"

#include "client/session/session.h"

#include "client/transport/address.h"
#include "client/value/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEYS = CLIENT_RIG_KEYS };

static const struct terrace_keys keys = {bytes, KEYS, KEY_BYTES};

static void open_session(void)
{
	client_rig_open(2);
}

/* Puts `n` blocks of key i filled with byte i + 1 (+ 100 in layout 1). */
static void put_blocks(uint32_t n)
{
	struct terrace_keys some = {bytes, n, KEY_BYTES};
	struct terrace_reservation *r;
	enum terrace_status statuses[KEYS];

	ck_assert_msg(!terrace_reserve(session, &some, NULL, 0, statuses, &r), "%s", terrace_error());
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t l = 0; l < 2; l++)
			memset(terrace_reservation_block(r, i, l), (int)(i + 1 + 100 * l),
			       terrace_block_bytes(&layouts[l]));
	ck_assert_int_eq(terrace_commit(r, 0, statuses, NULL), TERRACE_OK);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(statuses[i], TERRACE_OK);
}

/* Over TLS any host will do: an address, or a name, whose last label is not a number alone. */
START_TEST(addresses_over_tls)
{
	static const struct {
		const char *address, *want; /* NULL: TERRACE_INVALID */
	} rows[] = {
		{ "node1:7421", "dns:node1:7421" },
		{ "10-0-0-1:7421", "dns:10-0-0-1:7421" },
		{ "rack1.site2:7421", "dns:rack1.site2:7421" },
		{ "node.example:7421", "dns:node.example:7421" },
		{ "1.node.example:7421", "dns:1.node.example:7421" },
		{ "10.0.0.1:7421", "ipv4:10.0.0.1:7421" },
		{ "[fd00::1]:7421", "ipv6:[fd00::1]:7421" },
		{ "10.0.0:7421", NULL },
		{ "10.0.0.256:7421", NULL },
		{ "node.1:7421", NULL },
		{ "7:7421", NULL },
		{ "-node:7421", NULL },
		{ "node_1:7421", NULL },
		{ "fd00::1:7421", NULL },
	};
	char target[CLIENT_ADDRESS_MAX];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const enum terrace_status status = client_address_read(rows[i].address, true, target);

		ck_assert_msg(status == (rows[i].want ? TERRACE_OK : TERRACE_INVALID), "%s: %s", rows[i].address,
			      terrace_error());
		if (rows[i].want)
			ck_assert_str_eq(target, rows[i].want);
	}
}
END_TEST

START_TEST(addresses)
{
	static const struct {
		const char *address;
		enum terrace_status want;
	} rows[] = {
		{"unix:/nonexistent/socket", TERRACE_UNAVAILABLE}, {"127.0.0.1:1", TERRACE_UNAVAILABLE},
		{"localhost:1", TERRACE_UNAVAILABLE},              {"[::1]:1", TERRACE_UNAVAILABLE},
		{"unix:", TERRACE_INVALID},                        {"", TERRACE_UNAVAILABLE},
		{"127.0.0.1", TERRACE_INVALID},                    {"127.0.0.1:0", TERRACE_INVALID},
		{"127.0.0.1:65536", TERRACE_INVALID},              {":80", TERRACE_INVALID},
		{"example.org:80", TERRACE_UNSUPPORTED},           {"10.0.0.1:80", TERRACE_UNSUPPORTED},
		{"dns:///127.0.0.1:80", TERRACE_UNSUPPORTED},      {"127.0.0.1:12x", TERRACE_INVALID},
	};
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *none = (void *)&o;

	o.timeout_us = 50000;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		o.address = rows[i].address;
		ck_assert_msg(terrace_connect(&o, &none) == rows[i].want, "%s: %s", rows[i].address, terrace_error());
		ck_assert_ptr_eq(none, (void *)&o);
	}
	setenv("TERRACE_ADDRESS", "nonsense", 1);
	ck_assert_int_eq(terrace_connect(NULL, &none), TERRACE_INVALID);
	o.size = 3;
	ck_assert_int_eq(terrace_connect(&o, &none), TERRACE_INVALID);
	ck_assert_int_eq(terrace_connect(NULL, NULL), TERRACE_INVALID);
	terrace_disconnect(NULL);
}
END_TEST

START_TEST(sessions)
{
	struct terrace_layout bad[2] = {fake_layout(), fake_layout()}, got = TERRACE_LAYOUT_INIT;
	struct terrace_session *other;
	struct terrace_token token;

	ck_assert(terrace_session_borrows(session));
	ck_assert_uint_eq(terrace_session_epoch(session), 1000);
	terrace_session_token(session, &token);
	ck_assert_mem_eq(token.bytes, "0123456789abcdef", 16);

	bad[1].block_tokens = 32;
	ck_assert_int_eq(terrace_session_open(client, bad, 2, NULL, &other), TERRACE_INVALID);
	bad[1].block_tokens = 17;
	ck_assert_int_eq(terrace_session_open(client, bad, 2, NULL, &other), TERRACE_INVALID);
	bad[1] = fake_layout();
	bad[1].size = 4;
	ck_assert_int_eq(terrace_session_open(client, bad, 2, NULL, &other), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_open(client, bad, 0, NULL, &other), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_open(client, bad, 65, NULL, &other), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_open(NULL, bad, 1, NULL, &other), TERRACE_INVALID);

	ck_assert_int_eq(terrace_session_attach(client, &token, &other), TERRACE_OK);
	ck_assert(terrace_session_borrows(other));
	ck_assert_uint_eq(terrace_session_layout_count(other), 2);
	ck_assert_int_eq(terrace_session_layout(other, 1, &got), TERRACE_OK);
	ck_assert_mem_eq(&got, &layouts[1], offsetof(struct terrace_layout, window) + sizeof(got.window));
	ck_assert_int_eq(terrace_session_layout(other, 2, &got), TERRACE_INVALID);
	ck_assert_int_eq(terrace_session_reopen(other, 0), TERRACE_PRECONDITION);
	terrace_session_close(other);
	ck_assert_uint_eq(fake_count(&fake, &fake.closed_sessions), 0);
}
END_TEST

/* Structs of a caller that knows a later version of them: longer, in arrays further apart. */
/* The fake knows nothing of units, as the daemons before them. */
START_TEST(units_of_an_older_daemon)
{
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_layout_rule rules[2] = { TERRACE_LAYOUT_RULE_INIT, TERRACE_LAYOUT_RULE_INIT },
				   rule = TERRACE_LAYOUT_RULE_INIT;
	struct terrace_session *other;

	ck_assert_uint_eq(terrace_session_unit(session), layouts[0].block_tokens);
	ck_assert_uint_eq(terrace_session_prefix_multiple(session), 1);
	ck_assert_int_eq(terrace_session_rule(session, 0, &rule), TERRACE_OK);
	ck_assert(!rule.keep_last && !rule.partial && !rule.sparse);
	ck_assert_int_eq(terrace_session_rule(session, 64, &rule), TERRACE_INVALID);
	o.unit_tokens = 16;
	ck_assert_int_eq(terrace_session_open(client, layouts, 2, &o, &other), TERRACE_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "older than this library"));
	o.unit_tokens = 0;
	rules[1].keep_last = 1;
	o.rules = rules;
	ck_assert_int_eq(terrace_session_open(client, layouts, 2, &o, &other), TERRACE_UNSUPPORTED);
	rules[0].size = 0;
	ck_assert_int_eq(terrace_session_open(client, layouts, 2, &o, &other), TERRACE_INVALID);
}
END_TEST

START_TEST(sizes_of_another_version)
{
	struct {
		struct terrace_layout known;
		uint64_t more;
	} later[2] = {{layouts[0], 1}, {layouts[1], 2}}, got = {.more = 3};
	struct {
		struct terrace_block_info known;
		uint64_t more;
	} infos[2] = {{TERRACE_BLOCK_INFO_INIT, 4}, {TERRACE_BLOCK_INFO_INIT, 5}};
	struct terrace_keys two = {bytes, 2, KEY_BYTES};
	struct terrace_session *other;
	struct terrace_reservation *r;
	struct terrace_lease *lease;

	later[0].known.size = later[1].known.size = sizeof(later[0]);
	ck_assert_msg(!terrace_session_open(client, &later[0].known, 2, NULL, &other), "%s", terrace_error());
	got.known.size = sizeof(got);
	ck_assert_int_eq(terrace_session_layout(other, 1, &got.known), TERRACE_OK);
	ck_assert_uint_eq(got.known.size, sizeof(got));
	ck_assert_uint_eq(got.known.first_layer, 2);
	ck_assert_uint_eq(got.more, 0);

	infos[0].known.size = infos[1].known.size = sizeof(infos[0]);
	infos[0].known.tokens = 16;
	infos[1].known.tokens = 9;
	ck_assert_msg(!terrace_reserve(other, &two, &infos[0].known, 0, NULL, &r), "%s", terrace_error());
	ck_assert_int_eq(terrace_commit(r, 0, NULL, &lease), TERRACE_OK);
	ck_assert_uint_eq(terrace_lease_tokens(lease, 0), 16);
	ck_assert_uint_eq(terrace_lease_tokens(lease, 1), 9);
	terrace_release(lease);

	/* Sizes that no version has: never set, or set to nonsense. */
	infos[1].known.size = 0;
	ck_assert_int_eq(terrace_reserve(other, &two, &infos[0].known, 0, NULL, &r), TERRACE_INVALID);
	infos[0].known.size = (size_t)1 << 40;
	ck_assert_int_eq(terrace_reserve(other, &two, &infos[0].known, 0, NULL, &r), TERRACE_INVALID);
	got.known.size = offsetof(struct terrace_layout, rope_dim) - 1;
	ck_assert_int_eq(terrace_session_layout(other, 1, &got.known), TERRACE_INVALID);

	/* The layout's first version: what came later is neither read nor written. */
	memset(got.known.opaque_name, 7, sizeof(got.known.opaque_name));
	got.known.size = offsetof(struct terrace_layout, rope_dim);
	ck_assert_int_eq(terrace_session_layout(other, 1, &got.known), TERRACE_OK);
	ck_assert_uint_eq(got.known.first_layer, 2);
	ck_assert_int_eq(got.known.opaque_name[0], 7);
	ck_assert_ptr_null(terrace_layout_problem(&got.known));
	terrace_session_close(other);
}
END_TEST

START_TEST(no_borrow)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *remote;
	struct terrace_session *s;
	struct terrace_lease *lease;
	struct terrace_reservation *r;
	uint32_t prefix;

	o.address = fake.address;
	o.timeout_us = CLIENT_RIG_TIMEOUT_US;
	o.no_borrow = true;
	ck_assert_int_eq(terrace_connect(&o, &remote), TERRACE_OK);
	ck_assert_int_eq(terrace_session_open(remote, layouts, 2, NULL, &s), TERRACE_OK);
	ck_assert(!terrace_session_borrows(s));
	ck_assert_int_eq(terrace_lease(s, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_PRECONDITION);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "no_borrow"));
	ck_assert_int_eq(terrace_reserve(s, &keys, NULL, 0, NULL, &r), TERRACE_PRECONDITION);
	ck_assert_int_eq(terrace_lookup(s, &keys, 0, &prefix, NULL), TERRACE_OK);
	terrace_session_close(s);
	terrace_disconnect(remote);
}
END_TEST

START_TEST(put_then_lease)
{
	struct terrace_keys three = {bytes, 3, KEY_BYTES};
	struct terrace_lease *lease = NULL;
	uint8_t states[KEYS * 2];
	uint32_t prefix = 99;
	uint64_t us = 99;

	ck_assert_int_eq(terrace_lookup(session, &keys, 0, &prefix, states), TERRACE_OK);
	ck_assert_uint_eq(prefix, 0);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_MISS);
	put_blocks(3);
	ck_assert_int_eq(terrace_lookup(session, &keys, 0, &prefix, states), TERRACE_OK);
	ck_assert_uint_eq(prefix, 3);
	ck_assert_mem_eq(states, "\1\1\1\1\1\1\0\0", 8);
	ck_assert_int_eq(terrace_load_estimate(session, states, KEYS, &us), TERRACE_OK);
	ck_assert_uint_eq(us, 0);
	ck_assert_int_eq(terrace_load_estimate(session, (uint8_t[]){TERRACE_STATE_HOST, TERRACE_STATE_DISK}, 1, &us),
			 TERRACE_MISS);
	ck_assert_int_eq(terrace_load_estimate(session, NULL, KEYS, &us), TERRACE_INVALID);
	ck_assert_int_eq(terrace_load_estimate(session, states, KEYS, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &lease), TERRACE_MISS);
	ck_assert_ptr_null(lease);
	ck_assert_int_eq(terrace_lease(session, &three, TERRACE_LEASE_ALL, 0, &lease), TERRACE_OK);
	terrace_release(lease);
	ck_assert_msg(!terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), "%s", terrace_error());
	ck_assert_uint_eq(terrace_lease_count(lease), 3);
	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t l = 0; l < 2; l++) {
			const uint8_t *block = terrace_lease_block(lease, i, l);
			uint64_t last = terrace_block_bytes(&layouts[l]) - 1;

			ck_assert_uint_eq((uintptr_t)block % 4096, 0);
			ck_assert_uint_eq(block[0], i + 1 + 100 * l);
			ck_assert_uint_eq(block[last], i + 1 + 100 * l);
			ck_assert_uint_eq(terrace_lease_tokens(lease, i), 16);
		}
	ck_assert_ptr_null(terrace_lease_block(lease, 3, 0));
	ck_assert_ptr_null(terrace_lease_block(lease, 0, 2));
	ck_assert_uint_eq(terrace_lease_tokens(lease, 3), 0);
	terrace_release(lease);
	terrace_release(NULL);
	ck_assert_uint_eq(fake_await(&fake, &fake.released, 2), 2);
	/* Both extents once to write and once to read, whatever the number of calls. */
	ck_assert_uint_eq(fake_count(&fake, &fake.maps), 4);
}
END_TEST

START_TEST(reservations)
{
	struct terrace_block_info info[KEYS];
	struct terrace_reservation *r, *twin;
	enum terrace_status statuses[KEYS];
	struct terrace_lease *lease = NULL;

	put_blocks(1);
	for (int i = 0; i < KEYS; i++)
		info[i] = (struct terrace_block_info){.size = sizeof(info[0]), .tokens = (uint32_t)i, .position = 5};
	ck_assert_int_eq(terrace_reserve(session, &keys, info, 0, statuses, &r), TERRACE_OK);
	ck_assert_uint_eq(terrace_reservation_count(r), KEYS);
	ck_assert_int_eq(statuses[0], TERRACE_EXISTS);
	ck_assert_ptr_null(terrace_reservation_block(r, 0, 0));
	ck_assert_int_eq(statuses[3], TERRACE_OK);
	ck_assert_ptr_nonnull(terrace_reservation_block(r, 3, 1));
	ck_assert_ptr_null(terrace_reservation_block(r, KEYS, 0));
	ck_assert_int_eq(terrace_reserve(session, &keys, info, 0, statuses, &twin), TERRACE_OK);
	ck_assert_int_eq(statuses[2], TERRACE_BUSY);
	ck_assert_int_eq(terrace_commit(twin, 0, statuses, NULL), TERRACE_OK); /* nothing to do */
	ck_assert_int_eq(statuses[2], TERRACE_BUSY);
	for (uint32_t i = 1; i < KEYS; i++)
		memset(terrace_reservation_block(r, i, 1), 42, terrace_block_bytes(&layouts[1]));
	ck_assert_msg(!terrace_commit(r, 0, statuses, &lease), "%s", terrace_error());
	ck_assert_int_eq(statuses[0], TERRACE_EXISTS);
	ck_assert_int_eq(statuses[1], TERRACE_OK);
	ck_assert_ptr_nonnull(lease);
	ck_assert_uint_eq(terrace_lease_count(lease), KEYS);
	ck_assert_ptr_null(terrace_lease_block(lease, 0, 0));
	ck_assert_uint_eq(*(const uint8_t *)terrace_lease_block(lease, 3, 1), 42);
	ck_assert_uint_eq(terrace_lease_tokens(lease, 3), 3);
	ck_assert_uint_eq(terrace_lease_tokens(lease, 0), 0);
	terrace_release(lease);

	info[0].tokens = 17;
	ck_assert_int_eq(terrace_reserve(session, &keys, info, 0, NULL, &r), TERRACE_INVALID);
	info[0].tokens = 1;
	info[1].role = (enum terrace_role)5;
	ck_assert_int_eq(terrace_reserve(session, &keys, info, 0, NULL, &r), TERRACE_INVALID);
	info[1].role = TERRACE_ROLE_TOOL;
	info[1].size = 0;
	ck_assert_int_eq(terrace_reserve(session, &keys, info, 0, NULL, &r), TERRACE_INVALID);
}
END_TEST

START_TEST(aborting)
{
	struct terrace_reservation *r;
	enum terrace_status statuses[KEYS];

	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	terrace_abort(r);
	ck_assert_uint_eq(fake_await(&fake, &fake.aborted, KEYS), KEYS);
	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, statuses, &r), TERRACE_OK);
	ck_assert_int_eq(statuses[0], TERRACE_OK);
	/* A commit that fails aborts. */
	FAULT(fail_method, "Commit");
	FAULT(fail_code, GRPC_STATUS_RESOURCE_EXHAUSTED);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "as the test wants it"));
	ck_assert_uint_eq(fake_await(&fake, &fake.aborted, 2 * KEYS), 2 * KEYS);
	terrace_abort(NULL);
}
END_TEST

START_TEST(open_blocks)
{
	struct terrace_block_info info = TERRACE_BLOCK_INFO_INIT;
	struct terrace_reservation *r, *closed;
	uint32_t prefix;

	ck_assert_msg(!terrace_reserve_open(session, NULL, 0, &r), "%s", terrace_error());
	memset(terrace_reservation_block(r, 0, 0), 3, terrace_block_bytes(&layouts[0]));
	ck_assert_int_eq(terrace_commit_open(r, bytes, KEY_BYTES, 9, 0), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup(session, &keys, 0, &prefix, NULL), TERRACE_OK);
	ck_assert_uint_eq(prefix, 1);

	info.parent = bytes;
	ck_assert_int_eq(terrace_reserve_open(session, &info, 0, &r), TERRACE_INVALID);
	info.parent_bytes = KEY_BYTES;
	ck_assert_int_eq(terrace_reserve_open(session, &info, 0, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit_open(r, bytes, KEY_BYTES, 17, 0), TERRACE_INVALID);
	info.tokens = 10;
	ck_assert_int_eq(terrace_reserve_open(session, &info, 0, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit_open(r, bytes, KEY_BYTES, 9, 0), TERRACE_INVALID);
	info.tokens = 9;
	ck_assert_int_eq(terrace_reserve_open(session, &info, 0, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit_open(r, bytes, KEY_BYTES, 9, 0), TERRACE_EXISTS);
	ck_assert_int_eq(terrace_reserve_open(session, &info, 0, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &closed), TERRACE_OK);
	ck_assert_int_eq(terrace_commit_open(closed, bytes, KEY_BYTES, 9, 0), TERRACE_INVALID);
}
END_TEST

START_TEST(streams)
{
	uint64_t n = terrace_block_bytes(&layouts[1]);
	uint8_t *block = malloc(n), *back = malloc(n);
	struct terrace_block_info info = TERRACE_BLOCK_INFO_INIT;
	uint32_t tokens = 0;

	for (uint64_t i = 0; i < n; i++)
		block[i] = (uint8_t)(i * 31 >> 3);
	info.tokens = 11;
	ck_assert_int_eq(terrace_get(session, 1, bytes, KEY_BYTES, back, NULL, 0), TERRACE_MISS);
	ck_assert_msg(!terrace_put(session, 1, bytes, KEY_BYTES, &info, block, 0), "%s", terrace_error());
	ck_assert_int_eq(terrace_put(session, 1, bytes, KEY_BYTES, &info, block, 0), TERRACE_EXISTS);
	ck_assert_msg(!terrace_get(session, 1, bytes, KEY_BYTES, back, &tokens, 0), "%s", terrace_error());
	ck_assert_mem_eq(block, back, n);
	ck_assert_uint_eq(tokens, 11);
	ck_assert_int_eq(terrace_put(session, 2, bytes, KEY_BYTES, &info, block, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_get(session, 2, bytes, KEY_BYTES, back, NULL, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_get(session, 0, bytes, 65, back, NULL, 0), TERRACE_INVALID);
	FAULT(corrupt_get, true);
	ck_assert_int_eq(terrace_get(session, 1, bytes, KEY_BYTES, back, NULL, 0), TERRACE_CORRUPT);
	FAULT(corrupt_get, false);
	FAULT(short_get, true);
	ck_assert_int_eq(terrace_get(session, 1, bytes, KEY_BYTES, back, NULL, 0), TERRACE_CORRUPT);
	free(block);
	free(back);
}
END_TEST

START_TEST(large_stream)
{
	struct terrace_layout large = fake_layout();
	struct terrace_session *s;
	uint64_t n;
	uint8_t *block, *back;

	large.layers = 160;
	large.heads = large.total_heads = 4;
	n = terrace_block_bytes(&large);
	ck_assert_uint_gt(n, 1 << 20); /* more than one chunk */
	block = malloc(n);
	back = malloc(n);
	for (uint64_t i = 0; i < n; i++)
		block[i] = (uint8_t)(i * 2654435761u >> 13);
	ck_assert_int_eq(terrace_session_open(client, &large, 1, NULL, &s), TERRACE_OK);
	ck_assert_msg(!terrace_put(s, 0, bytes, KEY_BYTES, NULL, block, 0), "%s", terrace_error());
	ck_assert_msg(!terrace_get(s, 0, bytes, KEY_BYTES, back, NULL, 0), "%s", terrace_error());
	ck_assert_mem_eq(block, back, n);
	terrace_session_close(s);
	free(block);
	free(back);
}
END_TEST

START_TEST(small_calls)
{
	enum terrace_status statuses[KEYS];

	put_blocks(2);
	ck_assert_int_eq(terrace_touch(session, &keys, 0), TERRACE_OK);
	ck_assert_int_eq(terrace_report(session, &keys, TERRACE_EVENT_TURN_END, -3, 50, 0), TERRACE_OK);
	ck_assert_int_eq(terrace_report(session, &keys, (enum terrace_event)4, 0, 0, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_delete(session, &keys, 0, statuses), TERRACE_OK);
	ck_assert_int_eq(statuses[1], TERRACE_OK);
	ck_assert_int_eq(statuses[2], TERRACE_MISS);
	ck_assert_int_eq(terrace_delete(session, &keys, 0, NULL), TERRACE_OK);
	ck_assert_int_eq(terrace_touch(NULL, &keys, 0), TERRACE_INVALID);
	ck_assert_int_eq(terrace_delete(session, NULL, 0, NULL), TERRACE_INVALID);
}
END_TEST

/* Of keys an I/O error; without keys there are no disks. */
static void flush_fails(struct fake *f, const char *method, ProtobufCMessage *reply)
{
	Terrace__V1__FlushReply *r = (Terrace__V1__FlushReply *)reply;

	if (f && !strcmp(method, "Flush"))
		r->status[0] = r->n_status > 1 ? TERRACE__V1__STATUS__IO : TERRACE__V1__STATUS__UNAVAILABLE;
}

/* The same, and the daemon says what keeps it. */
static void flush_fails_with_words(struct fake *f, const char *method, ProtobufCMessage *reply)
{
	Terrace__V1__FlushReply *r = (Terrace__V1__FlushReply *)reply;

	flush_fails(f, method, reply);
	if (f && !strcmp(method, "Flush"))
		r->reason = "the catalog is full of it";
}

START_TEST(disks)
{
	enum terrace_status statuses[KEYS];
	uint32_t blocks = 99;

	put_blocks(2);
	ck_assert_int_eq(terrace_warm(session, &keys, true, 0, &blocks), TERRACE_OK);
	ck_assert_uint_eq(blocks, 2);
	ck_assert_int_eq(terrace_warm(session, &keys, false, 0, &blocks), TERRACE_OK);
	ck_assert_uint_eq(blocks, 0); /* the fake's word for: was not asked to wait */
	ck_assert_int_eq(terrace_warm(session, &keys, true, 0, NULL), TERRACE_OK);
	ck_assert_int_eq(terrace_warm(session, NULL, true, 0, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_flush(session, &keys, 0, statuses), TERRACE_OK);
	ck_assert_int_eq(statuses[1], TERRACE_OK);
	ck_assert_int_eq(statuses[2], TERRACE_MISS);
	statuses[0] = TERRACE_INTERNAL;
	ck_assert_int_eq(terrace_flush(session, NULL, 0, statuses), TERRACE_OK);
	ck_assert_int_eq(statuses[0], TERRACE_OK);
	ck_assert_int_eq(terrace_flush(NULL, NULL, 0, NULL), TERRACE_INVALID);
	FAULT(twist, flush_fails);
	ck_assert(terrace_flush(session, &keys, 0, statuses) == TERRACE_IO && strstr(terrace_error(), "durable"));
	ck_assert_int_eq(statuses[0], TERRACE_IO); /* written though the call failed */
	ck_assert_int_eq(statuses[1], TERRACE_OK);
	ck_assert(terrace_flush(session, NULL, 0, NULL) == TERRACE_UNAVAILABLE && strstr(terrace_error(), "no disks"));
	FAULT(twist, flush_fails_with_words);
	ck_assert(terrace_flush(session, &keys, 0, NULL) == TERRACE_IO &&
		  strstr(terrace_error(), "not every block is durable: the catalog is full of it"));
	FAULT(twist, NULL);
	FAULT(stall_method, "Flush");
	statuses[0] = TERRACE_INTERNAL;
	ck_assert_int_eq(terrace_flush(session, &keys, 20000, statuses), TERRACE_DEADLINE);
	ck_assert_int_eq(statuses[0], TERRACE_DEADLINE); /* nobody knows */
	FAULT(stall_method, NULL);
}
END_TEST

START_TEST(watching)
{
	struct terrace_watch *watch;
	struct terrace_watch_event event = TERRACE_WATCH_EVENT_INIT;

	ck_assert_int_eq(terrace_watch_open(session, false, &watch), TERRACE_OK);
	for (uint64_t i = 1; i <= 3; i++) {
		ck_assert_msg(!terrace_watch_next(watch, 0, &event), "%s", terrace_error());
		ck_assert_uint_eq(event.sequence, i);
		ck_assert_uint_eq(event.epoch, 1000);
	}
	ck_assert_int_eq(event.kind, TERRACE_WATCH_SYNCED);
	ck_assert_uint_eq(event.key_bytes, 0);
	ck_assert_int_eq(terrace_watch_next(watch, 20000, &event), TERRACE_DEADLINE);
	event.size = 8;
	ck_assert_int_eq(terrace_watch_next(watch, 20000, &event), TERRACE_INVALID);
	event.size = sizeof(event);
	terrace_watch_close(watch);
	terrace_watch_close(NULL);

	ck_assert_int_eq(terrace_watch_open(session, false, &watch), TERRACE_OK);
	ck_assert_int_eq(terrace_watch_next(watch, 0, &event), TERRACE_OK);
	fake_restart(&fake);
	while (!terrace_watch_next(watch, 0, &event))
		;
	ck_assert_int_eq(terrace_watch_next(watch, 0, &event), TERRACE_UNAVAILABLE);
	terrace_watch_close(watch);
}
END_TEST

static uint8_t long_key[TERRACE_KEY_BYTES_MAX] = "forty bytes, of which the last are dots..";

static void lengthen(struct fake *f, const char *method, ProtobufCMessage *reply)
{
	Terrace__V1__WatchEvent *event = (Terrace__V1__WatchEvent *)reply;

	(void)f;
	if (!strcmp(method, "Watch") && event->sequence == 1)
		event->key = (ProtobufCBinaryData){40, long_key};
}

/* A program that was compiled when keys had at most 32 bytes has no room for it: the event is not there for it, nor its
 * number. */
START_TEST(watching_long_keys)
{
	const size_t before = offsetof(struct terrace_watch_event, whole_key);
	struct terrace_watch_event event = TERRACE_WATCH_EVENT_INIT;
	struct terrace_watch *watch;

	FAULT(twist, lengthen);
	ck_assert_int_eq(terrace_watch_open(session, false, &watch), TERRACE_OK);
	ck_assert_msg(!terrace_watch_next(watch, 0, &event), "%s", terrace_error());
	ck_assert_uint_eq(event.sequence, 1);
	ck_assert_uint_eq(event.key_bytes, 40);
	ck_assert_mem_eq(event.key, long_key, sizeof(event.key));
	ck_assert_mem_eq(event.whole_key, long_key, 40);
	ck_assert_uint_eq(event.whole_key[40], 0);
	ck_assert_int_eq(terrace_watch_next(watch, 0, &event), TERRACE_OK);
	ck_assert_uint_eq(event.sequence, 2);
	ck_assert_mem_eq(event.key, "a key of 16 byte", 16);
	ck_assert_mem_eq(event.whole_key, "a key of 16 byte", 16);
	terrace_watch_close(watch);

	ck_assert_int_eq(terrace_watch_open(session, false, &watch), TERRACE_OK);
	memset(event.whole_key, 0xa5, sizeof(event.whole_key));
	event.size = before;
	for (uint64_t i = 1; i <= 2; i++) {
		ck_assert_msg(!terrace_watch_next(watch, 0, &event), "%s", terrace_error());
		ck_assert_uint_eq(event.sequence, i);
		ck_assert_uint_eq(event.key_bytes, i == 1 ? 16 : 0);
		ck_assert_uint_eq(event.whole_key[0], 0xa5); /* behind its end nothing is written */
	}
	ck_assert_int_eq(event.kind, TERRACE_WATCH_SYNCED);
	terrace_watch_close(watch);
}
END_TEST

/* Reads until the watch ends; nothing else ends it. */
struct reader {
	struct terrace_watch *watch;
	atomic_uint events;
	atomic_int ended; /* with that status */
};

static void *watch_long(void *arg)
{
	struct terrace_watch_event event = TERRACE_WATCH_EVENT_INIT;
	struct reader *reader = arg;
	enum terrace_status status;

	while (!(status = terrace_watch_next(reader->watch, 300000000, &event)))
		atomic_fetch_add(&reader->events, 1);
	atomic_store(&reader->ended, (int)status);
	return NULL;
}

/* Who waits for another reader waits no longer than it said. */
START_TEST(watch_readers)
{
	struct terrace_watch_event event = TERRACE_WATCH_EVENT_INIT;
	struct reader reader = {.ended = TERRACE_OK};
	uint64_t until = client_deadline_us(30000000);
	pthread_t thread;

	ck_assert_int_eq(terrace_watch_open(session, false, &reader.watch), TERRACE_OK);
	ck_assert_int_eq(pthread_create(&thread, NULL, watch_long, &reader), 0);
	while (atomic_load(&reader.events) < 3 && client_now_us() < until)
		poll(NULL, 0, 1);
	ck_assert_uint_eq(atomic_load(&reader.events), 3); /* no more come: it waits, or is about to */
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(terrace_watch_next(reader.watch, 10000, &event), TERRACE_DEADLINE);
	ck_assert_int_eq(atomic_load(&reader.ended), TERRACE_OK);
	fake_restart(&fake);
	pthread_join(thread, NULL);
	ck_assert_int_eq(atomic_load(&reader.ended), TERRACE_UNAVAILABLE);
	terrace_watch_close(reader.watch);
}
END_TEST

START_TEST(watch_outlives_client)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *other;
	struct terrace_session *s;
	struct terrace_watch *watch;
	struct terrace_watch_event event = TERRACE_WATCH_EVENT_INIT;

	o.address = fake.address;
	o.timeout_us = CLIENT_RIG_TIMEOUT_US;
	ck_assert_int_eq(terrace_connect(&o, &other), TERRACE_OK);
	ck_assert_int_eq(terrace_session_open(other, layouts, 2, NULL, &s), TERRACE_OK);
	ck_assert_int_eq(terrace_watch_open(s, true, &watch), TERRACE_OK);
	terrace_session_close(s);
	terrace_disconnect(other);
	while (!terrace_watch_next(watch, 0, &event))
		;
	ck_assert_int_eq(terrace_watch_next(watch, 0, &event), TERRACE_CANCELLED);
	terrace_watch_close(watch);
}
END_TEST

START_TEST(deadlines)
{
	uint64_t before = client_now_us();
	uint32_t prefix;

	FAULT(stall_method, "Lookup");
	ck_assert_int_eq(terrace_lookup(session, &keys, 30000, &prefix, NULL), TERRACE_DEADLINE);
	ck_assert_uint_ge(client_now_us() - before, 29000);
	ck_assert_uint_le(client_now_us() - before, 20000000);
}
END_TEST

START_TEST(busy_polling)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *other;
	struct terrace_session *s;
	struct timespec before, after;
	double took = 0;
	uint32_t prefix;

	o.address = fake.address;
	o.timeout_us = CLIENT_RIG_TIMEOUT_US;
	o.busy_poll_us = 500000;
	ck_assert_int_eq(terrace_connect(&o, &other), TERRACE_OK);
	ck_assert_int_eq(terrace_session_open(other, layouts, 2, NULL, &s), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup(s, &keys, 0, &prefix, NULL), TERRACE_OK);
	FAULT(stall_method, "Lookup");
	for (int i = 0; i < 20 && took < .02; i++) { /* a machine may have others run all that time */
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
		ck_assert_int_eq(terrace_lookup(s, &keys, 1000000, &prefix, NULL), TERRACE_DEADLINE);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
		took = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
	}
	ck_assert_double_ge(took, .02);
	terrace_session_close(s);
	terrace_disconnect(other);
}
END_TEST

/* In words of the library's own: those of gRPC ("Broken pipe", "Socket closed") do not say what has happened. */
static void says_what_to_do(const char *words)
{
	const bool gone = strstr(words, "no daemon is there: ") && strstr(words, "start terraced");
	const bool broke = strstr(words, "it has restarted or is stopping") && strstr(words, "terrace_session_reopen");

	ck_assert_msg(gone || broke, "%s", words);
}

START_TEST(daemon_restart)
{
	struct terrace_lease *lease, *none;
	const uint8_t *block;
	enum terrace_status status;
	uint64_t until;
	uint32_t prefix;

	put_blocks(2);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	block = terrace_lease_block(lease, 1, 0);
	fake_restart(&fake);
	/* Whatever comes first: the broken connection, then the other epoch. */
	until = client_deadline_us(30000000);
	while ((status = terrace_lookup(session, &keys, 0, &prefix, NULL)) == TERRACE_UNAVAILABLE && client_now_us() < until) {
		says_what_to_do(terrace_error());
		poll(NULL, 0, 10);
	}
	ck_assert_int_eq(status, TERRACE_STALE);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "has restarted"));
	ck_assert_ptr_nonnull(strstr(terrace_error(), "terrace_session_reopen"));
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &none), TERRACE_STALE);
	ck_assert_uint_eq(block[7], 2);
	ck_assert_msg(!terrace_session_reopen(session, 0), "%s", terrace_error());
	ck_assert_uint_eq(terrace_session_epoch(session), 1001);
	ck_assert(terrace_session_borrows(session));
	ck_assert_uint_eq(block[7], 2); /* still readable */
	ck_assert_int_eq(terrace_lookup(session, &keys, 0, &prefix, NULL), TERRACE_OK);
	ck_assert_uint_eq(prefix, 0);
	terrace_release(lease);
	put_blocks(3);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	terrace_release(lease);
}
END_TEST

static void *answer_later(void *arg)
{
	(void)arg;
	poll(NULL, 0, 200);
	FAULT(fail_method, NULL);
	return NULL;
}

/* The call that learns of a broken connection is a reopen itself. */
START_TEST(daemon_restart_reopen)
{
	enum terrace_status status;
	pthread_t thread;

	fake_restart(&fake);
	ck_assert_msg(!terrace_session_reopen(session, 0), "%s", terrace_error());
	FAULT(fail_code, GRPC_STATUS_UNAVAILABLE);
	FAULT(fail_method, _i ? "OpenSession" : "Check"); /* as of one that is draining */
	status = terrace_session_reopen(session, 50000);
	ck_assert(status == TERRACE_UNAVAILABLE || status == TERRACE_DEADLINE); /* as it last said, or did not */
	ck_assert_int_eq(pthread_create(&thread, NULL, answer_later, NULL), 0);
	ck_assert_msg(!terrace_session_reopen(session, 0), "%s", terrace_error());
	pthread_join(thread, NULL);
	put_blocks(1);
}
END_TEST

START_TEST(daemon_unknown_session)
{
	uint32_t prefix;

	FAULT(fail_method, "Lookup");
	FAULT(fail_code, GRPC_STATUS_NOT_FOUND);
	ck_assert_int_eq(terrace_lookup(session, &keys, 0, &prefix, NULL), TERRACE_STALE);
}
END_TEST

START_TEST(status_mapping)
{
	static const struct {
		grpc_status_code code;
		enum terrace_status want;
	} rows[] = {
		{GRPC_STATUS_INVALID_ARGUMENT, TERRACE_INVALID},   {GRPC_STATUS_PERMISSION_DENIED, TERRACE_DENIED},
		{GRPC_STATUS_UNAUTHENTICATED, TERRACE_DENIED},     {GRPC_STATUS_RESOURCE_EXHAUSTED, TERRACE_EXHAUSTED},
		{GRPC_STATUS_UNAVAILABLE, TERRACE_UNAVAILABLE},    {GRPC_STATUS_UNKNOWN, TERRACE_UNAVAILABLE},
		{GRPC_STATUS_UNIMPLEMENTED, TERRACE_UNSUPPORTED},  {GRPC_STATUS_INTERNAL, TERRACE_INTERNAL},
		{GRPC_STATUS_ABORTED, TERRACE_BUSY},               {GRPC_STATUS_CANCELLED, TERRACE_UNAVAILABLE},
		{GRPC_STATUS_FAILED_PRECONDITION, TERRACE_PRECONDITION}, {GRPC_STATUS_DATA_LOSS, TERRACE_CORRUPT},
		{GRPC_STATUS_ALREADY_EXISTS, TERRACE_EXISTS},      {GRPC_STATUS_OUT_OF_RANGE, TERRACE_INVALID},
		{GRPC_STATUS_DEADLINE_EXCEEDED, TERRACE_DEADLINE},
	};

	FAULT(fail_method, "Touch");
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		FAULT(fail_code, rows[i].code);
		ck_assert_int_eq(terrace_touch(session, &keys, 0), rows[i].want);
		ck_assert_str_ne(terrace_error(), "");
	}
}
END_TEST

START_TEST(retiring)
{
	struct terrace_lease *lease, *again;
	unsigned maps;

	put_blocks(2);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	maps = fake_count(&fake, &fake.maps);
	unmap_unused(session->view->attachment, 1);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &again), TERRACE_OK);
	ck_assert_uint_eq(fake_await(&fake, &fake.unmapped, 1), 1); /* the writable one, which nobody uses */
	ck_assert_uint_eq(*(const uint8_t *)terrace_lease_block(lease, 0, 0), 1);
	terrace_release(lease);
	ck_assert_uint_eq(*(const uint8_t *)terrace_lease_block(again, 0, 0), 1);
	ck_assert_uint_eq(fake_count(&fake, &fake.unmapped), 1);
	terrace_release(again);
	ck_assert_uint_eq(fake_await(&fake, &fake.unmapped, 2), 2);
	ck_assert_uint_eq(fake_count(&fake, &fake.maps), maps);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	ck_assert_uint_eq(fake_count(&fake, &fake.maps), maps + 1); /* and is mapped anew when it is wanted */
	terrace_release(lease);
}
END_TEST

START_TEST(release_without_socket)
{
	struct terrace_lease *lease;

	put_blocks(1);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < fake.socket_count; i++)
		shutdown(fake.sockets[i], SHUT_RDWR);
	pthread_mutex_unlock(&fake.lock);
	terrace_release(lease);
	ck_assert_uint_eq(fake_await(&fake, &fake.released, 1), 1); /* by the call */
}
END_TEST

/* A system call on memory that is not there answers EFAULT. */
static bool readable(const void *memory)
{
	int ends[2];
	ssize_t n;

	ck_assert(!pipe(ends));
	n = write(ends[1], memory, 1);
	ck_assert(n == 1 || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return n == 1;
}

START_TEST(close_with_leases)
{
	const void *block;
	struct terrace_session *s;
	struct terrace_lease *lease;
	struct terrace_reservation *r;

	put_blocks(1);
	ck_assert_int_eq(terrace_session_attach(client, &(struct terrace_token){"0123456789abcde"}, &s), TERRACE_OK);
	ck_assert_int_eq(terrace_lease(s, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	ck_assert_int_eq(terrace_reserve(s, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	block = terrace_lease_block(lease, 0, 0);
	ck_assert(readable(block));
	terrace_session_close(s);
	ck_assert(!readable(block));
	terrace_release(lease);
	terrace_abort(r);
}
END_TEST

/* In the child every call says so, at once, and nothing is mapped. */
START_TEST(after_fork)
{
	struct terrace_lease *lease, *other;
	struct terrace_op *op;
	const uint8_t *block;
	int state;
	pid_t child;

	put_blocks(1);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease), TERRACE_OK);
	block = terrace_lease_block(lease, 0, 0);
	child = fork();
	if (!child) {
		uint32_t prefix;
		bool ok = terrace_lookup(session, &keys, 0, &prefix, NULL) == TERRACE_PRECONDITION;

		ok &= terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &other) == TERRACE_PRECONDITION;
		ok &= terrace_lookup_async(session, &keys, 0, NULL, &op) == TERRACE_PRECONDITION;
		ok &= terrace_session_open(client, layouts, 2, NULL, &session) == TERRACE_PRECONDITION;
		ok &= !readable(block) && !terrace_lease_block(lease, 0, 0);
		terrace_release(lease);
		terrace_session_close(session);
		terrace_disconnect(client);
		_exit(ok ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &state, 0), child);
	ck_assert(WIFEXITED(state) && !WEXITSTATUS(state));
	ck_assert_uint_eq(block[0], 1);
	terrace_release(lease);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_calls");
	TCase *alone = tcase_create("alone"), *c = tcase_create("fake");
	SRunner *runner;
	int failed;

	tcase_add_test(alone, addresses);
	tcase_add_test(alone, addresses_over_tls);
	tcase_set_timeout(alone, 100);
	suite_add_tcase(suite, alone);
	tcase_add_checked_fixture(c, open_session, client_rig_close);
	tcase_set_timeout(c, 100);
	tcase_add_test(c, sessions);
	tcase_add_test(c, sizes_of_another_version);
	tcase_add_test(c, units_of_an_older_daemon);
	tcase_add_test(c, no_borrow);
	tcase_add_test(c, put_then_lease);
	tcase_add_test(c, reservations);
	tcase_add_test(c, aborting);
	tcase_add_test(c, open_blocks);
	tcase_add_test(c, streams);
	tcase_add_test(c, large_stream);
	tcase_add_test(c, small_calls);
	tcase_add_test(c, disks);
	tcase_add_test(c, watching);
	tcase_add_test(c, watching_long_keys);
	tcase_add_test(c, watch_readers);
	tcase_add_test(c, watch_outlives_client);
	tcase_add_test(c, deadlines);
	tcase_add_test(c, busy_polling);
	tcase_add_test(c, daemon_restart);
	tcase_add_loop_test(c, daemon_restart_reopen, 0, 2);
	tcase_add_test(c, daemon_unknown_session);
	tcase_add_test(c, status_mapping);
	tcase_add_test(c, retiring);
	tcase_add_test(c, release_without_socket);
	tcase_add_test(c, close_with_leases);
	tcase_add_test(c, after_fork);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
