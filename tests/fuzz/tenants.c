/* A table of tenants of any bytes: taken or refused with a message; and whoever is asked for is of one tenant that it
 * has, or of none. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/tenants.h"
#include "proto/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool has(const struct tenants *t, uint32_t number)
{
	for (uint32_t i = 0; i < t->count; i++)
		if (t->of[i].number == number)
			return true;
	return !number;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config_errors errors = { 0 };
	struct tenants *t = tenants_parse("fuzz", (const char *)data, size, &errors);
	struct tls_names names = { 2, { "dns:a.example", "uri:spiffe://b" } };
	const gid_t groups[] = { 1, 2, 1000 };
	enum role role;

	if (!t) {
		if (errors.count == 0 || errors.text[0] == 0)
			abort();
		return 0;
	}
	if (errors.count || !t->count || t->of[0].number != TENANT_DEFAULT)
		abort();
	for (uid_t uid = 0; uid < 3; uid++) {
		const struct ucred process = { .uid = uid, .gid = 3 - uid };

		if (!has(t, tenants_of_process(t, &process, groups, sizeof(groups) / sizeof(groups[0]))))
			abort();
	}
	if (!has(t, tenants_of_names(t, &names, &role)))
		abort();
	tenants_free(t);
	return 0;
}
