/* terracectl status. Health says whether the daemon serves, and Stats gives its figures. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/output.h"
#include "health.pb-c.h"
#include "terrace.pb-c.h"

static const char *serving_text(Grpc__Health__V1__HealthCheckResponse__ServingStatus status)
{
	switch (status) {
	case GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING:
		return "SERVING";
	case GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING:
		return "NOT_SERVING";
	default:
		return "UNKNOWN";
	}
}

/* Adds what the daemon works without, if there is anything. */
static void put_faults(struct json_t *tree, const Terrace__V1__StatsReply *stats)
{
	struct json_t *rows = stats->n_faults ? out_array() : NULL;

	for (size_t i = 0; i < stats->n_faults; i++) {
		struct json_t *row = out_object();

		out_put_text(row, "reason", stats->faults[i]);
		out_append(rows, row);
	}
	if (rows)
		out_put(tree, "degraded", rows);
}

static void put_fingerprint(struct json_t *row, const char *name, bool has, uint32_t fingerprint)
{
	char text[16] = "";

	if (has)
		snprintf(text, sizeof text, "%08x", fingerprint);
	out_put_text(row, name, text);
}

/* Adds the tenants that have a secret, if there are any. */
static void put_secrets(struct json_t *tree, const Terrace__V1__StatsReply *stats)
{
	struct json_t *rows = stats->n_secrets ? out_array() : NULL;

	for (size_t i = 0; i < stats->n_secrets; i++) {
		const Terrace__V1__Secret *s = stats->secrets[i];
		struct json_t *row = out_object();

		out_put_text(row, "tenant", s->tenant);
		put_fingerprint(row, "fingerprint", true, s->fingerprint);
		put_fingerprint(row, "old_fingerprint", s->has_old, s->old_fingerprint);
		out_put_text(row, "problem", s->problem);
		out_append(rows, row);
	}
	if (rows)
		out_put(tree, "secrets", rows);
}

/* Adds the RDMA devices, unless rdma is off. */
static void put_rdma(struct json_t *tree, const Terrace__V1__Rdma *rdma)
{
	struct json_t *rows = rdma && rdma->n_ports ? out_array() : NULL;
	char gid[INET6_ADDRSTRLEN];

	if (!rdma)
		return;
	out_put_text(tree, "rdma", rdma->state);
	if (rdma->reason[0])
		out_put_text(tree, "rdma_reason", rdma->reason);
	for (size_t i = 0; i < rdma->n_ports; i++) {
		const Terrace__V1__RdmaPort *p = rdma->ports[i];
		struct json_t *row = out_object();

		if (p->gid.len != sizeof(struct in6_addr) || !inet_ntop(AF_INET6, p->gid.data, gid, sizeof gid))
			gid[0] = 0;
		out_put_text(row, "device", p->device);
		out_put_uint(row, "port", p->port);
		out_put_text(row, "state", p->state);
		out_put_text(row, "gid", gid);
		out_put_text(row, "kind", p->gid_kind);
		out_put_number(row, "numa_node", p->numa_node);
		out_put_bool(row, "windows", p->windows);
		out_put_text(row, "reason", p->reason);
		out_append(rows, row);
	}
	if (rows)
		out_put(tree, "rdma_ports", rows);
}

/* Asks for the daemon's state and statistics. The second call reuses the memory of the first reply, of which only a
 * number is kept. */
static int ask(struct ctl_daemon *d, uint64_t timeout_us, bool *serving, struct json_t *tree)
{
	Grpc__Health__V1__HealthCheckRequest check = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	Terrace__V1__StatsRequest request = TERRACE__V1__STATS_REQUEST__INIT;
	Grpc__Health__V1__HealthCheckResponse *health;
	Terrace__V1__StatsReply *stats;
	int code;

	code = ctl_daemon_call(d, CLIENT_HEALTH_CHECK, &check.base,
			       &grpc__health__v1__health_check_response__descriptor, timeout_us, &health);
	if (code)
		return code;
	*serving = health->status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
	out_put_text(tree, "address", d->address);
	out_put_text(tree, "health", serving_text(health->status));
	code = ctl_daemon_call(d, CLIENT_ADMIN_STATS, &request.base, &terrace__v1__stats_reply__descriptor,
			       timeout_us, &stats);
	if (code)
		return code;
	out_put_text(tree, "state", stats->state);
	out_put_text(tree, "version", stats->version);
	out_put_number(tree, "uptime_seconds", (double)stats->uptime_ms / 1000);
	out_put_id(tree, "epoch", stats->epoch);
	put_faults(tree, stats);
	put_secrets(tree, stats);
	put_rdma(tree, stats->rdma);
	return CTL_OK;
}

int ctl_run_status(const struct ctl_args *args)
{
	struct json_t *tree = out_object();
	struct ctl_daemon d;
	bool serving = false;
	int code = ctl_daemon_open(args, &d);

	if (!code)
		code = ask(&d, args->timeout_us, &serving, tree);
	ctl_daemon_close(&d);
	if (code) {
		out_free(tree);
		return code;
	}
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return serving ? CTL_OK : CTL_NO;
}
