/* See transport/tls.h. */
#include "client/transport/tls.h"

#include "client/transport/address.h"
#include "client/value/clock.h"
#include "client/value/status.h"
#include "proto/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PROBE_US = 1000 * 1000, LAST_US = 5 * 1000 * 1000 };

static const char *given(const char *option, const char *variable)
{
	const char *value = option && *option ? option : getenv(variable);

	return value ? value : "";
}

static enum terrace_status keep(char *to, size_t size, const char *from, const char *what)
{
	if (strlen(from) >= size)
		return client_fail(TERRACE_INVALID, "%s: it is longer than %zu bytes", what, size - 1);
	strcpy(to, from);
	return TERRACE_OK;
}

static enum terrace_status files_check(const struct client_tls *t)
{
	char why[TLS_WORDS_MAX];
	struct ssl_ctx_st *context;

	if (!t->cert[0] || !t->key[0] || !t->ca[0])
		return client_fail(TERRACE_INVALID,
				   "TLS: of certificate, key and file of CAs %s is missing: give all three "
				   "(TERRACE_TLS_CERT, TERRACE_TLS_KEY, TERRACE_TLS_CA), or none",
				   !t->cert[0]  ? "the certificate"
				   : !t->key[0] ? "the key"
						: "the file of CAs");
	context = tls_context(&(struct tls_files){ t->cert, t->key, t->ca }, false, why);
	if (!context)
		return client_fail(TERRACE_INVALID, "TLS: %s", why);
	tls_context_free(context);
	return TERRACE_OK;
}

enum terrace_status client_tls_read(const char *address, const struct client_tls_options *options,
				    struct client_tls *out)
{
	const char *name = given(options->name, "TERRACE_TLS_NAME");
	enum terrace_status s;

	memset(out, 0, sizeof(*out));
	if (client_address_is_unix(address))
		return TERRACE_OK;
	s = keep(out->cert, sizeof(out->cert), given(options->cert, "TERRACE_TLS_CERT"), "TLS certificate");
	if (!s)
		s = keep(out->key, sizeof(out->key), given(options->key, "TERRACE_TLS_KEY"), "TLS key");
	if (!s)
		s = keep(out->ca, sizeof(out->ca), given(options->ca, "TERRACE_TLS_CA"), "TLS file of CAs");
	if (!s)
		s = keep(out->name, sizeof(out->name), name, "TLS name");
	out->on = out->cert[0] || out->key[0] || out->ca[0];
	if (!s && out->on)
		s = files_check(out);
	if (!s && out->on && !*name)
		client_address_host(address, out->name, sizeof(out->name));
	return s;
}

/* ---- the handshake of its own ---- */

static bool wait_for(int fd, int error, uint64_t until_us)
{
	struct pollfd p = { .fd = fd, .events = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN };
	const uint64_t now_us = client_now_us();

	return now_us < until_us && poll(&p, 1, (int)((until_us - now_us) / 1000 + 1)) == 1;
}

/* In TLS 1.3 a client learns that its certificate is refused when it reads. The first bytes of HTTP/2 say that it is
 * not. */
static int hear(SSL *ssl)
{
	char byte;

	return SSL_read(ssl, &byte, 1);
}

enum outcome { DONE, FAILED, LATE };

/* Repeats a step of OpenSSL on a non-blocking socket until it is done. */
static enum outcome drive(SSL *ssl, int (*step)(SSL *), int fd, uint64_t until_us)
{
	for (;;) {
		const int n = step(ssl), error = SSL_get_error(ssl, n);

		if (n == 1)
			return DONE;
		if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
			return FAILED;
		if (!wait_for(fd, error, until_us))
			return LATE;
	}
}

static void expect_name(SSL *ssl, const char *name)
{
	struct in6_addr address;

	if (inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1) {
		X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name);
		return;
	}
	SSL_set_tlsext_host_name(ssl, name);
	SSL_set1_host(ssl, name);
}

static SSL *ssl_for(SSL_CTX *context, int fd, const struct client_tls *tls)
{
	SSL *ssl = SSL_new(context);

	if (!ssl || SSL_set_fd(ssl, fd) != 1) {
		SSL_free(ssl);
		return NULL;
	}
	SSL_set_alpn_protos(ssl, (const unsigned char *)"\x02h2", 3);
	if (tls->on)
		expect_name(ssl, tls->name);
	else
		SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL);
	return ssl;
}

/* HTTP/2's preface, which a server of gRPC answers. */
static void greet(SSL *ssl)
{
	static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

	SSL_write(ssl, preface, sizeof(preface) - 1);
}

