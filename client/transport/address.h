/* Where the daemon is. */
#ifndef TERRACE_CLIENT_TRANSPORT_ADDRESS_H
#define TERRACE_CLIENT_TRANSPORT_ADDRESS_H

#include "client/include/terrace.h"

enum { CLIENT_ADDRESS_MAX = 160 };

#define CLIENT_ADDRESS_DEFAULT "unix:/run/terrace/terraced.sock"

/* Checks an address and writes it in gRPC's form. "unix:PATH", or HOST:PORT. Without TLS the host is 127.x.x.x,
 * localhost or [::1]: anything else would send session tokens in the clear over a network (TERRACE_UNSUPPORTED).
 * TERRACE_INVALID: not an address. */
enum terrace_status client_address_read(const char *address, bool tls, char target[CLIENT_ADDRESS_MAX]);

bool client_address_is_unix(const char *address);

/* The host of HOST:PORT, without brackets; localhost is 127.0.0.1, as it is connected to. "": it has not that form. */
void client_address_host(const char *address, char *host, size_t size);

/* A connected, non-blocking socket to HOST:PORT; -1: none within the time, or no such host, which may take longer to
 * find out. */
int client_address_connect(const char *address, uint64_t wait_us);

/* Why no daemon can be reached there: an errno, by a connection that is tried once more; 0 if one listens, or if that cannot be told at once.
 * Does not wait, but for some ms for the answer of an address in numbers. */
int client_address_error(const char *address);

/* The whole sentence for such an error: the address, the cause, and what to do. */
enum { CLIENT_ADDRESS_WORDS_MAX = 400 };
void client_address_words(const char *address, int error, char words[CLIENT_ADDRESS_WORDS_MAX]);

#endif
