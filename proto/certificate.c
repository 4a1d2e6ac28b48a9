/* See proto/certificate.h. */
#include "proto/certificate.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct object {
	const char *file;
	X509 *x;
	EVP_PKEY *key;
	int error; /* of a file that cannot be read: an errno; else 0 */
	mode_t mode; /* of its file */
};

struct objects {
	struct object *of;
	uint32_t count;
	uint32_t keys;
};

static int no_passphrase(char *to, int size, int writing, void *arg)
{
	(void)to;
	(void)size;
	(void)writing;
	(void)arg;
	return 0;
}

static void add(struct objects *all, const struct object *o)
{
	if (all->count < CERTIFICATES_MAX)
		all->of[all->count++] = *o;
	else {
		X509_free(o->x);
		EVP_PKEY_free(o->key);
	}
	all->keys += o->key != NULL;
}

static void read_file(struct objects *all, const char *path)
{
	FILE *file = fopen(path, "re");
	struct object o = { .file = path };
	const uint32_t before = all->count;
	struct stat st = { .st_mode = 0 };

	if (!file || fstat(fileno(file), &st) || !S_ISREG(st.st_mode)) {
		o.error = file && !errno ? EINVAL : errno ? errno : EINVAL;
		add(all, &o);
		if (file)
			fclose(file);
		return;
	}
	o.mode = st.st_mode;
	while (all->count < CERTIFICATES_MAX && (o.x = PEM_read_X509(file, NULL, no_passphrase, NULL)))
		add(all, &o);
	rewind(file);
	o.key = PEM_read_PrivateKey(file, NULL, no_passphrase, NULL);
	if (o.key || all->count == before)
		add(all, &o);
	fclose(file);
	ERR_clear_error();
}

static int64_t seconds_of(const ASN1_TIME *t)
{
	struct tm tm = { .tm_year = 70 };

	return t && ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
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
	c->begins = seconds_of(X509_get0_notBefore(o->x));
	c->ends = seconds_of(X509_get0_notAfter(o->x));
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

static void problem_of(const struct objects *all, const struct object *o, struct certificate *c)
{
	if (o->x) {
		certificate_problem(all, o, c);
		return;
	}
	c->wrong = true;
	if (o->error)
		snprintf(c->problem, sizeof c->problem,
			 "it cannot be read: %s: name a PEM file that this user may read", strerror(o->error));
	else if (!o->key)
		snprintf(c->problem, sizeof c->problem,
			 "it holds neither a certificate nor a key without a passphrase, in PEM form (-----BEGIN "
			 "...-----): convert it with openssl");
	else if (!has_partner(all, o))
		snprintf(c->problem, sizeof c->problem,
			 "it is the key of none of these certificates: give the pair that was made together");
	else if (o->mode & 077)
		snprintf(c->problem, sizeof c->problem,
			 "others than its owner may read or write it (mode %04o): chmod 0600, or 0640 with a group of "
			 "those who need it",
			 (unsigned)o->mode & 0777);
	else
		c->wrong = false;
	if (o->key && o->mode & 077 && !(o->mode & 037) && has_partner(all, o)) {
		c->wrong = false; /* its group alone, which was chosen */
		c->problem[0] = 0;
	}
	ERR_clear_error();
}

uint32_t certificates_check(const char *const *files, uint32_t count, certificate_fn *tell, void *arg)
{
	struct objects all = { .of = calloc(CERTIFICATES_MAX, sizeof(struct object)) };
	struct certificate c;
	uint32_t wrong = 0;

	for (uint32_t i = 0; all.of && i < count; i++) {
		errno = 0;
		read_file(&all, files[i]);
	}
	for (uint32_t i = 0; i < all.count; i++) {
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
