/* Rights: the table has a row for each method of the .proto and each packet, the kernel tells a client's identity, and
 * a descriptor's number is of one role for ever. With --print: the table as it stands in deploy/SECURITY.md. */
#include "daemon/local/packet.h"
#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/rights.h"
#include "daemon/process/tenants.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/handler.h"
#include "daemon/rpc/roles.h"
#include "health.pb-c.h"
#include "proto/fdsock.h"
#include "proto/tls.h"
#include "tests/shell.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { LINE_MAX_BYTES = 8192 };

static uint32_t rows_of(const char *name)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < rights_count; i++)
		n += !strcmp(rights[i].name, name);
	return n;
}

/* ---- the table ---- */

static const struct {
	const char *prefix;
	const ProtobufCServiceDescriptor *service;
} services[] = {
	{ "Cache", &terrace__v1__cache__descriptor },
	{ "Admin", &terrace__v1__admin__descriptor },
	{ "Peer", &terrace__v1__peer__descriptor },
	{ "Health", &grpc__health__v1__health__descriptor },
};
enum { SERVICES = sizeof services / sizeof services[0] };

static bool is_method(const char *name)
{
	for (int i = 0; i < SERVICES; i++) {
		const size_t n = strlen(services[i].prefix);

		if (!strncmp(name, services[i].prefix, n) && name[n] == '.')
			for (unsigned m = 0; m < services[i].service->n_methods; m++)
				if (!strcmp(name + n + 1, services[i].service->methods[m].name))
					return true;
	}
	return false;
}

START_TEST(every_method_has_a_row)
{
	char name[64];
	uint32_t methods = 0;

	for (int i = 0; i < SERVICES; i++)
		for (unsigned m = 0; m < services[i].service->n_methods; m++, methods++) {
			snprintf(name, sizeof name, "%s.%s", services[i].prefix, services[i].service->methods[m].name);
			ck_assert_msg(rows_of(name) == 1, "%s has %u rows in daemon/process/rights.c, not one", name, rows_of(name));
		}
	ck_assert_uint_ge(methods, 30);
	ck_assert_uint_eq(methods, rpc_methods_count);
	for (uint32_t i = 0; i < rpc_methods_count; i++)
		ck_assert_uint_eq(rows_of(rpc_methods[i].name), 1);
	for (uint32_t i = 0; i < rights_count; i++)
		if (strchr(rights[i].name, '.'))
			ck_assert_msg(is_method(rights[i].name), "%s is no method", rights[i].name);
}
END_TEST

/* NULL: the daemon's own. */
static const char *const packets[FDSOCK_TYPES_END] = {
	[FDSOCK_HELLO] = "fd HELLO", [FDSOCK_MAP] = "fd MAP",       [FDSOCK_UNMAPPED] = "fd UNMAPPED", [FDSOCK_RELEASE] = "fd RELEASE",
	[FDSOCK_PREMAP] = "fd PREMAP", [FDSOCK_CALLER] = "fd CALLER", [FDSOCK_CALL] = "fd CALL",
	[FDSOCK_LISTEN] = "fd LISTEN",
};
enum { NO_PACKET = 7 }; /* of this version */
static const enum fdsock_type own[] = { FDSOCK_WELCOME, FDSOCK_EXTENT, FDSOCK_REPLY, FDSOCK_OFFER, FDSOCK_RETIRE };

START_TEST(every_packet_has_a_row)
{
	uint32_t rows = 0, named = 0;

	for (int type = 1; type < FDSOCK_TYPES_END; type++) {
		bool of_daemon = false;

		for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
			of_daemon |= own[i] == (enum fdsock_type)type;
		if (type == NO_PACKET)
			continue;
		ck_assert_msg(of_daemon == !packets[type], "packet %d of proto/fdsock.h is in neither list of this test, or in both", type);
		if (packets[type])
			ck_assert_msg(rows_of(packets[type]) == 1, "%s has %u rows in daemon/process/rights.c, not one", packets[type], rows_of(packets[type]));
		named += packets[type] != NULL;
	}
	for (uint32_t i = 0; i < rights_count; i++)
		rows += !strncmp(rights[i].name, "fd ", 3);
	ck_assert_uint_eq(rows, named);
	ck_assert_uint_eq(rows_of("http /metrics"), 1);
	ck_assert_uint_eq(rows_of("http /healthz"), 1);
}
END_TEST

