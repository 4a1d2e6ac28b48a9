/* Where the daemon is. */
#ifndef TERRACE_CLIENT_RPC_ADDRESS_H
#define TERRACE_CLIENT_RPC_ADDRESS_H

#include "client/include/terrace.h"

enum { CLIENT_ADDRESS_MAX = 160 };

#define CLIENT_ADDRESS_DEFAULT "unix:/run/terrace/terraced.sock"

/* Checks an address and writes it in gRPC's form. "unix:PATH", or HOST:PORT where HOST is 127.x.x.x, localhost or [::1]: anything
 * else would send session tokens in the clear over a network (TERRACE_UNSUPPORTED). TERRACE_INVALID: not an address. */
enum terrace_status client_address_read(const char *address, char target[CLIENT_ADDRESS_MAX]);

/* Why nobody answers there, in the kernel's words, by trying it once more; NULL if it does not say: somebody listens, or it is no Unix
 * socket. Does not wait. */
const char *client_address_problem(const char *address);

#endif
