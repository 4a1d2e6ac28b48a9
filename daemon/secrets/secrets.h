/* The files of the tenants' secrets: read at the start, and again when they change, for the public names of blocks
 * (names/names.h).
 *
 * A changed file is taken once two looks in a row have found it the same, so that one which is being written is left
 * alone. A file that cannot be used leaves the tenant its last secret: log, status and a metric say so, and it is tried
 * again at each look. An old secret whose file is gone is dropped.
 *
 * Threads: main loads and looks; any thread calls the rest.
 */
#ifndef TERRACE_DAEMON_SECRETS_SECRETS_H
#define TERRACE_DAEMON_SECRETS_SECRETS_H

#include "daemon/names/names.h"
#include "daemon/secrets/secret_file.h"
#include "store/status.h"

#include <stdbool.h>
#include <stdint.h>

struct config_errors;
struct secrets;
struct tenants;

enum { SECRETS_EVERY_US = 1000 * 1000 };

/* The table must live as long as the object. */
struct secrets_options {
	const struct tenants *tenants; /* NULL: `default` alone, with the two below */
	const char *secret, *old_secret; /* paths, or credential:NAME; empty: none */
	bool wanted; /* at least one tenant must have one */
};
/* Reads the secrets. NULL: at least one error was added. */
struct secrets *secrets_load(const struct secrets_options *o, struct config_errors *errors);
/* NULL allowed. */
void secrets_destroy(struct secrets *s);

/* Looks for files that have changed; at most once in SECRETS_EVERY_US. */
void secrets_look(struct secrets *s, uint64_t now_us);

/* Its tenants are those of the table, in the same order; without a table there is one, `default`. */
const struct names *secrets_names(const struct secrets *s);

/* A tenant with a secret, for people. */
struct secrets_view {
	const char *tenant; /* lives as long as the object */
	uint32_t fingerprints[NAMES_SECRETS], count;
	char problem[SECRET_WHY_MAX]; /* of a file that cannot be used, while the secret before stays; else empty */
};
/* The tenant of this index. False: its blocks have no names, since no secret is configured. */
bool secrets_look_at(struct secrets *s, uint32_t tenant, struct secrets_view *out);

struct secrets_figures {
	uint64_t reloads, failures; /* of tenants; of files, once a change of the file */
	uint32_t stale; /* files that cannot be used as they are now */
};
void secrets_figures(const struct secrets *s, struct secrets_figures *out);

#endif
