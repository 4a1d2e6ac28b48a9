/* What PEM files of certificates and keys hold, and what is wrong with them: for people, before a daemon or a client
 * uses them. */
#ifndef TERRACE_PROTO_CERTIFICATE_H
#define TERRACE_PROTO_CERTIFICATE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/tls.h"

enum { CERTIFICATE_SOON_S = 14 * 24 * 3600, CERTIFICATES_MAX = 256 };

/* One object of a file, or a file that holds none or has a damaged part. */
struct certificate {
	const char *file;
	const char *kind; /* "certificate", "CA", "key"; "": what the file holds is none of these */
	char subject[160], issuer[160]; /* "" of a key */
	struct tls_names names; /* none of a CA or a key */
	int64_t begins, ends; /* seconds since 1970; 0 of a key */
	bool server, client; /* the ends of a connection that it may be shown by */
	bool wrong; /* it cannot be used as it is; problem says why */
	char problem[TLS_WORDS_MAX]; /* "": all is well; of one that is not wrong: what is to be done soon */
};
typedef void certificate_fn(void *arg, const struct certificate *c);

/* Tells of each object of the files, in their order; if there are more than CERTIFICATES_MAX, of that alone. The files
 * are judged together: each certificate wants a CA among them, each key a certificate, and a certificate that is no CA
 * its key, if there is any key. Returns how many are wrong. */
uint32_t certificates_check(const char *const *files, uint32_t count, certificate_fn *tell, void *arg);

#endif
