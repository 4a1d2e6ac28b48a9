/* Every packet of the fd socket and every local call, in every shape, over connections in every state: of one thread. */
#ifndef TERRACE_TESTS_HOSTILE_PACKETS_H
#define TERRACE_TESTS_HOSTILE_PACKETS_H

#include "tests/hostile/wire.h"

struct packets;

/* A connection that keeps a session attached for as long as it is open. Fills of->attachment. Exits if that fails. */
int keeper_open(const char *fd_socket, struct opened *of);

/* `header`: proto/fdsock.h, whose names the rows are. Exits if one has no generator here. Keepers are read now and then. */
struct packets *packets_create(const char *fd_socket, const char *header, uint64_t seed, const struct book *book, const int *keepers,
			       uint32_t keeper_count);
void packets_run(struct packets *p, uint64_t messages);
const struct kinds *packets_kinds(const struct packets *p);
void packets_destroy(struct packets *p);

#endif
