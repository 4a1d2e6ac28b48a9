/* See rpc/tls_records.h. A buffer goes from the pool to a connection with its first record, and back when the last byte
 * has left. So idle connections hold none, and a client that reads as fast as it is sent to always gets the same one,
 * which the processor has in its cache. */
#include "daemon/rpc/tls_records.h"

#include <errno.h>
#include <openssl/bio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BUFFER_BYTES = RPC_TLS_PLAIN_BYTES + 8 * 1024 };

struct rpc_tls_buffer {
	uint32_t at, end; /* what is in it: [at, end) */
	uint8_t bytes[BUFFER_BYTES];
};

/* ---- buffers ---- */

static struct rpc_tls_buffer *buffer_take(struct rpc_tls_pool *pool)
{
	struct rpc_tls_buffer *b = pool->spare ? pool->spare : malloc(sizeof *b);

	pool->spare = NULL;
	if (b)
		b->at = b->end = 0;
	return b;
}

static void buffer_give(struct rpc_tls_pool *pool, struct rpc_tls_buffer *b)
{
	if (pool->spare)
		free(b);
	else
		pool->spare = b;
}

/* ---- OpenSSL's end ---- */

static int record_write(BIO *bio, const char *bytes, int n)
{
	struct rpc_tls_records *r = BIO_get_data(bio);

	BIO_clear_retry_flags(bio);
	if (!r->buffer)
		r->buffer = buffer_take(r->pool);
	if (!r->buffer)
		return -1;
	if (n > (int)(BUFFER_BYTES - r->buffer->end)) {
		BIO_set_retry_write(bio);
		return -1;
	}
	memcpy(r->buffer->bytes + r->buffer->end, bytes, (size_t)n);
	r->buffer->end += (uint32_t)n;
	return n;
}

/* OpenSSL flushes what it has written in a handshake; nothing else is asked. */
static long record_control(BIO *bio, int command, long n, void *p)
{
	(void)bio;
	(void)n;
	(void)p;
	return command == BIO_CTRL_FLUSH;
}

struct bio_st *rpc_tls_records_bio(struct rpc_tls_records *records)
{
	BIO *bio = BIO_new(records->pool->method);

	if (!bio)
		return NULL;
	BIO_set_data(bio, records);
	BIO_set_init(bio, 1);
	return bio;
}

/* ---- the socket's end ---- */

bool rpc_tls_records_send(struct rpc_tls_records *r)
{
	struct rpc_tls_buffer *b = r->buffer;

	while (b && b->at < b->end) {
		const ssize_t n = send(r->fd, b->bytes + b->at, b->end - b->at, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		b->at += (uint32_t)n;
	}
	if (b)
		buffer_give(r->pool, b);
	r->buffer = NULL;
	return true;
}

bool rpc_tls_records_wait(const struct rpc_tls_records *r)
{
	return r->buffer != NULL;
}

void rpc_tls_records_fini(struct rpc_tls_records *r)
{
	if (r->buffer)
		buffer_give(r->pool, r->buffer);
	r->buffer = NULL;
}

/* ---- what is shared ---- */

bool rpc_tls_pool_init(struct rpc_tls_pool *pool)
{
	const int index = BIO_get_new_index();

	pool->spare = NULL;
	pool->method = index < 0 ? NULL : BIO_meth_new(index | BIO_TYPE_SOURCE_SINK, "terrace records");
	return pool->method && BIO_meth_set_write(pool->method, record_write) == 1 &&
	       BIO_meth_set_ctrl(pool->method, record_control) == 1;
}

void rpc_tls_pool_fini(struct rpc_tls_pool *pool)
{
	free(pool->spare);
	BIO_meth_free(pool->method);
	pool->spare = NULL;
	pool->method = NULL;
}
