/* TLS of a connection over TCP: its files and the name that the daemon must have; and why a handshake fails, in words.
 * gRPC carries the calls (transport/grpc.c) and says only that a handshake failed; so the words come from a handshake
 * of this file's own, with the same files. */
#ifndef TERRACE_CLIENT_TRANSPORT_TLS_H
#define TERRACE_CLIENT_TRANSPORT_TLS_H

#include "client/include/terrace.h"

enum { CLIENT_TLS_PATH_MAX = 1024, CLIENT_TLS_HOST_MAX = 256, CLIENT_TLS_WORDS_MAX = 500 };

struct client_tls {
	bool on;
	char cert[CLIENT_TLS_PATH_MAX], key[CLIENT_TLS_PATH_MAX], ca[CLIENT_TLS_PATH_MAX];
	char name[CLIENT_TLS_HOST_MAX]; /* that the daemon's certificate must have: the address's host, unless another
					   one was given */
};

/* Of the options, which may be NULL each or empty, and for what they leave out of TERRACE_TLS_CERT, _KEY, _CA and
 * _NAME. A Unix socket has none. All files or none must be named, and be sound: TERRACE_INVALID. */
struct client_tls_options {
	const char *cert, *key, *ca, *name;
};
enum terrace_status client_tls_read(const char *address, const struct client_tls_options *options,
				    struct client_tls *out);

/* Why no TLS connection to that address comes about, if certificates are the cause, or that one end speaks TLS and the
 * other does not: true, and words. Connects once; waits a second at most. */
bool client_tls_problem(const char *address, const struct client_tls *tls, char words[CLIENT_TLS_WORDS_MAX]);

#endif
