/* See proto/certificate.h. */
#include "proto/certificate.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of a file, or of a part of it, that is no object. */
enum trouble { NO_TROUBLE, UNREADABLE, IRREGULAR, NOTHING, DAMAGED, NO_KEY };

struct object {
	const char *file;
	X509 *x;
	EVP_PKEY *key;
	enum trouble trouble;
	int error; /* UNREADABLE: an errno */
	mode_t mode; /* of its file */
};

struct objects {
	struct object *of;
	uint32_t count;
	uint32_t keys;
	const char *full_at; /* the file of which the first object found no place; NULL: all have one */
};

static void add(struct objects *all, const struct object *o)
{
	if (all->count < CERTIFICATES_MAX) {
		all->of[all->count++] = *o;
		all->keys += o->key != NULL;
		return;
	}
	if (!all->full_at)
		all->full_at = o->file;
	X509_free(o->x);
	EVP_PKEY_free(o->key);
}

static void add_trouble(struct objects *all, const char *path, enum trouble trouble, int error)
{
	add(all, &(struct object){ .file = path, .trouble = trouble, .error = error });
}

/* NULL: what is wrong is among the objects. A FIFO is not waited for. */
static FILE *file_open(struct objects *all, const char *path, mode_t *mode)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	FILE *file;

	if (fd < 0) {
		add_trouble(all, path, UNREADABLE, errno);
		return NULL;
	}
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		add_trouble(all, path, IRREGULAR, 0);
		close(fd);
		return NULL;
	}
	*mode = st.st_mode;
	file = fdopen(fd, "r");
	if (!file) {
		add_trouble(all, path, UNREADABLE, errno);
		close(fd);
	}
	return file;
}

/* False: a block in it is damaged; OpenSSL says of what it does not find at the end that it has no start line. */
static bool read_certificates(struct objects *all, FILE *file, struct object o)
{
	ERR_clear_error();
	while (!all->full_at && (o.x = PEM_read_X509(file, NULL, tls_no_passphrase, NULL)))
		add(all, &o);
	return all->full_at || ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
}

/* Of a file of which no key can be read: whether it has one. */
static bool has_key_block(FILE *file)
{
	char *name, *header;
	unsigned char *data;
	bool has = false;
	long n;

	rewind(file);
	while (!has && PEM_read(file, &name, &header, &data, &n)) {
		has = strstr(name, "PRIVATE KEY") != NULL;
		OPENSSL_free(name);
		OPENSSL_free(header);
		OPENSSL_free(data);
	}
	return has;
}

static void read_file(struct objects *all, const char *path)
{
	const uint32_t before = all->count;
	struct object o = { .file = path };
	FILE *file = file_open(all, path, &o.mode);

	if (!file)
		return;
	if (!read_certificates(all, file, o))
		add_trouble(all, path, DAMAGED, 0);
	rewind(file);
	o.key = PEM_read_PrivateKey(file, NULL, tls_no_passphrase, NULL);
	if (o.key)
		add(all, &o);
	else if (has_key_block(file))
		add_trouble(all, path, NO_KEY, 0);
	else if (all->count == before)
		add_trouble(all, path, NOTHING, 0);
	fclose(file);
	ERR_clear_error();
}

static void name_text(const X509_NAME *name, char out[160])
{
	X509_NAME_oneline(name, out, 160);
	for (char *s = out; *s; s++)
		*s = (unsigned char)*s < ' ' ? '?' : *s;
}

static void describe(const struct object *o, struct certificate *c)
{
	memset(c, 0, sizeof *c);
	c->file = o->file;
	c->kind = o->key ? "key" : !o->x ? "" : X509_check_ca(o->x) ? "CA" : "certificate";
	if (!o->x)
		return;
	name_text(X509_get_subject_name(o->x), c->subject);
	name_text(X509_get_issuer_name(o->x), c->issuer);
	c->begins = tls_seconds_of(X509_get0_notBefore(o->x));
	c->ends = tls_seconds_of(X509_get0_notAfter(o->x));
	c->server = X509_check_purpose(o->x, X509_PURPOSE_SSL_SERVER, 0) == 1;
	c->client = X509_check_purpose(o->x, X509_PURPOSE_SSL_CLIENT, 0) == 1;
	if (!X509_check_ca(o->x))
		tls_names_of(o->x, &c->names);
}

/* True: its issuer's certificate is among them, and so on up to one that is its own issuer. The times are looked at
 * elsewhere. */
static bool has_ca(const struct objects *all, X509 *x)
{
	X509_STORE *store = X509_STORE_new();
	X509_STORE_CTX *context = X509_STORE_CTX_new();
	STACK_OF(X509) *between = sk_X509_new_null();
	bool ok = store && context && between;

	for (uint32_t i = 0; ok && i < all->count; i++) {
		X509 *other = all->of[i].x;

		if (!other || !X509_check_ca(other))
			continue;
		if (X509_self_signed(other, 0) == 1)
			X509_STORE_add_cert(store, other);
		else
			sk_X509_push(between, other);
	}
	ok = ok && X509_STORE_CTX_init(context, store, x, between);
	if (ok)
		X509_STORE_CTX_set_flags(context, X509_V_FLAG_NO_CHECK_TIME);
	ok = ok && X509_verify_cert(context) == 1;
	sk_X509_free(between);
	X509_STORE_CTX_free(context);
	X509_STORE_free(store);
	ERR_clear_error();
	return ok;
}

static bool has_partner(const struct objects *all, const struct object *o)
{
	for (uint32_t i = 0; i < all->count; i++) {
		const struct object *other = &all->of[i];

		if (o->key ? other->x && X509_check_private_key(other->x, o->key) == 1
			   : other->key && X509_check_private_key(o->x, other->key) == 1)
			return true;
	}
	return false;
}