START_TEST(what_administers_is_for_administrators)
{
	static const char *const admin[] = { "Drain", "Compact", "Verify", "TraceStart", "TraceStop", "Layouts", "Config", "Inspect", "Graph" };
	char name[64];

	for (size_t i = 0; i < sizeof admin / sizeof admin[0]; i++) {
		snprintf(name, sizeof name, "Admin.%s", admin[i]);
		ck_assert_int_eq(right_role(name), ROLE_ADMIN);
	}
	for (uint32_t i = 0; i < rpc_methods_count; i++)
		if (!strncmp(rpc_methods[i].name, "Cache.", 6))
			ck_assert_int_eq(right_role(rpc_methods[i].name), ROLE_ENGINE);
	/* A near caller is an engine: what can be called locally is for engines. */
	for (int m = 1; m < FDSOCK_METHODS_END; m++)
		ck_assert_int_eq(right_role(local_call_method((enum fdsock_method)m)->name), ROLE_ENGINE);
	ck_assert_int_eq(right_role("http /metrics"), ROLE_METRICS);
	ck_assert_int_eq(right_role("Health.Check"), ROLE_METRICS);
	ck_assert_int_eq(right_role("Admin.Unheard"), ROLE_ADMIN); /* in no row */
}
END_TEST

/* A role's line of that table. */
static void line_of(enum role role, char out[LINE_MAX_BYTES])
{
	static const char *const words[ROLES] = { "metrics", "engine", "admin", "peer" };
	int n = snprintf(out, LINE_MAX_BYTES, "| %s |", words[role]);

	for (uint32_t i = 0; i < rights_count; i++)
		if (rights[i].role == role)
			n += snprintf(out + n, (size_t)(LINE_MAX_BYTES - n), "%s `%s`%s%s%s", out[n - 1] == '|' ? "" : ",", rights[i].name,
				      rights[i].only ? " (" : "", rights[i].only ? rights[i].only : "", rights[i].only ? ")" : "");
	snprintf(out + n, (size_t)(LINE_MAX_BYTES - n), " |\n");
}

START_TEST(the_document_has_the_table)
{
	char *line = NULL, wanted[LINE_MAX_BYTES];
	FILE *document = fopen(TEST_DATA "/../../deploy/SECURITY.md", "r");
	bool found[ROLES] = { false };
	size_t size = 0;

	ck_assert_ptr_nonnull(document);
	while (getline(&line, &size, document) > 0)
		for (int role = 0; role < ROLES; role++) {
			line_of((enum role)role, wanted);
			found[role] |= !strcmp(line, wanted);
		}
	for (int role = 0; role < ROLES; role++) {
		line_of((enum role)role, wanted);
		found[role] |= !strchr(wanted, '`'); /* nothing is for it yet */
		ck_assert_msg(found[role], "deploy/SECURITY.md does not say what `rights --print` prints:\n%s", wanted);
	}
	free(line);
	fclose(document);
}
END_TEST

/* ---- who ---- */

struct ends {
	int client, server;
};

static struct ends connect_to(const struct sockaddr *at, socklen_t n)
{
	const int listener = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_storage got;
	socklen_t size = sizeof got;
	struct ends e;

	ck_assert_int_eq(bind(listener, at, n), 0);
	ck_assert_int_eq(listen(listener, 1), 0);
	ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&got, &size), 0);
	e.client = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(e.client, (struct sockaddr *)&got, size), 0);
	e.server = accept(listener, NULL, NULL);
	ck_assert_int_ge(e.server, 0);
	close(listener);
	return e;
}

static struct ends by_tcp(void)
{
	const struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	return connect_to((const struct sockaddr *)&at, sizeof at);
}

/* By a name that no file has. */
static struct ends by_unix(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	return connect_to((const struct sockaddr *)&at, sizeof at.sun_family);
}

static void part(struct ends *e)
{
	close(e->client);
	close(e->server);
}

