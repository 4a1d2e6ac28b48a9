/* See daemon/membership/record.h. */
#include "daemon/membership/record.h"

#include "daemon/names/names.h"
#include "daemon/process/config_values.h"
#include "terrace.pb-c.h"

#include <stdio.h>
#include <string.h>

void record_prefix(const char *cluster, char out[RECORD_PREFIX_MAX])
{
	snprintf(out, RECORD_PREFIX_MAX, "/terrace/%s/members/", cluster);
}

/* Those of the tenants that have a secret. */
struct fingerprints {
	size_t count;
	uint32_t tenant[NAMES_TENANTS_MAX], secret[NAMES_TENANTS_MAX];
};

static void fingerprints_take(const struct names *names, struct fingerprints *f)
{
	f->count = 0;
	for (uint32_t i = 0; i < names_count(names); i++) {
		uint32_t of[NAMES_SECRETS] = { 0 };

		if (!names_fingerprints(names, i, of))
			continue;
		f->tenant[f->count] = names_number(names, i);
		f->secret[f->count++] = of[0];
	}
}

size_t record_write(const struct member *m, const struct names *names, uint8_t out[RECORD_BYTES_MAX])
{
	Terrace__V1__Member r = TERRACE__V1__MEMBER__INIT;
	struct fingerprints f;

	_Static_assert(MEMBER_NAME_MAX + MEMBER_ADDRESS_MAX + MEMBER_VERSION_MAX + MEMBER_NODE_BYTES + 64 +
				       sizeof f.tenant + sizeof f.secret + 16 <
			       RECORD_BYTES_MAX,
		       "a record fits");
	fingerprints_take(names, &f);
	r.n_tenants = r.n_secrets = f.count;
	r.tenants = f.tenant;
	r.secrets = f.secret;
	r.name = (char *)m->name;
	r.node = (ProtobufCBinaryData){ .data = (uint8_t *)m->node, .len = sizeof m->node };
	r.epoch = m->epoch;
	r.address = (char *)m->address;
	r.version = (char *)m->version;
	r.host_bytes = m->host_bytes;
	r.draining = m->draining;
	r.peer_protocol = m->peer_protocol;
	return terrace__v1__member__pack(&r, out);
}

static const char *problem_of(const Terrace__V1__Member *r, const uint8_t *name, size_t n)
{
	if (strlen(r->name) != n || memcmp(r->name, name, n))
		return "it does not say the name that its key has";
	if (config_name_problem(r->name))
		return "its name is none that a daemon can have";
	if (r->node.len != MEMBER_NODE_BYTES || !r->epoch)
		return "it has no node or no epoch";
	if (r->n_tenants != r->n_secrets)
		return "its tenants and their secrets are not as many";
	if (config_peer_problem(r->address))
		return "its address is not HOST:PORT";
	if (strlen(r->version) >= MEMBER_VERSION_MAX)
		return "its version is too long";
	for (const char *at = r->version; *at; at++)
		if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f)
			return "its version is no word";
	return NULL;
}

/* A block of the member has a name that this daemon looks for if its current secret is one of this daemon's. */
static void compare(const Terrace__V1__Member *r, const struct names *names, struct member *out)
{
	for (size_t i = 0; i < r->n_tenants; i++) {
		const uint32_t tenant = names_tenant(names, r->tenants[i]);
		uint32_t own[NAMES_SECRETS] = { 0 };
		const uint32_t n = tenant == NAMES_NO_TENANT ? 0 : names_fingerprints(names, tenant, own);
		const bool same = n && (own[0] == r->secrets[i] || (n > 1 && own[1] == r->secrets[i]));

		if (n)
			(same ? out->same_secret : out->other_secret)[tenant / 64] |= 1ull << tenant % 64;
	}
}

const char *record_read(const uint8_t *name, size_t n, const uint8_t *value, size_t bytes, const struct names *names,
			struct member *out)
{
	_Static_assert(NAMES_TENANTS_MAX <= 64 * MEMBER_TENANT_WORDS, "a bit a tenant");

	if (bytes > RECORD_BYTES_MAX)
		return "it is too large";
	Terrace__V1__Member *r = terrace__v1__member__unpack(NULL, bytes, value);

	if (!r)
		return "it is no message Member";
	const char *problem = problem_of(r, name, n);

	if (!problem) {
		memset(out, 0, sizeof *out);
		strcpy(out->name, r->name);
		strcpy(out->address, r->address);
		strcpy(out->version, r->version);
		memcpy(out->node, r->node.data, sizeof out->node);
		out->epoch = r->epoch;
		out->host_bytes = r->host_bytes;
		out->draining = r->draining;
		out->peer_protocol = r->peer_protocol;
		compare(r, names, out);
	}
	terrace__v1__member__free_unpacked(r, NULL);
	return problem;
}
