/* Options of a cluster: names, addresses, endpoints, and which of them want which. See process/config.h. */
#include "daemon/process/config.h"
#include "daemon/process/config_values.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 63, HOST_MAX_BYTES = 253, ENDPOINTS_MAX = 8 };

static bool is_name(const char *value)
{
	const size_t n = strlen(value);

	if (!n || n > NAME_MAX_BYTES || !isalnum((unsigned char)*value))
		return false;
	for (const char *at = value; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("._-", *at))
			return false;
	return true;
}

const char *config_name_problem(const char *value)
{
	return is_name(value) ? NULL : "a name has 1 to 63 letters, digits, dots, - and _, and begins with a letter or "
				       "digit";
}

/* Whether n bytes are HOST:PORT. HOST is a name, numbers, or numbers of IPv6 in brackets. */
static bool is_endpoint(const char *at, size_t n)
{
	const char *colon = memrchr(at, ':', n);
	const size_t host = colon ? (size_t)(colon - at) : 0, digits = colon ? n - host - 1 : 0;
	const bool brackets = host > 2 && at[0] == '[' && at[host - 1] == ']';
	unsigned port = 0;

	if (!host || host > HOST_MAX_BYTES || !digits || digits > 5)
		return false;
	for (size_t i = 0; i < digits; i++) {
		if (!isdigit((unsigned char)colon[1 + i]))
			return false;
		port = port * 10 + (unsigned)(colon[1 + i] - '0');
	}
	for (size_t i = brackets; i < host - brackets; i++)
		if (!(brackets ? isxdigit((unsigned char)at[i]) || at[i] == ':' || at[i] == '.' :
				 isalnum((unsigned char)at[i]) || at[i] == '-' || at[i] == '.'))
			return false;
	return port && port < 65536;
}

const char *config_peer_problem(const char *value)
{
	const size_t n = strlen(value);

	if (!is_endpoint(value, n))
		return "not HOST:PORT, as node1.example:7070, 10.0.0.1:7070 or [fd00::1]:7070";
	if (!strncmp(value, "0.0.0.0:", 8) || !strncmp(value, "[::]:", 5))
		return "others cannot reach that: name the address of one interface";
	return NULL;
}

const char *config_endpoints_problem(const char *value)
{
	unsigned count = 0;

	for (const char *at = value;; at += strcspn(at, ",") + 1) {
		const size_t n = strcspn(at, ",");

		if (!is_endpoint(at, n))
			return memmem(at, n, "://", 3) ?
				"an endpoint is HOST:PORT, without http:// (with etcd_ca it is reached over TLS)" :
				"not HOST:PORT[,HOST:PORT]..., as 10.0.0.1:2379,10.0.0.2:2379";
		if (++count > ENDPOINTS_MAX)
			return "more than 8 endpoints";
		if (!at[n])
			return NULL;
	}
}

static bool is_loopback(const char *endpoint, size_t n)
{
	char host[HOST_MAX_BYTES + 8]; /* and a colon and a port */
	struct in_addr v4;
	char *colon;

	snprintf(host, sizeof host, "%.*s", (int)n, endpoint);
	colon = strrchr(host, ':');
	if (!colon)
		return false; /* that it is no endpoint was said before */
	*colon = 0;
	return !strcmp(host, "localhost") || !strcmp(host, "[::1]") ||
	       (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

static bool are_loopback(const char *endpoints)
{
	for (const char *at = endpoints;; at += strcspn(at, ",") + 1) {
		const size_t n = strcspn(at, ",");

		if (!is_loopback(at, n))
			return false;
		if (!at[n])
			return true;
	}
}

static bool is_off(char *text)
{
	if (!strcmp(text, "off"))
		*text = 0;
	return !*text;
}

static bool node_name_derive(struct config *c)
{
	if (strcmp(c->node_name, "auto"))
		return true;
	if (gethostname(c->node_name, sizeof c->node_name))
		c->node_name[0] = 0;
	c->node_name[sizeof c->node_name - 1] = 0;
	return is_name(c->node_name);
}

uint32_t config_cluster_derive(struct config *c, const char *problems[CONFIG_CLUSTER_PROBLEMS_MAX])
{
	const bool cluster = !is_off(c->cluster), address = !is_off(c->peer_address);
	const bool endpoints = !is_off(c->etcd_endpoints), user = !is_off(c->etcd_user);
	const bool password = !is_off(c->etcd_password_file), ca = !is_off(c->etcd_ca);
	const bool cert = !is_off(c->etcd_cert), key = !is_off(c->etcd_key), named = node_name_derive(c);
	const bool secret = !is_off(c->secret), old_secret = !is_off(c->old_secret), table = c->tenants_file[0];
	uint32_t n = 0;

	if (table && (secret || old_secret))
		problems[n++] = "secret, old_secret: with a table of tenants each tenant has its own: move them into "
				"the table";
	else if (old_secret && !secret)
		problems[n++] = "secret: off, but there is an old_secret: set both, or secret alone";
	else if (cluster && !table && !secret)
		problems[n++] = "secret: off, but there is a cluster: name a file with the same 32 random bytes or "
				"more on each daemon (openssl rand -hex 32)";
	if (cluster && !named)
		problems[n++] = "node_name: the machine's name is none that a member can have: set node_name";
	if (!cluster && (address || endpoints || user || password || ca || cert || key))
		problems[n++] = "cluster: it is off, and peer_address or an option etcd_* is set: name the cluster, or "
				"leave those out";
	if (cluster && !endpoints)
		problems[n++] = "etcd_endpoints: off, but there is a cluster: name its etcd's, or set cluster to off";
	if (cluster && !address)
		problems[n++] = "peer_address: off, but there is a cluster: say where other members reach this daemon";
	if (user != password)
		problems[n++] = "etcd_user, etcd_password_file: one of them is off: set both, or neither";
	if (user && !ca && endpoints && !are_loopback(c->etcd_endpoints))
		problems[n++] = "etcd_user: its password would go to another machine in the clear: reach etcd over TLS "
				"(etcd_ca), or leave the user out";
	if (cert != key)
		problems[n++] = "etcd_cert, etcd_key: one of them is off: name both files, or neither";
	if ((cert || key) && !ca)
		problems[n++] = "etcd_ca: off, but there is a certificate for etcd: name the file of etcd's CA, too";
	return n;
}
