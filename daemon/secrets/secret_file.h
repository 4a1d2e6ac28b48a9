/* The file of a tenant's secret. The secret's bytes leave this module in no form.
 *
 * A secret has 32 bytes to 4 KiB, text or binary; one newline at its end does not count. Its file is root's or of the
 * daemon's own user; others may not read it, and the group may not write it. All that is looked at on the open
 * descriptor, so that no other file can take its place meanwhile.
 *
 * Threads: any.
 */
#ifndef TERRACE_DAEMON_SECRETS_SECRET_FILE_H
#define TERRACE_DAEMON_SECRETS_SECRET_FILE_H

#include "daemon/names/secret.h"
#include "store/status.h"

enum { SECRET_BYTES_MIN = 32, SECRET_BYTES_MAX = 4096, SECRET_WHY_MAX = 768 };

/* Reads the file and derives. NOT_FOUND: there is no such file. BUSY: it was being written. INVALID, DENIED, IO,
 * EXHAUSTED, INTERNAL (OpenSSL): why[SECRET_WHY_MAX] has a sentence, as it has for all statuses but OK. */
enum status secret_read(const char *path, const char *tenant, struct secret *out, char why[SECRET_WHY_MAX]);
/* Overwrites what was derived. */
void secret_forget(struct secret *s);

#endif