START_TEST(the_kernel_says_who)
{
	struct config c;
	char words[RPC_WHY_MAX];
	struct ends e = by_unix();
	struct who who;

	config_defaults(&c);
	rights_identify(&c, e.server, &who);
	ck_assert(who.named);
	ck_assert_uint_eq(who.uid, geteuid());
	ck_assert_int_eq(who.pid, getpid());
	ck_assert_int_eq(who.role, ROLE_ADMIN); /* the daemon's own user */
	part(&e);

	e = by_tcp();
	rights_identify(&c, e.server, &who);
	ck_assert(!who.named);
	ck_assert_int_eq(who.role, ROLE_ENGINE);
	rights_refusal(&c, "Admin.Drain", &who, words, sizeof words);
	ck_assert_ptr_nonnull(strstr(words, "Admin.Drain is for root"));
	ck_assert_ptr_nonnull(strstr(words, "TCP"));
	ck_assert_ptr_nonnull(strstr(words, "use the Unix socket"));
	part(&e);

	who = (struct who){ .named = true, .uid = UINT32_MAX - 1, .pid = INT32_MAX, .role = ROLE_ENGINE };
	rights_refusal(&c, "Explain without the handle of one's session", &who, words, sizeof words);
	ck_assert_ptr_nonnull(strstr(words, "is uid 4294967294, process 2147483647"));
	ck_assert_ptr_nonnull(strstr(words, "or set admin_group"));
	ck_assert_uint_lt(strlen(words), sizeof words - 1); /* it is not cut */
	rights_identify(&c, -1, &who);
	ck_assert_int_eq(who.role, ROLE_ENGINE);

	who = (struct who){ .named = true, .uid = ID_UNMAPPED, .role = ROLE_ENGINE };
	rights_refusal(&c, "Explain without the handle of one's session", &who, words, sizeof words);
	ck_assert_ptr_nonnull(strstr(words, "does not map: call as root, or as a user that it maps"));
	rights_no_tenant(&who, words, sizeof words);
	ck_assert_ptr_nonnull(strstr(words, "of no tenant: map the engine's user"));
}
END_TEST

/* ---- numbers ---- */

static int settle(struct rpc_roles *roles, int fd)
{
	struct who who;

	rights_identify(roles->config, fd, &who);
	return rpc_roles_settle(roles, fd, &who);
}

/* The number that an engine had is no administrator's, whatever has been closed: a call of its may still be looked at. */
START_TEST(a_number_keeps_its_role)
{
	struct config c;
	struct rpc_roles roles;
	struct ends engine, admin;
	bool of_engine[256] = { false }, of_admin[256] = { false };
	int first, most = 0;
	char byte;

	config_defaults(&c);
	ck_assert_int_eq(rpc_roles_init(&roles, &c), STATUS_OK);
	for (int i = 0; i < 60; i++) {
		const bool admin_first = i & 1;

		engine = admin_first ? (struct ends){ -1, -1 } : by_tcp();
		admin = by_unix();
		if (admin_first)
			engine = by_tcp();
		first = admin.server;
		ck_assert_int_ge(admin.server = settle(&roles, admin.server), 0);
		ck_assert_int_ge(engine.server = settle(&roles, engine.server), 0);
		if (first != admin.server)
			ck_assert(fcntl(admin.server, F_GETFD) & FD_CLOEXEC);
		ck_assert_int_lt(admin.server, 256);
		ck_assert_int_lt(engine.server, 256);
		ck_assert_int_eq(rpc_roles_role(&roles, admin.server), ROLE_ADMIN);
		ck_assert_int_eq(rpc_roles_role(&roles, engine.server), ROLE_ENGINE);
		of_admin[admin.server] = of_engine[engine.server] = true;
		most = admin.server > most ? admin.server : most;
		most = engine.server > most ? engine.server : most;
		ck_assert_int_eq(write(admin.client, "a", 1), 1); /* it is the same connection */
		ck_assert_int_eq(read(admin.server, &byte, 1), 1);
		part(&engine);
		part(&admin);
	}
	for (int n = 0; n < 256; n++)
		ck_assert(!of_engine[n] || !of_admin[n]);
	ck_assert_int_lt(most, 40); /* numbers are used again */
	ck_assert_int_eq(rpc_roles_role(&roles, 255), ROLE_ENGINE);
	ck_assert_int_eq(rpc_roles_role(&roles, -1), ROLE_ENGINE);
	rpc_roles_fini(&roles);
}
END_TEST

