/* Which client may call what: one table of every method and packet with the role that it needs, and the rule for the
 * role of a client.
 *
 * A role includes those before it, but for ROLE_PEER: other daemons of the cluster may call what is for them and what
 * is for ROLE_METRICS, and no other role may call what is for peers. Each client that reaches the metrics address has
 * ROLE_METRICS. Each client that connects to the sockets of gRPC and of memory descriptors, which socket_mode guards,
 * has ROLE_ENGINE. Root, the daemon's own user and the members of the option admin_group have ROLE_ADMIN, by what the
 * kernel says of the peer of a Unix socket. A client over TCP has no identity, or over TLS the one of its
 * certificate.
 */
#ifndef TERRACE_DAEMON_PROCESS_RIGHTS_H
#define TERRACE_DAEMON_PROCESS_RIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct config;

/* By this number the kernel shows each user and group that the daemon's user namespace cannot map
 * (/proc/sys/kernel/overflowuid): many users may have it, so it is the identity of none. */
enum { ID_UNMAPPED = 65534 };

enum role { ROLE_METRICS, ROLE_ENGINE, ROLE_ADMIN, ROLE_PEER, ROLES };

/* name: "Cache.Lookup" of a method, "fd HELLO" of a packet that a client sends over fd_socket, "http /metrics" of a
 * page. */
struct right {
	const char *name;
	enum role role;
	const char *only;          /* what of it the role gets; NULL: all */
};
extern const struct right rights[];
extern const uint32_t rights_count;

/* Methods and packets without a row are for administrators. */
enum role right_role(const char *name);

/* Whether a client of role `has` may call what is for `needed`. */
bool right_includes(enum role has, enum role needed);

enum { WHO_TENANT_WORDS = 4 };
/* One end of a connection, as the kernel names it. */
struct who {
	bool named;                /* by a Unix socket; else nothing is known, as over TCP */
	bool certified;            /* by a certificate, over TLS */
	uid_t uid;
	pid_t pid;                 /* 0: of another namespace */
	enum role role;
	/* ROLE_PEER: bits by index in the table of tenants; all ones: of all tenants */
	uint64_t peer_of[WHO_TENANT_WORDS];
	uint32_t tenant;           /* its number; 0: there is no table of tenants; WHO_NO_TENANT: it is in none */
};
#define WHO_NO_TENANT UINT32_MAX
/* Finds out who the other end of a connection is. Any thread. */
void rights_identify(const struct config *c, int fd, struct who *out);
/* The tenant of a client of which nothing is known: 0, or with a table WHO_NO_TENANT. */
uint32_t rights_unknown_tenant(const struct config *c);
/* A sentence for a client that is of no tenant. */
void rights_no_tenant(const struct who *who, char *out, size_t size);
/* A sentence for a client that is refused: what `what` needs, who the client is, and what to do. */
void rights_refusal(const struct config *c, const char *what, const struct who *who, char *out, size_t size);

#endif
