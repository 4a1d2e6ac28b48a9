/* TLS of TCP connections, for both ends: contexts made of PEM files, whether the files have changed, the names of a
 * certificate, and what is wrong in words. Each sentence names the thing, the cause and the next step.
 *
 * Both ends show a certificate and verify the other's: the same files make the context of a server and of a client.
 * TLS 1.3 alone is spoken, without tickets, so that every connection shows its certificate.
 *
 * Threads: any, one at a time for each object.
 */
#ifndef TERRACE_PROTO_TLS_H
#define TERRACE_PROTO_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/file_stamp.h"

struct asn1_string_st;
struct ssl_ctx_st;
struct ssl_st;
struct x509_st;

enum { TLS_WORDS_MAX = 480, TLS_NAME_MAX = 256, TLS_NAMES_MAX = 16, TLS_TIME_MAX = 24 };

/* Paths of PEM files. */
struct tls_files {
	const char *cert; /* this end's certificate, then those between it and the CA */
	const char *key; /* its private key, without a passphrase */
	const char *ca; /* certificates of the CAs that the other end may be of */
};

/* NULL: why[TLS_WORDS_MAX] has the sentence. Free it by tls_context_free. The files
 * may change meanwhile, as each is opened more than once: take a stamp before. */
struct ssl_ctx_st *tls_context(const struct tls_files *files, bool server, char why[TLS_WORDS_MAX]);
void tls_context_free(struct ssl_ctx_st *context);

/* Has the last word on a certificate of the other end that is sound: false refuses it, and a client is told so. */
struct tls_judge {
	bool (*judge)(void *arg, const struct x509_st *certificate);
	void *arg;
};
/* It is kept by the caller. False: no memory; then there is no judge, and the context is not to be used. */
bool tls_context_judge(struct ssl_ctx_st *context, const struct tls_judge *judge);

/* False: the context's own certificate is out of its time: why has the sentence. *until, if not NULL: the second, since
 * 1970, that it ends. */
bool tls_context_in_time(struct ssl_ctx_st *context, const char *cert, int64_t *until, char why[TLS_WORDS_MAX]);

/* A server can use the files now: a context can be made of them, and the certificate is in its time. False: why has the
 * sentence. */
bool tls_files_usable(const struct tls_files *files, char why[TLS_WORDS_MAX]);

struct tls_stamp {
	struct file_stamp of[3];
};
void tls_stamp_take(const struct tls_files *files, struct tls_stamp *out);

/* The names of a certificate: its subject alternative names, as "dns:HOST", "ip:ADDRESS", "uri:URI" and
 * "email:ADDRESS". Names that are too long, have control characters, or come beyond TLS_NAMES_MAX are left out; names
 * of other kinds, and the common name, are no names. */
struct tls_names {
	uint32_t count;
	char name[TLS_NAMES_MAX][TLS_NAME_MAX];
};
void tls_names_of(const struct x509_st *certificate, struct tls_names *out);
/* "dns:a, dns:b", cut to fit; "no name" if there is none. */
void tls_names_text(const struct tls_names *names, char *out, size_t size);

/* Why a handshake failed, from what OpenSSL has in this thread's queue, which is emptied. ca: the file of the CAs, for
 * the words. True: the cause is known, since a certificate was not accepted or the other end sent an alert; another
 * handshake with the same files fails too. False: it is not, as when the other end just closed the connection. */
bool tls_failure(struct ssl_st *ssl, const char *ca, char why[TLS_WORDS_MAX]);

/* An error of OpenSSL's queue is an alert that the other end has sent. */
bool tls_is_alert(unsigned long error);

/* A time of a certificate in seconds since 1970; 0: it is none. */
int64_t tls_seconds_of(const struct asn1_string_st *t);

/* For OpenSSL's readers of keys, which would ask the terminal: one with a passphrase is refused. */
int tls_no_passphrase(char *to, int size, int writing, void *arg);

/* A second since 1970 as "2026-11-28 09:39:58Z". */
void tls_time_text(int64_t seconds, char out[TLS_TIME_MAX]);

#endif