/* The end of a socket pair of the daemon's own is no administrator's, though the kernel names the daemon; and its number is no other engine's. */
START_TEST(a_certificate_is_an_engine)
{
	struct config c;
	struct rpc_roles roles;
	const struct who by_certificate = { .certified = true, .role = ROLE_ENGINE };
	struct ends certified = by_unix(), plain;
	char words[RPC_WHY_MAX];
	int number;

	config_defaults(&c);
	ck_assert_int_eq(rpc_roles_init(&roles, &c), STATUS_OK);
	number = certified.server = rpc_roles_settle(&roles, certified.server, &by_certificate);
	ck_assert_int_ge(number, 0);
	ck_assert_int_eq(rpc_roles_role(&roles, number), ROLE_ENGINE);
	ck_assert(rpc_roles_certified(&roles, number));
	part(&certified);
	plain = by_tcp();
	plain.server = settle(&roles, plain.server);
	ck_assert_int_ge(plain.server, 0);
	ck_assert_int_ne(plain.server, number);
	ck_assert_int_eq(rpc_roles_role(&roles, plain.server), ROLE_ENGINE);
	ck_assert(!rpc_roles_certified(&roles, plain.server));
	ck_assert(!rpc_roles_certified(&roles, -1));
	part(&plain);
	rights_refusal(&c, "Admin.Drain", &(struct who){ .certified = true, .role = ROLE_ENGINE }, words, sizeof words);
	ck_assert_ptr_nonnull(strstr(words, "engine's certificate: use the Unix socket"));
	rpc_roles_fini(&roles);
}
END_TEST

/* The number by which the kernel shows users that it cannot map stands for all of them, so a table cannot have it. */
START_TEST(unmapped_users_are_of_no_tenant)
{
	static const char *const lines[] = { "uids = 65534", "gids = 65534" };

	for (size_t i = 0; i < 2; i++) {
		struct config_errors errors = { 0 };
		char text[64];

		snprintf(text, sizeof text, "tenant = a\n%s\n", lines[i]);
		ck_assert_ptr_null(tenants_parse("t", text, strlen(text), &errors));
		ck_assert_ptr_nonnull(strstr(errors.text, "cannot map"));
	}
}
END_TEST

/* A client that connects as a user of the table's groups; the test's process is the daemon. */
static uint32_t tenant_by_groups(const struct config *c, gid_t first, size_t n, const gid_t *others)
{
	struct ends e;
	struct who who;

	ck_assert_int_eq(setgroups(n, others), 0);
	ck_assert_int_eq(setegid(first), 0);
	ck_assert_int_eq(seteuid(41002), 0);
	e = by_unix();
	ck_assert_int_eq(seteuid(0), 0);
	rights_identify(c, e.server, &who);
	part(&e);
	return who.tenant;
}

START_TEST(groups_of_two_tenants_are_of_none)
{
	static const char text[] = "tenant = a\ngids = 41101, 41103\ntenant = b\ngids = 41102\n";
	static const gid_t both[] = { 41101, 41102 }, a[] = { 41101 }, none[] = { 41109 };
	struct config_errors errors = { 0 };
	struct tenants *t = tenants_parse("t", text, strlen(text), &errors);
	struct config c;

	ck_assert_ptr_nonnull(t);
	config_defaults(&c);
	c.tenants = t;
	if (geteuid() == 0) { /* others may not change their groups */
		ck_assert_uint_eq(tenant_by_groups(&c, 41109, 1, a), t->of[1].number);
		ck_assert_uint_eq(tenant_by_groups(&c, 41102, 1, none), t->of[2].number);
		ck_assert_uint_eq(tenant_by_groups(&c, 41103, 1, a), t->of[1].number);
		ck_assert_uint_eq(tenant_by_groups(&c, 41109, 1, none), WHO_NO_TENANT);
		ck_assert_uint_eq(tenant_by_groups(&c, 41109, 2, both), WHO_NO_TENANT);
		ck_assert_uint_eq(tenant_by_groups(&c, 41101, 2, both), WHO_NO_TENANT);
		ck_assert_uint_eq(tenant_by_groups(&c, 41102, 1, a), WHO_NO_TENANT);
	}
	tenants_free(t);
}
END_TEST

