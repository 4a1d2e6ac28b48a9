/* See daemon/membership/record.h. */
#include "daemon/membership/record.h"

#include "daemon/process/config_values.h"
#include "terrace.pb-c.h"

#include <stdio.h>
#include <string.h>

void record_prefix(const char *cluster, char out[RECORD_PREFIX_MAX])
{
	snprintf(out, RECORD_PREFIX_MAX, "/terrace/%s/members/", cluster);
}

size_t record_write(const struct member *m, uint8_t out[RECORD_BYTES_MAX])
{
	Terrace__V1__Member r = TERRACE__V1__MEMBER__INIT;

	_Static_assert(MEMBER_NAME_MAX + MEMBER_ADDRESS_MAX + MEMBER_VERSION_MAX + MEMBER_NODE_BYTES + 64 <
		       RECORD_BYTES_MAX, "a record fits");
	r.name = (char *)m->name;
	r.node = (ProtobufCBinaryData){ .data = (uint8_t *)m->node, .len = sizeof m->node };
	r.epoch = m->epoch;
	r.address = (char *)m->address;
	r.version = (char *)m->version;
	r.host_bytes = m->host_bytes;
	r.draining = m->draining;
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
	if (config_peer_problem(r->address))
		return "its address is not HOST:PORT";
	if (strlen(r->version) >= MEMBER_VERSION_MAX)
		return "its version is too long";
	for (const char *at = r->version; *at; at++)
		if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f)
			return "its version is no word";
	return NULL;
}

const char *record_read(const uint8_t *name, size_t n, const uint8_t *value, size_t bytes, struct member *out)
{
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
	}
	terrace__v1__member__free_unpacked(r, NULL);
	return problem;
}
