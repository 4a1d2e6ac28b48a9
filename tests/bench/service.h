/* A terraced of the bench's own, and what the benches do with it through the public header. */
#ifndef TERRACE_BENCH_SERVICE_H
#define TERRACE_BENCH_SERVICE_H

#include "client/include/terrace.h"

struct service {
	int pid;
	char address[128];
	struct terrace_client *client;
};

/* Starts a terraced of any build as process NAME, with a data folder and socket of that name in the temporary
 * folder, and waits for its socket. Returns the process. address[bytes]: where it listens. extra: flags, ended by a
 * NULL. */
int service_spawn(const char *name, const char *terraced, const char *host_bytes, char *address, size_t bytes,
		  const char *const *extra);
/* Waits until the log of the process NAME has a line of that event, and leaves it in line[bytes]. Ends the bench if
 * none comes. */
void service_await(const char *name, const char *event, char *line, size_t bytes);
/* The port of `listen` of the process NAME. */
uint16_t service_port(const char *name);
/* Starts the daemon with a data folder and sockets in the temporary folder, and connects. host_bytes: its
 * memory, "512MiB". */
void service_start(struct service *s, const char *host_bytes);
/* The same with a disk tier of one disk in that folder: disk_bytes of it, and a share of memory to keep free or copied. */
void service_start_disk(struct service *s, const char *host_bytes, const char *disk_bytes, const char *spill_share);
/* The same with flags of the caller's, at most 16 words, ended by a NULL. */
void service_start_with(struct service *s, const char *host_bytes, const char *const *flags);
void service_stop(struct service *s);

/* 16 tokens of `layers` layers and `heads` heads, K and V in one format. name: part of the fingerprint. */
struct terrace_layout service_layout(const char *name, enum terrace_format format, uint32_t layers,
				     uint32_t heads, uint32_t dim);
struct terrace_session *service_session(struct service *s, const struct terrace_layout *layout);
/* The same over a connection of the caller's. */
struct terrace_session *service_session_of(struct terrace_client *client, const struct terrace_layout *layout);

/* `count` different keys of key_bytes; the caller frees .bytes. */
struct terrace_keys service_keys(uint32_t count, uint32_t key_bytes, uint64_t seed);
struct terrace_keys service_key(const struct terrace_keys *keys, uint32_t first, uint32_t count);

/* Stores a block of seeded bytes under each key, in place. block_bytes: of the layout. */
void service_fill(struct terrace_session *session, const struct terrace_keys *keys, uint64_t block_bytes);

/* Ends the bench unless the call went well. */
void service_check(enum terrace_status status, const char *what);

#endif
