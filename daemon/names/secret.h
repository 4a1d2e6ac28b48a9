/* A tenant's secret: a file, and what is derived from it. The secret's bytes leave this module in no form.
 *
 * A secret has 32 bytes to 4 KiB, text or binary; one newline at its end does not count. Its file is root's or of the
 * daemon's own user; others may not read it, and the group may not write it. All that is looked at on the open
 * descriptor, so that no other file can take its place meanwhile.
 *
 * Threads: any.
 */
#ifndef TERRACE_DAEMON_NAMES_SECRET_H
#define TERRACE_DAEMON_NAMES_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

enum { SECRET_BYTES_MIN = 32, SECRET_BYTES_MAX = 4096, SECRET_WHY_MAX = 768, SECRET_SAME_BYTES = 32 };

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

/* Reads the file and derives. NOT_FOUND: there is no such file. BUSY: it was being written. INVALID, DENIED, IO,
 * EXHAUSTED, INTERNAL (OpenSSL): why[SECRET_WHY_MAX] has a sentence, as it has for all statuses but OK. */
enum status secret_read(const char *path, const char *tenant, struct secret *out, char why[SECRET_WHY_MAX]);
/* Overwrites what was derived. */
void secret_forget(struct secret *s);

#endif