/* The kernel says the user, the table the tenant; and a number that a tenant had is never another's. */
START_TEST(a_number_keeps_its_tenant)
{
	static const char text[] = "tenant = a\nengines = dns:a\ntenant = b\nengines = dns:b\nadmins = dns:o\n";
	struct tls_names two = { 2, { "dns:a", "dns:b" } }, one = { 2, { "dns:x", "dns:b" } }, admin = { 1, { "dns:o" } };
	struct config_errors errors = { 0 };
	struct tenants *t = tenants_parse("t", text, strlen(text), &errors);
	int numbers[2] = { -1, -1 };
	struct rpc_roles roles;
	struct config c;
	enum role role;
	struct who who;

	ck_assert_ptr_nonnull(t);
	config_defaults(&c);
	c.tenants = t;
	ck_assert_uint_eq(tenants_of_names(t, &two, &role), 0);
	ck_assert_uint_eq(tenants_of_names(t, &one, &role), t->of[2].number);
	ck_assert_int_eq(role, ROLE_ENGINE);
	ck_assert_uint_eq(tenants_of_names(t, &admin, &role), t->of[2].number);
	ck_assert_int_eq(role, ROLE_ADMIN);
	ck_assert_int_eq(rpc_roles_init(&roles, &c), STATUS_OK);
	for (int i = 0; i < 10; i++) {
		struct ends e = by_tcp();

		who = (struct who){ .certified = true, .role = ROLE_ENGINE, .tenant = t->of[1 + i % 2].number };
		e.server = rpc_roles_settle(&roles, e.server, &who);
		ck_assert_int_ge(e.server, 0);
		ck_assert_int_ne(e.server, numbers[1 - i % 2]);
		ck_assert_uint_eq(rpc_roles_tenant(&roles, e.server), who.tenant);
		numbers[i % 2] = e.server;
		part(&e);
	}
	ck_assert_uint_eq(rpc_roles_tenant(&roles, -1), WHO_NO_TENANT);
	rights_identify(&c, -1, &who);
	ck_assert_uint_eq(who.tenant, WHO_NO_TENANT);
	rpc_roles_fini(&roles);
	tenants_free(t);
}
END_TEST

START_TEST(peers_call_what_is_for_peers)
{
	static const enum role others[] = { ROLE_METRICS, ROLE_ENGINE, ROLE_ADMIN };

	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		ck_assert_int_eq(right_includes(ROLE_PEER, others[i]), others[i] == ROLE_METRICS);
		ck_assert(!right_includes(others[i], ROLE_PEER));
		for (size_t k = 0; k < sizeof others / sizeof others[0]; k++)
			ck_assert_int_eq(right_includes(others[i], others[k]), i >= k);
	}
	ck_assert(right_includes(ROLE_PEER, ROLE_PEER));
}
END_TEST

/* A peer's name may stand at many tenants; another role's stands once. */
START_TEST(a_certificate_is_a_peer_of_many)
{
	static const char text[] = "tenant = a\nengines = dns:e\npeers = dns:n, dns:m\ntenant = b\npeers = dns:n\n"
				   "tenant = c\npeers = dns:o\n";
	static const char *const wrong[] = { "tenant = a\npeers = dns:n\ntenant = b\nengines = dns:n\n",
					     "tenant = a\nadmins = dns:n\ntenant = b\npeers = dns:n\n",
					     "tenant = a\npeers = dns:n, dns:n\n" };
	struct config_errors errors = { 0 };
	struct tenants *t = tenants_parse("t", text, strlen(text), &errors);
	const struct tls_names n = { 2, { "dns:x", "dns:n" } }, m = { 1, { "dns:m" } };
	const struct tls_names both = { 2, { "dns:m", "dns:o" } };
	const struct tls_names mixed[] = { { 2, { "dns:n", "dns:e" } }, { 2, { "dns:e", "dns:n" } } };
	const struct { const struct tls_names *names; uint64_t of; const char *text; } rows[] = {
		{ &n, 1 << 1 | 1 << 2, "a, b" }, { &m, 1 << 1, "a" }, { &both, 1 << 1 | 1 << 3, "a, c" },
	};
	struct rpc_roles roles;
	struct config c;
	int numbers[3];

	ck_assert_ptr_nonnull(t);
	config_defaults(&c);
	c.tenants = t;
	ck_assert_int_eq(rpc_roles_init(&roles, &c), STATUS_OK);
	for (int i = 0; i < 3; i++) {
		struct who who = { .certified = true };
		uint64_t back[WHO_TENANT_WORDS];
		char words[RPC_WHY_MAX];
		struct ends e = by_tcp();

		ck_assert_uint_ne(who.tenant = tenants_of_names(t, rows[i].names, &who.role), 0);
		ck_assert_int_eq(who.role, ROLE_PEER);
		tenants_of_peer(t, rows[i].names, who.peer_of);
		ck_assert_uint_eq(who.peer_of[0], rows[i].of);
		rights_refusal(&c, "Cache.Lookup", &who, words, sizeof words);
		ck_assert_ptr_nonnull(strstr(words, "of another daemon"));
		ck_assert_ptr_nonnull(strstr(words, rows[i].text));
		numbers[i] = e.server = rpc_roles_settle(&roles, e.server, &who);
		ck_assert_int_eq(rpc_roles_role(&roles, e.server), ROLE_PEER);
		rpc_roles_peer_of(&roles, e.server, back);
		ck_assert_mem_eq(back, who.peer_of, sizeof back);
		part(&e);
	}
	ck_assert(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
	for (int i = 0; i < 2; i++) {
		enum role role;

		ck_assert_uint_eq(tenants_of_names(t, &mixed[i], &role), 0);
	}
	rpc_roles_fini(&roles);
	tenants_free(t);
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		errors = (struct config_errors){ 0 };
		ck_assert_ptr_null(tenants_parse("t", wrong[i], strlen(wrong[i]), &errors));
		ck_assert_ptr_nonnull(strstr(errors.text, "in the table already"));
	}
}
END_TEST

