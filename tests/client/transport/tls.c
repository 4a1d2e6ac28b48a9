/* Why a connection over TLS fails, as a client finds it out: against a listener that answers each connection with the
 * same bytes, or with none, and closes it. */
#include "client/transport/address.h"
#include "client/transport/tls.h"
#include "client/value/clock.h"

#include <arpa/inet.h>
#include <check.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint8_t alert[] = { 21, 3, 3, 0, 2, 2, 40 }; /* handshake_failure: such an end speaks TLS */
static const struct client_tls off;

struct listener {
	int fd;
	char address[32];
	uint16_t port;
	const uint8_t *answer;
	size_t bytes;
	atomic_uint connections;
	pthread_t thread;
};

static void *listener_main(void *arg)
{
	struct listener *l = arg;
	char in[4096];
	int s;

	while ((s = accept(l->fd, NULL, NULL)) >= 0) {
		atomic_fetch_add(&l->connections, 1);
		if (l->bytes && recv(s, in, sizeof(in), 0) > 0)
			send(s, l->answer, l->bytes, MSG_NOSIGNAL);
		close(s);
	}
	return NULL;
}

static void listener_open(struct listener *l, const uint8_t *answer, size_t bytes)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(at);

	*l = (struct listener){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .answer = answer, .bytes = bytes };
	ck_assert_int_eq(bind(l->fd, (struct sockaddr *)&at, size), 0);
	ck_assert_int_eq(listen(l->fd, 16), 0);
	ck_assert_int_eq(getsockname(l->fd, (struct sockaddr *)&at, &size), 0);
	l->port = ntohs(at.sin_port);
	snprintf(l->address, sizeof(l->address), "127.0.0.1:%u", l->port);
	ck_assert_int_eq(pthread_create(&l->thread, NULL, listener_main, l), 0);
}

static void listener_close(struct listener *l)
{
	shutdown(l->fd, SHUT_RDWR);
	pthread_join(l->thread, NULL);
	close(l->fd);
}

START_TEST(an_alert_is_a_cause_and_an_end_is_none)
{
	char words[CLIENT_TLS_WORDS_MAX];
	struct listener l;

	listener_open(&l, alert, sizeof(alert));
	ck_assert(client_tls_problem(l.address, &off, words));
	ck_assert_ptr_nonnull(strstr(words, "speaks TLS alone"));
	listener_close(&l);
	listener_open(&l, NULL, 0);
	ck_assert(!client_tls_problem(l.address, &off, words));
	listener_close(&l);
}
END_TEST

START_TEST(many_calls_ask_once)
{
	char words[CLIENT_TLS_WORDS_MAX];
	struct client_tls_last last;
	struct listener l;

	client_tls_last_init(&last);
	listener_open(&l, alert, sizeof(alert));
	for (int i = 0; i < 100; i++) {
		memset(words, 0, sizeof(words));
		ck_assert(client_tls_problem_soon(&last, l.address, &off, words));
		ck_assert_ptr_nonnull(strstr(words, "speaks TLS alone"));
	}
	ck_assert_uint_eq(atomic_load(&l.connections), 1);
	last.until_us = 0; /* its time is over */
	ck_assert(client_tls_problem_soon(&last, l.address, &off, words));
	ck_assert_uint_eq(atomic_load(&l.connections), 2);
	last.until_us = UINT64_MAX; /* another thread finds it out again */
	ck_assert(client_tls_problem_soon(&last, l.address, &off, words));
	ck_assert_uint_eq(atomic_load(&l.connections), 2);
	listener_close(&l);
	last.until_us = 0; /* nothing listens any more: no problem of TLS */
	for (int i = 0; i < 2; i++)
		ck_assert(!client_tls_problem_soon(&last, l.address, &off, words));
	ck_assert_uint_gt(last.until_us, client_now_us());
	client_tls_last_fini(&last);
}
END_TEST

/* ---- a host with two addresses, nothing listening at the first ---- */

static struct sockaddr_in two[2];
static struct addrinfo found[2];

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out);
void __wrap_freeaddrinfo(struct addrinfo *all);

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
	(void)host;
	for (int i = 0; i < 2; i++) {
		two[i] = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)),
					       .sin_addr.s_addr = htonl(INADDR_LOOPBACK + (i ? 0 : 1)) };
		found[i] = (struct addrinfo){ .ai_family = AF_INET, .ai_socktype = hints->ai_socktype,
					      .ai_addr = (struct sockaddr *)&two[i], .ai_addrlen = sizeof(two[i]),
					      .ai_next = i ? NULL : &found[1] };
	}
	*out = found;
	return 0;
}

void __wrap_freeaddrinfo(struct addrinfo *all)
{
	ck_assert_ptr_eq(all, found);
}

START_TEST(each_address_of_a_host_is_tried)
{
	struct listener l;
	char address[64];
	int fd;

	listener_open(&l, NULL, 0);
	snprintf(address, sizeof(address), "node1.example:%u", l.port);
	fd = client_address_connect(address, client_now_us() + 60 * 1000 * 1000ull);
	ck_assert_int_ge(fd, 0);
	close(fd);
	listener_close(&l);
	ck_assert_int_eq(client_address_connect(address, client_now_us() + 60 * 1000 * 1000ull), -1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_tls");
	TCase *tc = tcase_create("tls");
	SRunner *runner;
	int failed;

	tcase_add_test(tc, an_alert_is_a_cause_and_an_end_is_none);
	tcase_add_test(tc, many_calls_ask_once);
	tcase_add_test(tc, each_address_of_a_host_is_tried);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
