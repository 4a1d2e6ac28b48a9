/* The way out of TLS connections: OpenSSL hands each record of 16 KiB to the socket in a system call of its own. Here
 * records are gathered and sent in one call, which costs both ends' processors less.
 *
 * Threads: the TLS thread alone.
 */
#ifndef TERRACE_DAEMON_RPC_TLS_RECORDS_H
#define TERRACE_DAEMON_RPC_TLS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

struct bio_method_st;
struct bio_st;
struct rpc_tls_buffer;

/* Plain bytes that always find room in an empty buffer, if OpenSSL writes nothing else than them and a few answers of
 * its own. */
enum { RPC_TLS_PLAIN_BYTES = 128 * 1024 };

/* What all connections share. */
struct rpc_tls_pool {
	struct bio_method_st *method;
	struct rpc_tls_buffer *spare;
};
/* False: no memory. */
bool rpc_tls_pool_init(struct rpc_tls_pool *pool);
/* Zeroed memory allowed. */
void rpc_tls_pool_fini(struct rpc_tls_pool *pool);

/* The records of one connection that have not left. */
struct rpc_tls_records {
	struct rpc_tls_pool *pool;
	int fd;
	struct rpc_tls_buffer *buffer; /* NULL: all have left */
};
/* For SSL_set0_wbio. Takes a record while there is room for it, and asks OpenSSL to come again otherwise. NULL: no
 * memory. */
struct bio_st *rpc_tls_records_bio(struct rpc_tls_records *records);
/* Sends as much as the socket takes. False: the connection is broken. */
bool rpc_tls_records_send(struct rpc_tls_records *records);
/* Some have not left. */
bool rpc_tls_records_wait(const struct rpc_tls_records *records);
/* Drops what has not left. Zeroed memory allowed. */
void rpc_tls_records_fini(struct rpc_tls_records *records);

#endif
