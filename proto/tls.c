/* See proto/tls.h. */
#include "proto/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of an SSL: the certificate that was not accepted, which OpenSSL forgets. */
static int distrusted_index = -1;
/* Of an SSL_CTX: its struct tls_judge. */
static int judge_index = -1;
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void free_distrusted(void *parent, void *x, CRYPTO_EX_DATA *data, int index, long n, void *arg)
{
	(void)parent;
	(void)data;
	(void)index;
	(void)n;
	(void)arg;
	X509_free(x);
}

static void make_index(void)
{
	judge_index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);
	distrusted_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_distrusted);
}

static bool is_judged_well(SSL *ssl, const X509 *x)
{
	SSL_CTX *c = ssl ? SSL_get_SSL_CTX(ssl) : NULL;
	const struct tls_judge *j = c ? SSL_CTX_get_ex_data(c, judge_index) : NULL;

	return !j || j->judge(j->arg, x);
}

static int keep_distrusted(int ok, X509_STORE_CTX *context)
{
	SSL *ssl = X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx());
	X509 *x = X509_STORE_CTX_get_current_cert(context);

	if (ok && X509_STORE_CTX_get_error_depth(context) == 0 && !is_judged_well(ssl, x)) {
		X509_STORE_CTX_set_error(context, X509_V_ERR_APPLICATION_VERIFICATION);
		ok = 0;
	}
	if (ok || !ssl || !x || SSL_get_ex_data(ssl, distrusted_index))
		return ok;
	if (X509_up_ref(x) && SSL_set_ex_data(ssl, distrusted_index, x) != 1)
		X509_free(x);
	return ok;
}

int tls_no_passphrase(char *to, int size, int writing, void *arg)
{
	(void)to;
	(void)size;
	(void)writing;
	(void)arg;
	return 0;
}

static bool readable(const char *path, char why[TLS_WORDS_MAX])
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0) {
		snprintf(why, TLS_WORDS_MAX, "%.200s: %s: %s", path, strerror(errno),
			 errno == ENOENT
				 ? "name a file that is there"
				 : "make it readable for uid of this process, and for no one else if it is a key");
		return false;
	}
	const bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);

	close(fd);
	if (!regular)
		snprintf(why, TLS_WORDS_MAX, "%.200s: it is no regular file: name a PEM file", path);
	return regular;
}

static bool use_certificate(SSL_CTX *c, const char *path, char why[TLS_WORDS_MAX])
{
	if (!readable(path, why))
		return false;
	if (SSL_CTX_use_certificate_chain_file(c, path) == 1)
		return true;
	snprintf(why, TLS_WORDS_MAX,
		 "%.200s: it holds no certificate that can be used: it must be PEM (-----BEGIN CERTIFICATE-----), this "
		 "end's own certificate first",
		 path);
	return false;
}

static bool use_key(SSL_CTX *c, const struct tls_files *f, char why[TLS_WORDS_MAX])
{
	if (!readable(f->key, why))
		return false;
	if (SSL_CTX_use_PrivateKey_file(c, f->key, SSL_FILETYPE_PEM) == 1 && SSL_CTX_check_private_key(c) == 1)
		return true;
	if (ERR_GET_LIB(ERR_peek_last_error()) == ERR_LIB_X509)
		snprintf(why, TLS_WORDS_MAX,
			 "%.150s: it is not the key of the certificate in %.150s: give the pair that was made together",
			 f->key, f->cert);
	else
		snprintf(why, TLS_WORDS_MAX,
			 "%.200s: it holds no private key that can be used: it must be PEM, without a passphrase",
			 f->key);
	return false;
}

static bool use_ca(SSL_CTX *c, const char *path, bool server, char why[TLS_WORDS_MAX])
{
	STACK_OF(X509_NAME) * names;

	if (!readable(path, why))
		return false;
	if (SSL_CTX_load_verify_file(c, path) != 1) {
		snprintf(why, TLS_WORDS_MAX,
			 "%.200s: it holds no CA certificate that can be used: it must be PEM (-----BEGIN "
			 "CERTIFICATE-----)",
			 path);
		return false;
	}
	names = server ? SSL_load_client_CA_file(path) : NULL;
	if (names)
		SSL_CTX_set_client_CA_list(c, names);
	return true;
}

