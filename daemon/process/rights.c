/* See process/rights.h. */
#include "daemon/process/rights.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/process/config.h"

const struct right rights[] = {
	{ "Cache.OpenSession", ROLE_ENGINE },
	{ "Cache.Attach", ROLE_ENGINE, "the session of its token" },
	{ "Cache.CloseSession", ROLE_ENGINE, "the session of its handle, as all below" },
	{ "Cache.Lookup", ROLE_ENGINE },
	{ "Cache.Lease", ROLE_ENGINE },
	{ "Cache.Release", ROLE_ENGINE },
	{ "Cache.Reserve", ROLE_ENGINE },
	{ "Cache.Commit", ROLE_ENGINE },
	{ "Cache.Abort", ROLE_ENGINE },
	{ "Cache.Put", ROLE_ENGINE },
	{ "Cache.Get", ROLE_ENGINE },
	{ "Cache.Touch", ROLE_ENGINE },
	{ "Cache.Report", ROLE_ENGINE },
	{ "Cache.Warm", ROLE_ENGINE },
	{ "Cache.Flush", ROLE_ENGINE },
	{ "Cache.Delete", ROLE_ENGINE },
	{ "Cache.Watch", ROLE_ENGINE, "the layouts of the session" },
	{ "Admin.Stats", ROLE_ENGINE, "without the rows that name sessions; all of it: admin" },
	{ "Admin.Explain", ROLE_ENGINE, "the layouts of the session of its handle, without other blocks' keys; all of it: admin" },
	{ "Admin.Inspect", ROLE_ADMIN },
	{ "Admin.Graph", ROLE_ADMIN },
	{ "Admin.TraceStart", ROLE_ADMIN },
	{ "Admin.TraceStop", ROLE_ADMIN },
	{ "Admin.Verify", ROLE_ADMIN },
	{ "Admin.Compact", ROLE_ADMIN },
	{ "Admin.Layouts", ROLE_ADMIN },
	{ "Admin.Drain", ROLE_ADMIN },
	{ "Admin.Config", ROLE_ADMIN },
	{ "Admin.Peers", ROLE_ADMIN },
	{ "Health.Check", ROLE_METRICS },
	{ "Health.Watch", ROLE_METRICS },
	{ "fd HELLO", ROLE_ENGINE, "the session of its token" },
	{ "fd MAP", ROLE_ENGINE, "extents of the session's tenant" },
	{ "fd UNMAPPED", ROLE_ENGINE, "its own attachment" },
	{ "fd RELEASE", ROLE_ENGINE, "leases of the session" },
	{ "fd PREMAP", ROLE_ENGINE, "extents of the session's tenant" },
	{ "fd CALLER", ROLE_ENGINE, "the session of its token" },
	{ "fd CALL", ROLE_ENGINE, "that session, by nine methods of Cache" },
	{ "http /metrics", ROLE_METRICS },
	{ "http /healthz", ROLE_METRICS },
};
const uint32_t rights_count = sizeof rights / sizeof rights[0];

enum role right_role(const char *name)
{
	for (uint32_t i = 0; i < rights_count; i++)
		if (!strcmp(rights[i].name, name))
			return rights[i].role;
	return ROLE_ADMIN;
}

/* ---- who ---- */

/* A process may have 65,536 groups; there is no right for whom they cannot be told. */
static bool in_group(int fd, gid_t group)
{
	gid_t few[64], *groups = few;
	socklen_t size = sizeof few;
	bool in = false;
	int got = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size);

	if (got && errno == ERANGE) { /* size says how much it wants */
		groups = malloc(size);
		got = groups ? getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) : -1;
	}
	for (size_t i = 0; !got && i < size / sizeof groups[0]; i++)
		in |= groups[i] == group;
	if (groups != few)
		free(groups);
	return in;
}

void rights_identify(const struct config *c, int fd, struct who *out)
{
	struct sockaddr_storage at = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof at, size = sizeof(struct ucred);
	struct ucred cred;

	*out = (struct who){ .role = ROLE_ENGINE };
	/* Of a TCP socket SO_PEERCRED says nothing, and does not fail. */
	if (getpeername(fd, (struct sockaddr *)&at, &n) || at.ss_family != AF_UNIX ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size))
		return;
	out->named = true;
	out->uid = cred.uid;
	out->pid = cred.pid;
	if (cred.uid == 0 || cred.uid == geteuid() ||
	    (c->admin_gid_known && (cred.gid == c->admin_gid || in_group(fd, (gid_t)c->admin_gid))))
		out->role = ROLE_ADMIN;
}

void rights_refusal(const struct config *c, const char *what, const struct who *who, char *out, size_t size)
{
	char client[96] = "came over TCP, which names nobody: use the Unix socket, as one";

	if (who->certified)
		strcpy(client, "came over TLS with an engine's certificate: use the Unix socket, as one");
	else if (who->named)
		snprintf(client, sizeof client, "is uid %u, process %d: call as one", (unsigned)who->uid, (int)who->pid);
	snprintf(out, size, "%s is for root, uid %u (the daemon's) and the group of admin_group (%.24s); this client %s of them%s", what,
		 (unsigned)geteuid(), c->admin_group[0] ? c->admin_group : "off", client, who->named ? ", or set admin_group" : "");
}
