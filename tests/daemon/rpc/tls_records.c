/* Records on their way out: they leave gathered and in order whatever the socket takes at a time, OpenSSL is told to
 * come again when there is no room, and a broken connection is said to be one. */
#include "daemon/rpc/tls_records.h"

#include <check.h>
#include <errno.h>
#include <openssl/bio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECORD = 16384 + 22, RECORDS = 40, SMALL = 4096 };

static struct rpc_tls_pool pool;
static struct rpc_tls_records records;
static BIO *bio;
static int far_end;
static uint8_t next_out, next_in;

static void setup(void)
{
	const int small = SMALL;
	int pair[2];

	ck_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	ck_assert(!setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
	far_end = pair[1];
	next_out = next_in = 0;
	ck_assert(rpc_tls_pool_init(&pool));
	records = (struct rpc_tls_records){ .pool = &pool, .fd = pair[0] };
	bio = rpc_tls_records_bio(&records);
	ck_assert_ptr_nonnull(bio);
}

static void teardown(void)
{
	BIO_free(bio);
	rpc_tls_records_fini(&records);
	rpc_tls_pool_fini(&pool);
	close(records.fd);
	if (far_end >= 0)
		close(far_end);
}

/* A record whose bytes count on from those of the one before. False: OpenSSL is to come again. */
static bool record(size_t bytes)
{
	uint8_t r[RECORD] = { 0 };
	int n;

	for (size_t i = 0; i < bytes; i++)
		r[i] = (uint8_t)(next_out + i);
	n = BIO_write(bio, r, (int)bytes);
	ck_assert(n == (int)bytes || (n < 0 && BIO_should_write(bio)));
	if (n > 0)
		next_out = (uint8_t)(next_out + bytes);
	return n > 0;
}

/* Reads at most `most` bytes at the other end. */
static size_t come(size_t most)
{
	uint8_t r[RECORD];
	const ssize_t n = read(far_end, r, most < RECORD ? most : RECORD);

	for (ssize_t i = 0; i < n; i++)
		if (r[i] != next_in++)
			ck_abort_msg("another byte came");
	return n > 0 ? (size_t)n : 0;
}

START_TEST(plain_bytes_find_room)
{
	for (int i = 0; i < RPC_TLS_PLAIN_BYTES / 16384; i++)
		ck_assert(record(RECORD));
	ck_assert(record(64)); /* an alert, or the answer to a new key */
	ck_assert_uint_eq(come(RECORD), 0); /* nothing leaves before it is sent */
	ck_assert(rpc_tls_records_wait(&records));
}
END_TEST

START_TEST(small_pieces)
{
	size_t in = 0, out = 0;
	unsigned refused = 0;

	for (int i = 0; i < RECORDS;) {
		const size_t bytes = 1 + (size_t)(i * 7919) % RECORD;

		if (record(bytes)) {
			out += bytes;
			i++;
			continue;
		}
		refused++;
		while (rpc_tls_records_wait(&records)) {
			ck_assert(rpc_tls_records_send(&records));
			in += come(1 + (in * 31) % SMALL);
		}
	}
	while (in < out) {
		ck_assert(rpc_tls_records_send(&records));
		in += come(RECORD);
	}
	ck_assert(!rpc_tls_records_wait(&records));
	ck_assert_uint_gt(refused, 0);
	ck_assert_uint_eq(next_in, next_out);
}
END_TEST

/* A client that does not read keeps its buffer; one that does uses the same again. */
START_TEST(two_connections)
{
	struct rpc_tls_records other = { .pool = &pool, .fd = far_end };
	BIO *o = rpc_tls_records_bio(&other);

	while (record(RECORD))
		;
	ck_assert(rpc_tls_records_send(&records) && rpc_tls_records_wait(&records));
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(BIO_write(o, "word", 4), 4);
		ck_assert(rpc_tls_records_send(&other) && !rpc_tls_records_wait(&other));
	}
	BIO_free(o);
	rpc_tls_records_fini(&other);
	while (rpc_tls_records_wait(&records)) {
		come(RECORD);
		ck_assert(rpc_tls_records_send(&records));
	}
}
END_TEST

START_TEST(broken)
{
	ck_assert(record(RECORD));
	close(far_end);
	far_end = -1;
	ck_assert(!rpc_tls_records_send(&records)); /* and no SIGPIPE */
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tls_records");
	TCase *c = tcase_create("tls_records");
	SRunner *r = srunner_create(s);
	int failed;

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, plain_bytes_find_room);
	tcase_add_test(c, small_pieces);
	tcase_add_test(c, two_connections);
	tcase_add_test(c, broken);
	suite_add_tcase(s, c);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