struct ssl_ctx_st *tls_context(const struct tls_files *f, bool server, char why[TLS_WORDS_MAX])
{
	pthread_once(&index_once, make_index);

	SSL_CTX *c = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());

	if (!c) {
		snprintf(why, TLS_WORDS_MAX, "no memory for TLS");
		return NULL;
	}
	SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
	SSL_CTX_set_default_passwd_cb(c, tls_no_passphrase);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_num_tickets(c, 0);
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				    SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, keep_distrusted);
	if (use_certificate(c, f->cert, why) && use_key(c, f, why) && use_ca(c, f->ca, server, why)) {
		ERR_clear_error();
		return c;
	}
	ERR_clear_error();
	SSL_CTX_free(c);
	return NULL;
}

bool tls_context_judge(struct ssl_ctx_st *c, const struct tls_judge *judge)
{
	return SSL_CTX_set_ex_data(c, judge_index, (void *)(uintptr_t)judge) == 1;
}

void tls_context_free(struct ssl_ctx_st *c)
{
	SSL_CTX_free(c);
}

int64_t tls_seconds_of(const struct asn1_string_st *t)
{
	struct tm tm = { .tm_year = 70 };

	return t && ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

bool tls_context_in_time(struct ssl_ctx_st *c, const char *cert, int64_t *until, char why[TLS_WORDS_MAX])
{
	const X509 *x = SSL_CTX_get0_certificate(c);
	const int64_t now = time(NULL), begin = x ? tls_seconds_of(X509_get0_notBefore(x)) : 0,
		      end = x ? tls_seconds_of(X509_get0_notAfter(x)) : 0;
	char at[TLS_TIME_MAX], clock[TLS_TIME_MAX];

	if (until)
		*until = end;
	tls_time_text(now, clock);
	tls_time_text(now < begin ? begin : end, at);
	if (now < begin)
		snprintf(why, TLS_WORDS_MAX,
			 "%.200s: the certificate is valid only from %s on, and this machine's clock says %s: set the "
			 "clock if it is off, or wait",
			 cert, at, clock);
	else if (now >= end)
		snprintf(why, TLS_WORDS_MAX,
			 "%.200s: the certificate expired at %s, and this machine's clock says %s: put a renewed one "
			 "there, or set the clock if it is off",
			 cert, at, clock);
	return now >= begin && now < end;
}

bool tls_files_usable(const struct tls_files *f, char why[TLS_WORDS_MAX])
{
	SSL_CTX *c = tls_context(f, true, why);
	const bool usable = c && tls_context_in_time(c, f->cert, NULL, why);

	SSL_CTX_free(c);
	return usable;
}

void tls_stamp_take(const struct tls_files *f, struct tls_stamp *out)
{
	const char *const paths[3] = { f->cert, f->key, f->ca };

	for (int i = 0; i < 3; i++)
		file_stamp_take(paths[i], &out->of[i]);
}

void tls_time_text(int64_t seconds, char out[TLS_TIME_MAX])
{
	const time_t t = seconds;
	struct tm tm;

	if (!gmtime_r(&t, &tm) || !strftime(out, TLS_TIME_MAX, "%Y-%m-%d %H:%M:%SZ", &tm))
		snprintf(out, TLS_TIME_MAX, "%lld", (long long)seconds);
}

/* ---- names ---- */

static void add(struct tls_names *names, const char *kind, const unsigned char *text, int n)
{
	char *to;

	if (names->count == TLS_NAMES_MAX || n <= 0 || strlen(kind) + (size_t)n >= TLS_NAME_MAX)
		return;
	for (int i = 0; i < n; i++)
		if (text[i] <= ' ' || text[i] == 0x7f)
			return;
	to = names->name[names->count++];
	snprintf(to, TLS_NAME_MAX, "%s%.*s", kind, n, (const char *)text);
}

static void add_address(struct tls_names *names, const ASN1_OCTET_STRING *address)
{
	const int n = ASN1_STRING_length(address);
	char text[INET6_ADDRSTRLEN];

	if ((n == 4 || n == 16) &&
	    inet_ntop(n == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(address), text, sizeof text))
		add(names, "ip:", (const unsigned char *)text, (int)strlen(text));
}

void tls_names_of(const struct x509_st *certificate, struct tls_names *out)
{
	GENERAL_NAMES *all = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);

	out->count = 0;
	for (int i = 0; i < sk_GENERAL_NAME_num(all); i++) {
		const GENERAL_NAME *g = sk_GENERAL_NAME_value(all, i);

		if (g->type == GEN_DNS)
			add(out, "dns:", ASN1_STRING_get0_data(g->d.dNSName), ASN1_STRING_length(g->d.dNSName));
		else if (g->type == GEN_URI)
			add(out, "uri:", ASN1_STRING_get0_data(g->d.uniformResourceIdentifier),
			    ASN1_STRING_length(g->d.uniformResourceIdentifier));
		else if (g->type == GEN_EMAIL)
			add(out, "email:", ASN1_STRING_get0_data(g->d.rfc822Name), ASN1_STRING_length(g->d.rfc822Name));
		else if (g->type == GEN_IPADD)
			add_address(out, g->d.iPAddress);
	}
	GENERAL_NAMES_free(all);
}

