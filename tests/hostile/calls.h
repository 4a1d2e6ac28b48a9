/* Every method of every service, in every shape, over gRPC: some dozens of calls at a time, of one thread. */
#ifndef TERRACE_TESTS_HOSTILE_CALLS_H
#define TERRACE_TESTS_HOSTILE_CALLS_H

#include "tests/hostile/wire.h"

struct calls;

struct calls *calls_create(const char *address, uint64_t seed, const struct foreign *foreign);

/* Opens a session. Exits if that fails. */
void calls_open_session(struct calls *c, struct opened *out, char *fd_socket, size_t room);
/* Whether the daemon lets this process do what is an admin's. */
bool calls_is_admin(struct calls *c);

/* The sessions that the messages name. */
struct book *calls_book(struct calls *c);
/* Sends at least so many messages, of all kinds but `without` (NULL: of all); returns when every call has ended. */
void calls_run(struct calls *c, uint64_t messages, const char *without);

const struct kinds *calls_kinds(const struct calls *c);
/* One line: how often which status came. */
void calls_print_codes(const struct calls *c);
void calls_destroy(struct calls *c);

#endif
