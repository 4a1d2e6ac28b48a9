/* See process/rights.h. */
#include "daemon/process/rights.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/process/config.h"
#include "daemon/process/tenants.h"

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
	{ "Admin.Locate", ROLE_ENGINE, "blocks of its tenant; all of it: admin" },
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
	{ "Peer.Publish", ROLE_PEER, "tenants of which it is a peer, as all below" },
	{ "Peer.Find", ROLE_PEER },
	{ "Peer.Lend", ROLE_PEER },
	{ "Peer.EndLoan", ROLE_PEER },
	{ "Peer.Offer", ROLE_PEER },
	{ "Peer.Fetch", ROLE_PEER },
	{ "Peer.Forget", ROLE_PEER },
	{ "Health.Check", ROLE_METRICS },
	{ "Health.Watch", ROLE_METRICS },
	{ "fd HELLO", ROLE_ENGINE, "the session of its token" },
	{ "fd MAP", ROLE_ENGINE, "extents of the session's tenant" },
	{ "fd UNMAPPED", ROLE_ENGINE, "its own attachment" },
	{ "fd RELEASE", ROLE_ENGINE, "leases of the session" },
	{ "fd PREMAP", ROLE_ENGINE, "extents of the session's tenant" },
	{ "fd LISTEN", ROLE_ENGINE, "its own attachment" },
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

bool right_includes(enum role has, enum role needed)
{
	if (has == ROLE_PEER || needed == ROLE_PEER)
		return has == needed || needed == ROLE_METRICS;
	return has >= needed;
}

/* ---- identities ---- */

/* The groups of a peer. A process may have 65,536; if they cannot be learned, the peer gets no right by a group.
 * few[64]; the caller frees the result unless it is `few`. */
static gid_t *groups_of(int fd, gid_t *few, size_t *n)
{
	socklen_t size = 64 * sizeof few[0];
	gid_t *groups = few;
	int got = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size);

	if (got && errno == ERANGE) { /* size says how much it wants */
		groups = malloc(size);
		got = groups ? getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) : -1;
	}
	*n = got ? 0 : size / sizeof groups[0];
	return groups;
}

static uint32_t tenant_of(const struct tenants *t, const struct ucred *cred, const gid_t *groups, size_t n)
{
	const uint32_t number = tenants_of_process(t, cred, groups, n);

	return number ? number : WHO_NO_TENANT;
}

uint32_t rights_unknown_tenant(const struct config *c)
{
	return c->tenants ? WHO_NO_TENANT : 0;
}

void rights_identify(const struct config *c, int fd, struct who *out)
{
	struct sockaddr_storage at = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof at, size = sizeof(struct ucred);
	struct ucred cred;

	gid_t few[64], *groups;
	size_t count;

	*out = (struct who){ .role = ROLE_ENGINE, .tenant = rights_unknown_tenant(c) };
	/* Of a TCP socket SO_PEERCRED says nothing, and does not fail. */
	if (getpeername(fd, (struct sockaddr *)&at, &n) || at.ss_family != AF_UNIX ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size))
		return;
	out->named = true;
	out->uid = cred.uid;
	out->pid = cred.pid;
	groups = groups_of(fd, few, &count);
	if (cred.uid == 0 || (cred.uid == geteuid() && cred.uid != ID_UNMAPPED) ||
	    (c->admin_gid_known && cred.gid == c->admin_gid))
		out->role = ROLE_ADMIN;
	for (size_t i = 0; c->admin_gid_known && i < count; i++)
		if (groups[i] == c->admin_gid)
			out->role = ROLE_ADMIN;
	if (c->tenants)
		out->tenant = tenant_of(c->tenants, &cred, groups, count);
	if (out->tenant == WHO_NO_TENANT && out->role == ROLE_ADMIN)
		out->tenant = TENANT_DEFAULT;
	if (groups != few)
		free(groups);
}

/* Of a user that the daemon cannot tell from others. */
static bool is_unmapped(const struct who *who)
{
	return who->named && who->uid == ID_UNMAPPED;
}

void rights_no_tenant(const struct who *who, char *out, size_t size)
{
	char client[64] = "this certificate";

	if (is_unmapped(who)) {
		snprintf(out, size,
			 "uid %d stands for each user that the daemon's user namespace does not map, and is of no "
			 "tenant: map the engine's user into the daemon's namespace, or run the daemon outside",
			 ID_UNMAPPED);
		return;
	}
	if (who->named)
		snprintf(client, sizeof client, "uid %u, of process %d,", (unsigned)who->uid, (int)who->pid);
	snprintf(out, size,
		 "%s is of no tenant, or its groups are of two: put the user, one group or a name of the certificate "
		 "into the table that the option tenants names",
		 client);
}

/* A daemon's certificate, where an engine's or an administrator's is wanted. */
static void refuse_peer(const struct config *c, const char *what, const struct who *who, char *out, size_t size)
{
	char of[96] = "all";

	if (c->tenants && who->peer_of[0] != UINT64_MAX)
		tenants_text(c->tenants, who->peer_of, of, sizeof of);
	snprintf(out, size,
		 "%s is not for peers, and this client came over TLS with the certificate of another daemon (`peers`, "
		 "of tenants: %s): show a certificate of `engines` or `admins`",
		 what, of);
}

void rights_refusal(const struct config *c, const char *what, const struct who *who, char *out, size_t size)
{
	if (right_role(what) == ROLE_PEER) {
		snprintf(out, size,
			 "%s is for the cluster's other daemons: show a certificate that `peers` names, in the "
			 "configuration or in the table of tenants",
			 what);
		return;
	}
	if (who->role == ROLE_PEER) {
		refuse_peer(c, what, who, out, size);
		return;
	}
	char client[96] = "came over TCP, which tells no user: use the Unix socket, as one";

	if (who->certified)
		strcpy(client, "came over TLS with an engine's certificate: use the Unix socket, as one");
	else if (who->named)
		snprintf(client, sizeof client, "is uid %u, process %d: call as one", (unsigned)who->uid, (int)who->pid);
	if (is_unmapped(who)) {
		snprintf(out, size,
			 "%s is for administrators, and this client is uid %d, which stands for each user that the "
			 "daemon's user namespace does not map: call as root, or as a user that it maps",
			 what, ID_UNMAPPED);
		return;
	}
	snprintf(out, size, "%s is for root, uid %u (the daemon's) and the group of admin_group (%.24s); this client %s of them%s", what,
		 (unsigned)geteuid(), c->admin_group[0] ? c->admin_group : "off", client, who->named ? ", or set admin_group" : "");
}