void tls_names_text(const struct tls_names *names, char *out, size_t size)
{
	size_t used = 0;

	snprintf(out, size, "no name");
	for (uint32_t i = 0; i < names->count && used < size; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", names->name[i]);
}

/* ---- why a handshake failed ---- */

/* The certificate that was found wrong: of the peer, or one between. */
static void whose(const SSL *ssl, char subject[160], char issuer[160], int64_t *begin, int64_t *end)
{
	const X509 *x = SSL_get_ex_data(ssl, distrusted_index);

	strcpy(subject, "?");
	strcpy(issuer, "?");
	*begin = *end = 0;
	if (!x)
		return;
	X509_NAME_oneline(X509_get_subject_name(x), subject, 160);
	X509_NAME_oneline(X509_get_issuer_name(x), issuer, 160);
	for (char *s = subject; *s; s++)
		*s = (unsigned char)*s < ' ' ? '?' : *s;
	for (char *s = issuer; *s; s++)
		*s = (unsigned char)*s < ' ' ? '?' : *s;
	*begin = tls_seconds_of(X509_get0_notBefore(x));
	*end = tls_seconds_of(X509_get0_notAfter(x));
}

static void wrong_names(SSL *ssl, char why[TLS_WORDS_MAX])
{
	char *address = X509_VERIFY_PARAM_get1_ip_asc(SSL_get0_param(ssl));
	const char *wanted = address ? address : SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
	const X509 *x = SSL_get_ex_data(ssl, distrusted_index);
	struct tls_names names;
	char text[200];

	names.count = 0;
	if (x)
		tls_names_of(x, &names);
	tls_names_text(&names, text, sizeof text);
	snprintf(why, TLS_WORDS_MAX,
		 "the certificate of the other end is not for %.80s but has %s: connect by a name that it has, say "
		 "that name (TERRACE_TLS_NAME, "
		 "--tls-name), or make a certificate whose subjectAltName has the name",
		 wanted ? wanted : "its address", text);
	OPENSSL_free(address);
}

/* Of a certificate that the other end has shown, and that this end does not accept. */
static void verify_words(SSL *ssl, long result, const char *ca, char why[TLS_WORDS_MAX])
{
	char subject[160], issuer[160], at[TLS_TIME_MAX], clock[TLS_TIME_MAX];
	int64_t begin, end;

	whose(ssl, subject, issuer, &begin, &end);
	tls_time_text(time(NULL), clock);
	switch (result) {
	case X509_V_ERR_CERT_HAS_EXPIRED:
		tls_time_text(end, at);
		snprintf(why, TLS_WORDS_MAX,
			 "the certificate of the other end (%.100s) expired at %s, and this machine's clock says %s: "
			 "renew it, or set the clock if it is off",
			 subject, at, clock);
		return;
	case X509_V_ERR_CERT_NOT_YET_VALID:
		tls_time_text(begin, at);
		snprintf(why, TLS_WORDS_MAX,
			 "the certificate of the other end (%.100s) is valid only from %s on, and this machine's clock "
			 "says %s: set the clock that is off, or wait",
			 subject, at, clock);
		return;
	case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
	case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
	case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
	case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
	case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
	case X509_V_ERR_CERT_SIGNATURE_FAILURE:
		snprintf(why, TLS_WORDS_MAX,
			 "the certificate of the other end (%.80s) is of an unknown CA (%.80s), which %.120s does not "
			 "have: put that CA's certificate there, or use a certificate of a CA that is there",
			 subject, issuer, ca);
		return;
	case X509_V_ERR_HOSTNAME_MISMATCH:
	case X509_V_ERR_IP_ADDRESS_MISMATCH:
		wrong_names(ssl, why);
		return;
	case X509_V_ERR_APPLICATION_VERIFICATION:
		snprintf(why, TLS_WORDS_MAX,
			 "no name of the certificate of the other end (%.100s) is in the table of tenants, or its "
			 "names are of "
			 "two: put one of them there",
			 subject);
		return;
	case X509_V_ERR_INVALID_PURPOSE:
		snprintf(why, TLS_WORDS_MAX,
			 "the certificate of the other end (%.100s) is not for this use: its extendedKeyUsage must "
			 "have serverAuth for a daemon, clientAuth for a client",
			 subject);
		return;
	default:
		snprintf(why, TLS_WORDS_MAX,
			 "the certificate of the other end (%.100s) is not accepted: %.100s: look at it with "
			 "`terracectl certs`",
			 subject, X509_verify_cert_error_string(result));
	}
}

/* Of this end's certificate, which the other end has refused; and of what is no TLS. NULL: it is none of these. */
static const char *reason_words(int reason)
{
	switch (reason) {
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
		return "the other end says that this end's certificate has expired: renew it, or set the clock that is "
		       "off (`terracectl certs` says which)";
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
		return "the other end does not know the CA of this end's certificate: use a certificate of its CA, or "
		       "put this CA's certificate into its file of CAs";
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
	case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
		return "no certificate was shown by the client: give it one (TERRACE_TLS_CERT and TERRACE_TLS_KEY, or "
		       "--tls-cert and --tls-key)";
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
		return "the other end does not accept this end's certificate: it may not be valid yet (is a clock "
		       "off?), or be damaged: look at it with `terracectl certs`";
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
		return "the other end does not accept this end's certificate for this use: its extendedKeyUsage must "
		       "have serverAuth for a daemon, clientAuth for a client";
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
		return "the other end knows no tenant for the names of this end's certificate: put one of them into "
		       "its table of tenants";
	case SSL_R_HTTP_REQUEST:
	case SSL_R_WRONG_VERSION_NUMBER:
	case SSL_R_UNEXPECTED_MESSAGE:
		return "the other end does not speak TLS: give both ends certificates, or neither";
	case SSL_R_UNSUPPORTED_PROTOCOL:
	case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
	case SSL_R_NO_APPLICATION_PROTOCOL:
	case SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL:
		return "the other end does not speak gRPC over TLS 1.3: is it another program, or an older library?";
	default:
		return NULL;
	}
}

/* OpenSSL's other reasons are smaller, and its general ones have higher bits. */
bool tls_is_alert(unsigned long error)
{
	const int reason = ERR_GET_REASON(error);

	return ERR_GET_LIB(error) == ERR_LIB_SSL && reason >= SSL_AD_REASON_OFFSET &&
	       reason < SSL_AD_REASON_OFFSET + 256;
}

bool tls_failure(struct ssl_st *ssl, const char *ca, char why[TLS_WORDS_MAX])
{
	const long result = SSL_get_verify_result(ssl);
	const unsigned long error = ERR_peek_last_error();
	const int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
	const char *words = reason ? reason_words(reason) : NULL;

	if (result != X509_V_OK)
		verify_words(ssl, result, ca, why);
	else if (words)
		snprintf(why, TLS_WORDS_MAX, "%s", words);
	else if (!error || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		snprintf(why, TLS_WORDS_MAX,
			 "the other end closed the connection amid the TLS handshake: its log says why");
	else
		snprintf(why, TLS_WORDS_MAX,
			 "the TLS handshake failed: %.200s: look at the certificates of both ends with `terracectl "
			 "certs`",
			 ERR_reason_error_string(error) ? ERR_reason_error_string(error) : "no reason is told");
	ERR_clear_error();
	return result != X509_V_OK || words || tls_is_alert(error);
}
