/* Public names of blocks: what other daemons are told of a block instead of its key. A name is SipHash-2-4, of 128
 * bits, over layout id, key and the key's length, under a key that is derived from the tenant's secret
 * (names/secret.h). Who does not have the secret can neither make a name nor tell what it is of.
 *
 * While a secret is changed, a tenant has two: a block then has a name by each, and is looked for by both.
 *
 * Threads: any thread makes names, without a lock: if a secret is replaced meanwhile, it takes the keys again. One
 * thread, at a time, sets secrets.
 */
#ifndef TERRACE_DAEMON_NAMES_NAMES_H
#define TERRACE_DAEMON_NAMES_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/names/public_name.h"
#include "daemon/names/secret.h"
#include "store/status.h"

enum { NAMES_TENANTS_MAX = 256, NAMES_KEY_MAX = 64, NAMES_SECRETS = 2 };
#define NAMES_NO_TENANT UINT32_MAX

struct names;

/* Makes the table, for tenants of these numbers (process/tenants.h), none of which has a secret yet. EXHAUSTED. */
enum status names_create(const uint32_t *numbers, uint32_t count, struct names **out);
void names_destroy(struct names *n);

uint32_t names_count(const struct names *n);
/* The index of the tenant of this number. NAMES_NO_TENANT: there is none. */
uint32_t names_tenant(const struct names *n, uint32_t number);
uint32_t names_number(const struct names *n, uint32_t tenant);

/* The names of a block of the tenant of this index. Returns how many: 0, it has no secret; 1; or 2 while its secret is
 * changed, that of the current secret first. key_bytes: at most NAMES_KEY_MAX. */
uint32_t names_of(const struct names *n, uint32_t tenant, uint64_t layout_id, const uint8_t *key, uint32_t key_bytes,
		  struct public_name out[NAMES_SECRETS]);

/* The fingerprints of a tenant's secrets, in the same order. */
uint32_t names_fingerprints(const struct names *n, uint32_t tenant, uint32_t out[NAMES_SECRETS]);

/* ---- the writer ---- */

/* Replaces a tenant's secrets; NULL: none. An old one without a current one, or the same as it, is none. */
void names_set(struct names *n, uint32_t tenant, const struct secret *current, const struct secret *old);
/* Rises with each replacement. Any thread. */
uint64_t names_version(const struct names *n);
/* Another tenant than this one that has the secret, current or old. NAMES_NO_TENANT: none has. */
uint32_t names_holder(const struct names *n, uint32_t tenant, const struct secret *s);

#endif
