/* The floor under a stream over TLS: one TCP connection with OpenSSL alone, of the daemon's TLS version and cipher. The
 * server is this program run again, since terraced is another process too. One call moves a list of blocks, which each
 * have memory of their own on both sides, as an engine's have.
 */
#ifndef TERRACE_BENCH_RAW_TLS_H
#define TERRACE_BENCH_RAW_TLS_H

#include <stdint.h>

#define RAW_TLS_SERVER_COMMAND "raw-tls-server"

enum { RAW_TLS_BYTES_MAX = 64 << 20 }; /* of all blocks of a list */

/* Makes FOLDER/tls.pem and tls.key, a certificate for all: of this CA, for both machines of far.h and the name
 * RAW_TLS_NAME, a server's and a client's. Ends the bench if it cannot. */
#define RAW_TLS_NAME "bench.cluster"
void raw_tls_certificate(const char *folder);

/* Serves one connection after the other, on a port of all addresses, which it writes to FOLDER/raw.port, until it is
 * killed. FOLDER/tls.pem and tls.key: certificate, CA and key, of both ends. Returns an exit code if it cannot. */
int raw_tls_serve(const char *folder);

struct raw_tls;
/* Connects to the server of that folder at an IPv4 address. Ends the bench if it cannot. */
struct raw_tls *raw_tls_open(const char *folder, const char *host);
/* Reads `count` blocks into memory that follow each other, or writes them and waits until the server has all. */
void raw_tls_get(struct raw_tls *r, uint8_t *blocks, uint32_t count, uint64_t block_bytes);
void raw_tls_put(struct raw_tls *r, const uint8_t *blocks, uint32_t count, uint64_t block_bytes);
void raw_tls_close(struct raw_tls *r);
/* Version and cipher of the connection; static text. */
const char *raw_tls_cipher(const struct raw_tls *r);
/* Those that a TLS server at host and port chooses for the same client, to compare. */
void raw_tls_cipher_of(const char *folder, const char *host, uint16_t port, char *out, uint32_t size);

#endif
