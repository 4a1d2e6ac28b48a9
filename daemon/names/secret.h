/* What is derived from a tenant's secret, which a file has (daemon/secrets/secret_file.h). */
#ifndef TERRACE_DAEMON_NAMES_SECRET_H
#define TERRACE_DAEMON_NAMES_SECRET_H

#include <stdint.h>

enum { SECRET_SAME_BYTES = 32 };

/* Of a function that handles keys: it leaves none in a register, which the next function might save on a stack. */
#ifdef __has_attribute
#if __has_attribute(zero_call_used_regs)
#define SECRET_CLEARS_REGISTERS __attribute__((noinline, zero_call_used_regs("used")))
#endif
#endif
#ifndef SECRET_CLEARS_REGISTERS
#define SECRET_CLEARS_REGISTERS
#endif

/* HMAC-SHA-256 under the secret, of three labels. */
struct secret {
	uint64_t key[2]; /* of the tenant's public names: as secret as the secret */
	uint32_t fingerprint; /* of secret and tenant: tells whether two daemons have the same, and may be shown */
	uint8_t same[SECRET_SAME_BYTES]; /* of the secret alone: equal secrets have equal ones. Not to be shown */
};

#endif
