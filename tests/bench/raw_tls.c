/* See raw_tls.h. A call is a header of the client's, then the blocks; of a put the server answers the header. OpenSSL's
 * defaults are kept: reading ahead, of 17 to 256 KiB, costs the processors as much. */
#include "tests/bench/raw_tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/tls.h"
#include "tests/bench/bench.h"

enum { PIECE_MAX = 1 << 30, PORT_TRIES = 1000, OPENSSL_S_MAX = 60 };

struct header {
	uint64_t bytes; /* of all blocks */
	bool put;
	uint8_t zeroes[7];
};

struct raw_tls {
	int fd;
	SSL *ssl;
};

static SSL_CTX *context_of(const char *folder, bool server, char why[TLS_WORDS_MAX])
{
	char cert[128], key[128];
	SSL_CTX *context;

	snprintf(cert, sizeof(cert), "%s/tls.pem", folder);
	snprintf(key, sizeof(key), "%s/tls.key", folder);
	context = tls_context(&(struct tls_files){cert, key, cert}, server, why);
	if (!context)
		return NULL;
	SSL_CTX_clear_mode(context, SSL_MODE_RELEASE_BUFFERS);
	return context;
}

static bool read_all(SSL *ssl, void *to, uint64_t bytes)
{
	for (uint64_t got = 0; got < bytes;) {
		const uint64_t left = bytes - got;
		const int n = SSL_read(ssl, (uint8_t *)to + got, left < PIECE_MAX ? (int)left : PIECE_MAX);

		if (n <= 0)
			return false;
		got += (uint64_t)n;
	}
	return true;
}

static bool write_all(SSL *ssl, const void *from, uint64_t bytes)
{
	for (uint64_t sent = 0; sent < bytes;) {
		const uint64_t left = bytes - sent;
		const int n = SSL_write(ssl, (const uint8_t *)from + sent, left < PIECE_MAX ? (int)left : PIECE_MAX);

		if (n <= 0)
			return false;
		sent += (uint64_t)n;
	}
	return true;
}

void raw_tls_certificate(const char *folder)
{
	char key[128], cert[128];

	snprintf(key, sizeof(key), "%s/tls.key", folder);
	snprintf(cert, sizeof(cert), "%s/tls.pem", folder);
	const char *const words[] = {"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
				     "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=bench",
				     "-addext",
				     "subjectAltName=IP:10.213.7.1,IP:10.213.7.2,IP:127.0.0.1,DNS:" RAW_TLS_NAME,
				     "-addext", "extendedKeyUsage=serverAuth,clientAuth", NULL};

	if (bench_wait_for(bench_spawn("openssl", words), OPENSSL_S_MAX)) {
		bench_log_print("openssl");
		bench_die("the openssl command made no certificate: its words are above");
	}
}

/* ---- the server ---- */

static void serve_one(SSL *ssl, uint8_t *blocks)
{
	struct header h;

	while (read_all(ssl, &h, sizeof(h)) && h.bytes <= RAW_TLS_BYTES_MAX) {
		if (h.put && (!read_all(ssl, blocks, h.bytes) || !write_all(ssl, &h, sizeof(h))))
			return;
		if (!h.put && !write_all(ssl, blocks, h.bytes))
			return;
	}
}

static bool port_tell(const char *folder, int fd)
{
	struct sockaddr_in at;
	socklen_t n = sizeof(at);
	char path[128], new[136];
	FILE *f;

	snprintf(path, sizeof(path), "%s/raw.port", folder);
	snprintf(new, sizeof(new), "%s.new", path);
	if (getsockname(fd, (struct sockaddr *)&at, &n) || !(f = fopen(new, "we")))
		return false;
	fprintf(f, "%u\n", ntohs(at.sin_port));
	return !fclose(f) && !rename(new, path);
}

