/* terracectl peers: prints the members of the daemon's cluster, and how the daemon stands with etcd. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "terrace.pb-c.h"

static struct json_t *row_of(const Terrace__V1__PeerRow *r)
{
	struct json_t *row = out_object();
	const Terrace__V1__Member *m = r->member;

	char other[256] = "";

	for (size_t i = 0, n = 0; i < r->n_other_secret_tenants && n < sizeof other; i++)
		n += (size_t)snprintf(other + n, sizeof other - n, "%s%s", n ? ", " : "", r->other_secret_tenants[i]);
	out_put_text(row, "name", m->name);
	out_put_text(row, "address", m->address);
	out_put_text(row, "state", r->absent ? "absent" : m->draining ? "draining" : "serving");
	out_put_bool(row, "self", r->self);
	out_put_text(row, "link", r->avoided ? "avoided" : r->link);
	out_put_id(row, "epoch", m->epoch);
	out_put_text(row, "version", m->version);
	out_put_text(row, "other_secret", other);
	out_put_uint(row, "host_bytes", m->host_bytes);
	out_put_number(row, "known_seconds", (double)r->known_ms / 1000);
	out_put_hex(row, "node", m->node.data, m->node.len);
	return row;
}

static int print_reply(const struct ctl_args *args, const Terrace__V1__PeersReply *reply)
{
	struct json_t *tree = out_object(), *rows = out_array();

	for (size_t i = 0; i < reply->n_rows; i++)
		if (reply->rows[i]->member)
			out_append(rows, row_of(reply->rows[i]));
	out_put_text(tree, "cluster", reply->cluster);
	out_put_text(tree, "node_name", reply->node_name);
	out_put_text(tree, "state", reply->state);
	out_put_text(tree, "reason", reply->reason);
	out_put_text(tree, "etcd", reply->endpoint);
	if (reply->confirmed)
		out_put_number(tree, "confirmed_seconds_ago", (double)reply->confirmed_ms / 1000);
	out_put(tree, "members", rows);
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return strcmp(reply->state, "joined") ? CTL_NO : CTL_OK;
}

int ctl_run_peers(const struct ctl_args *args)
{
	Terrace__V1__PeersRequest request = TERRACE__V1__PEERS_REQUEST__INIT;
	Terrace__V1__PeersReply *reply;
	struct ctl_daemon d;
	int code = ctl_daemon_open(args, &d);

	if (!code)
		code = ctl_daemon_call(&d, CLIENT_ADMIN_PEERS, &request.base, &terrace__v1__peers_reply__descriptor,
				       args->timeout_us, &reply);
	if (!code && !reply->cluster[0])
		code = ctl_failed_with(CTL_NO, "peers: the daemon is in no cluster: set cluster, peer_address and "
					       "etcd_endpoints in its configuration");
	else if (!code)
		code = print_reply(args, reply);
	ctl_daemon_close(&d);
	return code;
}