static void time_problem(struct certificate *c)
{
	const int64_t now = time(NULL);
	char at[TLS_TIME_MAX], clock[TLS_TIME_MAX];

	tls_time_text(now, clock);
	tls_time_text(now < c->begins ? c->begins : c->ends, at);
	c->wrong = now < c->begins || now >= c->ends;
	if (now < c->begins)
		snprintf(c->problem, sizeof c->problem,
			 "it is valid only from %s on, and this machine's clock says %s: set the clock if it is off "
			 "(timedatectl), or wait",
			 at, clock);
	else if (now >= c->ends)
		snprintf(c->problem, sizeof c->problem,
			 "it expired at %s, and this machine's clock says %s: put a renewed one in its place, or set "
			 "the clock if it is off (timedatectl)",
			 at, clock);
	else if (now + CERTIFICATE_SOON_S >= c->ends)
		snprintf(c->problem, sizeof c->problem,
			 "it expires soon, at %s: put a renewed one in its place; nothing needs a restart", at);
}

static void certificate_problem(const struct objects *all, const struct object *o, struct certificate *c)
{
	time_problem(c);
	if (c->wrong)
		return;
	const bool ca = X509_check_ca(o->x);

	c->wrong = true;
	if (!has_ca(all, o->x))
		snprintf(c->problem, sizeof c->problem,
			 "its CA (%.100s) is in none of these files: name the file of CAs too, and use a certificate "
			 "of a CA in it",
			 c->issuer);
	else if (!ca && !c->names.count)
		snprintf(c->problem, sizeof c->problem,
			 "it has no name: make it with subjectAltName, as DNS:node1.example (a common name does not "
			 "count)");
	else if (!ca && !c->server && !c->client)
		snprintf(c->problem, sizeof c->problem,
			 "it is for neither end of a connection: its extendedKeyUsage must have serverAuth for a "
			 "daemon, clientAuth for a client");
	else if (!ca && all->keys && !has_partner(all, o))
		snprintf(c->problem, sizeof c->problem,
			 "none of the keys is its key: give the pair that was made together");
	else
		c->wrong = false;
	ERR_clear_error();
}

static void trouble_words(const struct object *o, struct certificate *c)
{
	switch (o->trouble) {
	case UNREADABLE:
		snprintf(c->problem, sizeof c->problem,
			 "it cannot be read: %s: name a PEM file that this user may read", strerror(o->error));
		return;
	case IRREGULAR:
		snprintf(c->problem, sizeof c->problem, "it cannot be read: it is no regular file: name a PEM file");
		return;
	case DAMAGED:
		snprintf(c->problem, sizeof c->problem,
			 "a block of it is damaged, and what stands behind that block was not looked at: copy the file "
			 "anew, each block from -----BEGIN to -----END");
		return;
	case NO_KEY:
		snprintf(c->problem, sizeof c->problem,
			 "it has a private key that cannot be used: it is damaged, or has a passphrase, which must go: "
			 "openssl pkey -in FILE -out FILE");
		return;
	default:
		snprintf(c->problem, sizeof c->problem,
			 "it holds neither a certificate nor a key, in PEM form (-----BEGIN ...-----): convert it "
			 "with openssl");
	}
}

static void key_problem(const struct objects *all, const struct object *o, struct certificate *c)
{
	const bool paired = has_partner(all, o), chosen = !(o->mode & 037); /* its group alone */

	c->wrong = !paired || (o->mode & 077 && !chosen);
	if (!paired)
		snprintf(c->problem, sizeof c->problem,
			 "it is the key of none of these certificates: give the pair that was made together");
	else if (c->wrong)
		snprintf(c->problem, sizeof c->problem,
			 "others than its owner may read or write it (mode %04o): chmod 0600, or 0640 with a group of "
			 "those who need it",
			 (unsigned)o->mode & 0777);
}

static void problem_of(const struct objects *all, const struct object *o, struct certificate *c)
{
	if (o->x) {
		certificate_problem(all, o, c);
	} else if (o->key) {
		key_problem(all, o, c);
	} else {
		c->wrong = true;
		trouble_words(o, c);
	}
	ERR_clear_error();
}

/* They are judged together, so that of a part of them nothing true can be said. */
static uint32_t tell_full(const struct objects *all, certificate_fn *tell, void *arg)
{
	struct certificate c = { .file = all->full_at, .kind = "", .wrong = true };

	snprintf(c.problem, sizeof c.problem,
		 "with it there are more than %d certificates and keys: check fewer files at a time, or leave CAs that "
		 "are not needed out of the file",
		 CERTIFICATES_MAX);
	tell(arg, &c);
	return 1;
}

uint32_t certificates_check(const char *const *files, uint32_t count, certificate_fn *tell, void *arg)
{
	struct objects all = { .of = calloc(CERTIFICATES_MAX, sizeof(struct object)) };
	struct certificate c;
	uint32_t wrong = 0;

	for (uint32_t i = 0; all.of && i < count && !all.full_at; i++)
		read_file(&all, files[i]);
	if (all.full_at)
		wrong = tell_full(&all, tell, arg);
	for (uint32_t i = 0; i < all.count && !all.full_at; i++) {
		describe(&all.of[i], &c);
		problem_of(&all, &all.of[i], &c);
		wrong += c.wrong;
		tell(arg, &c);
	}
	for (uint32_t i = 0; i < all.count; i++) {
		X509_free(all.of[i].x);
		EVP_PKEY_free(all.of[i].key);
	}
	free(all.of);
	return wrong;
}
