/* See credentials.h. */
#include "daemon/peers/credentials.h"

#include "daemon/process/daemon.h"
#include "daemon/process/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PEM_MAX = 1 << 20 };

/* A PEM file as a text. NULL: *why has the cause. */
static char *text_of(const char *path, const char **why)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text = fd < 0 ? NULL : malloc(PEM_MAX + 1);
	ssize_t got = 0;
	size_t n = 0;

	*why = fd < 0 ? strerror(errno) : "no memory";
	while (text && n <= PEM_MAX && (got = read(fd, text + n, PEM_MAX + 1 - n)) > 0)
		n += (size_t)got;
	if (text && (got < 0 || n > PEM_MAX)) {
		*why = got < 0 ? strerror(errno) : "the file is larger than 1 MiB";
		explicit_bzero(text, n);
		free(text);
		text = NULL;
	}
	if (fd >= 0)
		close(fd);
	if (text)
		text[n] = 0;
	return text;
}

static void text_free(char *text)
{
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
}

static grpc_channel_credentials *read_files(const struct tls_files *f, char why[TLS_WORDS_MAX])
{
	const char *const paths[] = { f->ca, f->cert, f->key };
	char *text[3] = { NULL };
	grpc_channel_credentials *out = NULL;
	const char *cause = NULL;
	int n = 0;

	if (!tls_files_usable(f, why))
		return NULL;
	for (; n < 3 && (text[n] = text_of(paths[n], &cause)); n++)
		;
	if (n < 3) {
		snprintf(why, TLS_WORDS_MAX, "%.300s: %s", paths[n], cause);
	} else {
		grpc_ssl_pem_key_cert_pair pair = { .private_key = text[2], .cert_chain = text[1] };

		out = grpc_ssl_credentials_create(text[0], &pair, NULL, NULL);
		if (!out)
			snprintf(why, TLS_WORDS_MAX, "gRPC makes no credentials of %.200s", f->cert);
	}
	for (n = 0; n < 3; n++)
		text_free(text[n]);
	return out;
}

grpc_channel_credentials *credentials_look(struct peer_credentials *c)
{
	grpc_channel_credentials *fresh;
	char why[TLS_WORDS_MAX];
	struct tls_stamp stamp;
	uint64_t held;

	tls_stamp_take(&c->files, &stamp);
	if (c->read && !memcmp(&stamp, &c->stamp, sizeof stamp))
		return NULL;
	fresh = read_files(&c->files, why);
	if (fresh) {
		c->stamp = stamp;
		c->read = true;
	} else if (log_again(&c->failed, daemon_now_us(), &held)) {
		log_warn("peers_certificate", LOG_TEXT("reason", why),
			 LOG_TEXT("used", c->read ? "the certificate as it was before" : "none: no member is called"),
			 LOG_TEXT("remedy", "mend the files of listen_cert, listen_key and listen_ca; they are read "
					    "again each second"), LOG_NUM("held", held));
	}
	return fresh;
}