START_TEST(sets_of_tenants_have_a_bound)
{
	struct who who = { .certified = true, .role = ROLE_PEER };
	struct rpc_roles roles;
	struct config c;
	struct ends e;

	config_defaults(&c);
	ck_assert_int_eq(rpc_roles_init(&roles, &c), STATUS_OK);
	roles.peer_sets = RPC_PEER_SETS_MAX;
	e = by_tcp();
	ck_assert_int_ge(e.server = rpc_roles_settle(&roles, e.server, &who), 0); /* the first set is of no tenants */
	part(&e);
	who.peer_of[0] = 1;
	e = by_tcp();
	ck_assert_int_eq(rpc_roles_settle(&roles, e.server, &who), -1);
	ck_assert_int_eq(errno, ENOSPC);
	ck_assert_int_eq(fcntl(e.server, F_GETFD), -1);
	close(e.client);
	rpc_roles_fini(&roles);
}
END_TEST

/* Many numbers of the other role are free, and there are no others: refused, not granted. */
START_TEST(without_a_number_it_is_closed)
{
	struct config c;
	struct rpc_roles roles;
	struct rlimit limit;
	struct ends e = by_unix();

	config_defaults(&c);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = 64;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(rpc_roles_init(&roles, &c), STATUS_OK);
	for (uint32_t n = 0; n < roles.count; n++)
		roles.kind[n] = ROLE_ENGINE + 1;
	roles.fresh = (int)roles.count;
	ck_assert_int_eq(settle(&roles, e.server), -1);
	ck_assert_int_eq(errno, EMFILE);
	ck_assert_int_eq(fcntl(e.server, F_GETFD), -1);
	close(e.client);
	rpc_roles_fini(&roles);
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const tests[] = {
		every_method_has_a_row, every_packet_has_a_row, what_administers_is_for_administrators,
		the_document_has_the_table,
		the_kernel_says_who, a_number_keeps_its_role, a_certificate_is_an_engine, a_number_keeps_its_tenant,
		groups_of_two_tenants_are_of_none,
		unmapped_users_are_of_no_tenant, without_a_number_it_is_closed,
		peers_call_what_is_for_peers, a_certificate_is_a_peer_of_many, sets_of_tenants_have_a_bound,
	};
	Suite *suite = suite_create("rights");
	TCase *t = tcase_create("rights");
	char line[LINE_MAX_BYTES];

	for (int role = 0; argc > 1 && !strcmp(argv[1], "--print") && role < ROLES; role++) {
		line_of((enum role)role, line);
		fputs(line, stdout);
	}
	if (argc > 1)
		return EXIT_SUCCESS;
	for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
		tcase_add_test(t, tests[i]);
	suite_add_tcase(suite, t);

	SRunner *r = srunner_create(suite);

	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
