/* Addresses of a daemon: "unix:PATH" and HOST:PORT, and why a connection to one fails. */
#ifndef TERRACE_CLIENT_TRANSPORT_ADDRESS_H
#define TERRACE_CLIENT_TRANSPORT_ADDRESS_H

#include "client/include/terrace.h"

enum { CLIENT_ADDRESS_MAX = 160 };

#define CLIENT_ADDRESS_DEFAULT "unix:/run/terrace/terraced.sock"

/* Checks an address and writes it in gRPC's form. It is "unix:PATH", or HOST:PORT. Without TLS the host must be
 * 127.x.x.x, localhost or [::1]: any other host would get session tokens in the clear over a network
 * (TERRACE_UNSUPPORTED). TERRACE_INVALID: it is no address. */
enum terrace_status client_address_read(const char *address, bool tls, char target[CLIENT_ADDRESS_MAX]);

bool client_address_is_unix(const char *address);

/* The host of HOST:PORT, without brackets; localhost becomes 127.0.0.1, to which the library connects. "": the address
 * has another form. */
void client_address_host(const char *address, char *host, size_t size);

/* A connected, non-blocking socket to HOST:PORT: to the first of the host's addresses that takes it. Each has its share
 * of the time until then. -1: none does, or there is no such host; to find the latter out may take longer. */
int client_address_connect(const char *address, uint64_t until_us);

/* Tries one connection to learn why no daemon can be reached at the address. Returns an errno; 0: one listens, or the
 * cause cannot be told at once. Does not wait, except some ms for an answer where the address is in numbers. */
int client_address_error(const char *address);

/* Writes the whole sentence for such an errno: the address, the cause, and what to do. */
enum { CLIENT_ADDRESS_WORDS_MAX = 400 };
void client_address_words(const char *address, int error, char words[CLIENT_ADDRESS_WORDS_MAX]);

#endif
