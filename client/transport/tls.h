/* TLS of a connection over TCP: its files, the name that the daemon's certificate must have, and the reason of a failed
 * handshake in words. gRPC carries the calls (transport/grpc.c) and says only that a handshake failed. So the words
 * come from a handshake that this module makes with the same files.
 */
#ifndef TERRACE_CLIENT_TRANSPORT_TLS_H
#define TERRACE_CLIENT_TRANSPORT_TLS_H

#include "client/include/terrace.h"

#include <pthread.h>

enum { CLIENT_TLS_PATH_MAX = 1024, CLIENT_TLS_HOST_MAX = 256, CLIENT_TLS_WORDS_MAX = 500 };

struct client_tls {
	bool on;
	char cert[CLIENT_TLS_PATH_MAX], key[CLIENT_TLS_PATH_MAX], ca[CLIENT_TLS_PATH_MAX];
	char name[CLIENT_TLS_HOST_MAX]; /* the name that the daemon's certificate must have: the address's host, unless
					 * another one was given */
};

/* The files and the name come from the options, each of which may be NULL or empty. What the options leave out comes
 * from TERRACE_TLS_CERT, _KEY, _CA and _NAME. A Unix socket has no TLS. All files or none must be named, and they must
 * be sound: TERRACE_INVALID. */
struct client_tls_options {
	const char *cert, *key, *ca, *name;
};
enum terrace_status client_tls_read(const char *address, const struct client_tls_options *options,
				    struct client_tls *out);

/* Finds out why a TLS connection to that address fails. True, with words: certificates are the cause, or one end speaks
 * TLS and the other does not. False: no problem was found, or its cause is not known, as when the connection just ends.
 * Connects once, and waits a second at most for the connection and its handshake. The look-up of a host name comes
 * before that and takes as long as the resolver does. */
bool client_tls_problem(const char *address, const struct client_tls *tls, char words[CLIENT_TLS_WORDS_MAX]);

/* What client_tls_problem said last of one channel. Any thread. */
struct client_tls_last {
	pthread_mutex_t lock;
	uint64_t until_us; /* as long it is said again; UINT64_MAX: a thread is finding it out */
	char words[CLIENT_TLS_WORDS_MAX]; /* "": there was no problem */
};
void client_tls_last_init(struct client_tls_last *last);
void client_tls_last_fini(struct client_tls_last *last);

/* As client_tls_problem, but it finds the cause out only each 5 s: between, and while another thread does so, it says
 * what it said before. For failed calls, of which there may be many. */
bool client_tls_problem_soon(struct client_tls_last *last, const char *address, const struct client_tls *tls,
			     char words[CLIENT_TLS_WORDS_MAX]);

#endif