int raw_tls_serve(const char *folder)
{
	const struct sockaddr_in any = {.sin_family = AF_INET};
	const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint8_t *blocks = malloc(RAW_TLS_BYTES_MAX);
	uint64_t seed = 7;
	char why[TLS_WORDS_MAX];
	SSL_CTX *context = context_of(folder, true, why);

	signal(SIGPIPE, SIG_IGN);
	if (!context)
		fprintf(stderr, "%s\n", why);
	if (!context || !blocks || listener < 0 || bind(listener, (const struct sockaddr *)&any, sizeof(any)) ||
	    listen(listener, 1) || !port_tell(folder, listener))
		return 1;
	for (uint64_t i = 0; i < RAW_TLS_BYTES_MAX / 8; i++)
		((uint64_t *)(void *)blocks)[i] = bench_random(&seed);
	for (;;) { /* until it is killed */
		const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), on = 1;
		SSL *ssl = SSL_new(context);

		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (ssl && SSL_set_fd(ssl, fd) == 1 && SSL_accept(ssl) == 1)
			serve_one(ssl, blocks);
		SSL_free(ssl);
		close(fd);
	}
}

/* ---- the client ---- */

static uint16_t port_hear(const char *folder)
{
	const struct timespec pause = {0, 10 * 1000 * 1000};
	char path[128];
	unsigned port = 0;
	FILE *f = NULL;

	snprintf(path, sizeof(path), "%s/raw.port", folder);
	for (int i = 0; i < PORT_TRIES && !(f = fopen(path, "re")); i++)
		nanosleep(&pause, NULL);
	if (!f || fscanf(f, "%u", &port) != 1) {
		bench_log_print("raw");
		bench_die("the raw TLS server does not come up: its words are above");
	}
	fclose(f);
	return (uint16_t)port;
}

static struct raw_tls *connect_to(const char *folder, const char *host, uint16_t port, bool http2)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct raw_tls *r = calloc(1, sizeof(*r));
	char why[TLS_WORDS_MAX];
	SSL_CTX *context = context_of(folder, false, why);
	const int on = 1;

	if (!r || !context)
		bench_die("raw TLS: %s", context ? "out of memory" : why);
	r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (inet_pton(AF_INET, host, &at.sin_addr) != 1 || connect(r->fd, (struct sockaddr *)&at, sizeof(at)))
		bench_die("raw TLS: %s: %s", host, strerror(errno));
	setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	r->ssl = SSL_new(context);
	if (!r->ssl || (http2 && SSL_set_alpn_protos(r->ssl, (const unsigned char *)"\x02h2", 3)) ||
	    SSL_set_fd(r->ssl, r->fd) != 1 || SSL_connect(r->ssl) != 1) {
		tls_failure(r->ssl, folder, why);
		bench_die("raw TLS: %s", why);
	}
	tls_context_free(context); /* the connection holds it */
	return r;
}

struct raw_tls *raw_tls_open(const char *folder, const char *host)
{
	return connect_to(folder, host, port_hear(folder), false);
}

void raw_tls_get(struct raw_tls *r, uint8_t *blocks, uint32_t count, uint64_t block_bytes)
{
	const struct header h = {.bytes = count * block_bytes};

	if (!write_all(r->ssl, &h, sizeof(h)))
		bench_die("raw TLS: the server has ended");
	for (uint32_t i = 0; i < count; i++)
		if (!read_all(r->ssl, blocks + i * block_bytes, block_bytes))
			bench_die("raw TLS: the server has ended");
}

void raw_tls_put(struct raw_tls *r, const uint8_t *blocks, uint32_t count, uint64_t block_bytes)
{
	struct header h = {.bytes = count * block_bytes, .put = true};
	bool well = write_all(r->ssl, &h, sizeof(h));

	for (uint32_t i = 0; well && i < count; i++)
		well = write_all(r->ssl, blocks + i * block_bytes, block_bytes);
	if (!well || !read_all(r->ssl, &h, sizeof(h)))
		bench_die("raw TLS: the server has ended");
}

void raw_tls_close(struct raw_tls *r)
{
	SSL_shutdown(r->ssl);
	SSL_free(r->ssl);
	close(r->fd);
	free(r);
}

const char *raw_tls_cipher(const struct raw_tls *r)
{
	return SSL_get_cipher(r->ssl);
}

void raw_tls_cipher_of(const char *folder, const char *host, uint16_t port, char *out, uint32_t size)
{
	struct raw_tls *r = connect_to(folder, host, port, true);

	snprintf(out, size, "%s", raw_tls_cipher(r));
	raw_tls_close(r);
}