/* A server that speaks TLS answers a greeting, if only by an alert. */
static bool speaks_tls_alone(enum outcome handshake, char why[TLS_WORDS_MAX])
{
	const bool alone = handshake == DONE || (handshake == FAILED && tls_is_alert(ERR_peek_last_error()));

	if (alone)
		snprintf(why, TLS_WORDS_MAX,
			 "the daemon there speaks TLS alone: give a certificate, its key and the file of CAs "
			 "(TERRACE_TLS_CERT, TERRACE_TLS_KEY, "
			 "TERRACE_TLS_CA; --tls-cert, --tls-key and --tls-ca of terracectl)");
	ERR_clear_error();
	return alone;
}

/* A connection that ends without a reason is none of certificates: the daemon may be starting, stopping or full, and
 * the next connection may succeed. */
static bool probe(SSL *ssl, int fd, uint64_t until_us, const struct client_tls *tls, char why[TLS_WORDS_MAX])
{
	enum outcome outcome = drive(ssl, SSL_connect, fd, until_us);

	if (!tls->on)
		return speaks_tls_alone(outcome, why);
	if (outcome == DONE) {
		greet(ssl);
		outcome = drive(ssl, hear, fd, until_us);
	}
	return outcome == FAILED && tls_failure(ssl, tls->ca, why);
}

/* OpenSSL writes to a socket that may be closed, and the process may not ignore SIGPIPE. */
static bool probe_quietly(SSL *ssl, int fd, uint64_t until_us, const struct client_tls *tls, char why[TLS_WORDS_MAX])
{
	sigset_t pipe, before, waiting;
	bool problem, had;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigpending(&waiting);
	had = sigismember(&waiting, SIGPIPE) == 1;
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	problem = probe(ssl, fd, until_us, tls, why);
	if (!had)
		sigtimedwait(&pipe, NULL, &(struct timespec){ .tv_sec = 0 });
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return problem;
}

static bool with_context(const char *address, SSL_CTX *context, const struct client_tls *tls,
			 char words[CLIENT_TLS_WORDS_MAX])
{
	const uint64_t until_us = client_now_us() + PROBE_US;
	const int fd = client_address_connect(address, until_us);
	char why[TLS_WORDS_MAX] = "";
	bool problem = false;
	SSL *ssl;

	if (fd < 0)
		return false;
	ERR_clear_error();
	ssl = ssl_for(context, fd, tls);
	problem = ssl && probe_quietly(ssl, fd, until_us, tls, why);
	SSL_free(ssl);
	close(fd);
	ERR_clear_error();
	if (problem)
		snprintf(words, CLIENT_TLS_WORDS_MAX, "%.100s: %.390s", address, why);
	return problem;
}

bool client_tls_problem(const char *address, const struct client_tls *tls, char words[CLIENT_TLS_WORDS_MAX])
{
	char why[TLS_WORDS_MAX];
	SSL_CTX *context;
	bool problem;

	if (client_address_is_unix(address))
		return false;
	context = tls->on ? tls_context(&(struct tls_files){ tls->cert, tls->key, tls->ca }, false, why)
			  : SSL_CTX_new(TLS_client_method());
	if (!context) {
		snprintf(words, CLIENT_TLS_WORDS_MAX, "%.100s: TLS: %.380s", address, tls->on ? why : "no memory");
		return tls->on;
	}
	if (tls->on && !tls_context_in_time(context, tls->cert, NULL, why)) {
		snprintf(words, CLIENT_TLS_WORDS_MAX, "%.100s: %.390s", address, why);
		problem = true;
	} else {
		problem = with_context(address, context, tls, words);
	}
	tls_context_free(context);
	return problem;
}

/* ---- what one channel was told last ---- */

void client_tls_last_init(struct client_tls_last *last)
{
	memset(last, 0, sizeof(*last));
	pthread_mutex_init(&last->lock, NULL);
}

void client_tls_last_fini(struct client_tls_last *last)
{
	pthread_mutex_destroy(&last->lock);
}

bool client_tls_problem_soon(struct client_tls_last *last, const char *address, const struct client_tls *tls,
			     char words[CLIENT_TLS_WORDS_MAX])
{
	char found[CLIENT_TLS_WORDS_MAX] = "";
	bool due, problem;

	pthread_mutex_lock(&last->lock);
	due = client_now_us() >= last->until_us;
	if (due)
		last->until_us = UINT64_MAX; /* this thread finds it out, and no other */
	else
		strcpy(words, last->words);
	pthread_mutex_unlock(&last->lock);
	if (!due)
		return words[0];
	problem = client_tls_problem(address, tls, found);
	pthread_mutex_lock(&last->lock);
	strcpy(last->words, problem ? found : "");
	last->until_us = client_now_us() + LAST_US;
	pthread_mutex_unlock(&last->lock);
	strcpy(words, found);
	return problem;
}
