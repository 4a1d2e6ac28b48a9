/* The table of tenants, a file that the option `tenants` names: which clients are of which tenant, and what each
 * tenant may take.
 *
 * Lines are `name = value`, as in the configuration. `tenant = NAME` begins a tenant, and what follows is its:
 *
 *     uids, gids         of processes at the Unix sockets, by name or number, separated by commas
 *     engines, admins    names of certificates (subjectAltName) at `listen`: dns:HOST, ip:ADDRESS, uri:URI,
 *                        email:ADDRESS
 *     peers              such names of other daemons, which may ask for the tenant's blocks
 *     secret             file, or credential:NAME, with the secret that its blocks' public names are made with
 *                        (names/secret.h); left out: its blocks stay on this node
 *     old_secret         file with the secret before, or the next one, while it is changed
 *     host_bytes         of the host tier, that no other tenant ever gets; 0 if left out
 *     host_bytes_max     that the tenant may take; if left out, all that is not kept for others
 *     pinned_bytes_max   that its leases and reservations may hold; if left out, pinned_share of host_bytes_max
 *     gpu_bytes          of each GPU, that no other tenant ever gets; 0 if left out
 *     gpu_bytes_max      of each GPU, that the tenant may take; if left out, gpu_bytes: nothing is borrowed
 *     disk_bytes         of all disks together, that no other tenant's blocks displace; 0 if left out
 *     disk_bytes_max     that the tenant may take; if left out, all that is not kept for others
 *     calls_max          gRPC calls under way, and connections for local calls, each; if left out, the daemon's bounds
 *
 * Identity is what the kernel or TLS says, never a field. A uid counts before groups. No two tenants share a uid, gid
 * or name, but for names of peers: the kernel lets processes of one uid open each other's descriptors. The tenant
 * `default` is always there: it has the blocks of a daemon without a table, and root, the daemon's own user and the
 * admin group are of it if the table has them nowhere else. Other clients that are in no tenant get no session.
 *
 * A tenant's number is a hash of its name, so that blocks on disks stay its own whatever else the table has.
 */
#ifndef TERRACE_DAEMON_PROCESS_TENANTS_H
#define TERRACE_DAEMON_PROCESS_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/process/rights.h"
#include "store/status.h"

struct config;
struct config_errors;
struct tls_names;
struct ucred;

enum { TENANTS_MAX = 256, TENANT_NAME_MAX = 63, TENANT_DEFAULT = 1, TENANT_IDENTITIES_MAX = 8192 };

struct tenant_entry {
	char name[TENANT_NAME_MAX + 1];
	uint32_t number;
	uint64_t host_bytes, host_bytes_max, pinned_bytes_max; /* the last two 0: left out */
	uint64_t gpu_bytes, gpu_bytes_max; /* of each GPU; the last one 0: left out */
	uint64_t disk_bytes, disk_bytes_max; /* the last one 0: left out */
	uint64_t calls_max;            /* 0: left out */
	char *secret, *old_secret;     /* NULL: left out */
};

struct tenant_identity;
struct tenants {
	uint32_t count; /* of[0] is `default` */
	struct tenant_entry of[TENANTS_MAX];
	struct tenant_identity *identities;
	uint32_t identity_count;
};

/* Parses the bytes of a table, named `name` in errors. NULL: at least one error was added. Fuzzed. */
struct tenants *tenants_parse(const char *name, const char *bytes, size_t n, struct config_errors *errors);
/* Reads the file that the configuration names. What is kept for the tenants must together fit into the daemon's
 * host_bytes, into its gpu_bytes, if that is set, and into its disks. NULL: at least one error was added. */
struct tenants *tenants_load(const struct config *c, struct config_errors *errors);
void tenants_free(struct tenants *t);

/* The number of the tenant of a process: by its uid, or, if no tenant has that, by its gid and its other groups. 0: no
 * tenant, also if its groups belong to two tenants. */
uint32_t tenants_of_process(const struct tenants *t, const struct ucred *process, const gid_t *groups, size_t n);
/* The number of the tenant of a certificate with these names, and the certificate's role. 0: no tenant, also if its
 * names belong to two tenants, or to a peer and something else. A peer may be of several tenants: it gets the number of
 * one. */
uint32_t tenants_of_names(const struct tenants *t, const struct tls_names *names, enum role *role);
/* The tenants for which a certificate is a peer's, as in struct who. */
void tenants_of_peer(const struct tenants *t, const struct tls_names *names, uint64_t out[WHO_TENANT_WORDS]);
/* Writes the names of these tenants, separated by commas and cut to fit. */
void tenants_text(const struct tenants *t, const uint64_t of[WHO_TENANT_WORDS], char *out, size_t size);
#endif
