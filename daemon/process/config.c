/* The option table and what is driven by it. See process/config.h.
 *
 * Every value is a uint64_t or a text inside struct config, found by its offset; a row's type says how
 * words become that value and back. Errors are collected, so that one run of --check-config shows them all.
 */
#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/process/config_retired.h"
#include "daemon/process/config_values.h"
#include "daemon/process/machine.h"
#include "daemon/process/rights.h"
#include "eviction/policy.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define HOUR_MS 3600000ull

enum { EXIT_CONFIG = 2 };

enum type { T_PATH, T_SOCKET, T_LISTEN, T_METRICS, T_DISKS, T_GPUS, T_PLUGIN, T_GROUP, T_FILE, T_NAME, T_PEER,
	    T_ENDPOINTS, T_SECRET, T_SANS, T_TEXT, T_POLICY, T_BYTES, T_MS, T_COUNT, T_MILLI, T_MODE, T_CHOICE };

struct option {
	const char *name;
	enum type type;
	size_t offset;
	const char *standard;        /* the default, as words */
	uint64_t min, max;
	const char *const *choices;  /* T_CHOICE */
	const char *help;
};

static const char *const huge_words[] = { "auto", "off", NULL };
static const char *const switch_words[] = { "off", "on", NULL };
static const char *const io_words[] = { "auto", "io_uring", "threads", NULL };
static const char *const catalog_words[] = { "keep", "rebuild", NULL };
static const char *const required_words[] = { "none", "one", "all", NULL };
static const char *const level_words[] = { "debug", "info", "warn", "error", NULL };
static const char *const format_words[] = { "logfmt", "json", NULL };

#define AT(member) offsetof(struct config, member)
static const struct option options[] = {
	{ "data_dir", T_PATH, AT(data_dir), "/var/lib/terrace", 0, 0, NULL,
	  "folder of this daemon's own; created, and locked: one process a folder" },
	{ "socket", T_SOCKET, AT(socket), "/run/terrace/terraced.sock", 0, 0, NULL,
	  "Unix socket of the gRPC services" },
	{ "fd_socket", T_SOCKET, AT(fd_socket), "auto", 0, 0, NULL,
	  "Unix socket that hands memory to engines; auto: next to `socket`, with .fd for .sock; off: no borrowing" },
	{ "socket_mode", T_MODE, AT(socket_mode), "0660", 0, 0777, NULL, "permissions of both sockets" },
	{ "admin_group", T_GROUP, AT(admin_group), "off", 0, 0, NULL,
	  "group, by name or number, whose members may administer the daemon over `socket`, as root and the daemon's own user may; off: these two alone" },
	{ "listen", T_LISTEN, AT(listen), "off", 0, 0, NULL,
	  "also serve gRPC over TCP, to engines, as administration wants `socket`: ADDRESS:PORT, as 127.0.0.1:PORT or "
	  "[::1]:PORT; with listen_cert, listen_key and listen_ca any address, over TLS with certificates on both "
	  "sides; without them a loopback one, without any authentication" },
	{ "listen_cert", T_FILE, AT(listen_cert), "off", 0, 0, NULL,
	  "PEM file of the daemon's certificate for `listen`, and of those between it and its CA; read anew when it "
	  "changes; off: no TLS" },
	{ "listen_key", T_FILE, AT(listen_key), "off", 0, 0, NULL,
	  "PEM file of that certificate's private key, without a passphrase" },
	{ "listen_ca", T_FILE, AT(listen_ca), "off", 0, 0, NULL,
	  "PEM file of the CAs whose certificates clients of `listen` may show" },
	{ "tenants", T_FILE, AT(tenants_file), "off", 0, 0, NULL,
	  "file with the table of tenants: which clients each has, by user, group or certificate, and its memory "
	  "(deploy/TENANTS.md); off: one tenant, for all clients" },
	{ "secret", T_SECRET, AT(secret), "off", 0, 0, NULL,
	  "file with the secret by which a cluster's daemons name blocks to each other, the same on all; or "
	  "credential:NAME, of systemd; read anew when it changes; with `tenants` each tenant's stands in the table" },
	{ "old_secret", T_SECRET, AT(old_secret), "off", 0, 0, NULL,
	  "file with the secret before, or the next one: while it is there, names made with it are found, too" },
	{ "peers", T_SANS, AT(peers), "off", 0, 0, NULL,
	  "names of certificates, as in the table of tenants, separated by commas: of other daemons, for all tenants; "
	  "they may call neither as engines nor as administrators" },
	{ "tenant_metrics", T_COUNT, AT(tenant_metrics), "0", 0, 64, NULL,
	  "so many tenants, the first of the table, have rows of their own in /metrics and Stats; 0: none" },
	{ "metrics_address", T_METRICS, AT(metrics_address), "off", 0, 0, NULL,
	  "where HTTP answers /metrics (Prometheus) and /healthz: HOST:PORT, as 127.0.0.1:9464 or [::1]:9464, or unix:PATH; all that reach it may read; off: nowhere" },
	{ "host_bytes", T_BYTES, AT(host_bytes), "auto", MIB, 1ull << 46, NULL,
	  "memory of the host tier; auto: a quarter of the machine's, or of what cgroups leave of it, at most 64GiB" },
	{ "extent_bytes", T_BYTES, AT(extent_bytes), "auto", MIB, GIB, NULL,
	  "size of one extent of memory, the unit that engines map, and the most that a block can have; auto: a quarter of host_bytes, 16MiB to 1GiB" },
	{ "huge_pages", T_CHOICE, AT(huge_pages), "auto", 0, 0, huge_words, "use huge pages if there are any free" },
	{ "policy", T_POLICY, AT(policy), "lru", 0, 0, NULL, "who is evicted when memory is full" },
	{ "pinned_share", T_MILLI, AT(pinned_share_milli), "0.75", 10, 1000, NULL,
	  "share of host_bytes that leases, reservations and reads may pin, and of gpu_bytes; shared as sessions are" },
	{ "disks", T_DISKS, AT(disks), "off", 0, 0, NULL,
	  "disk tier: FOLDER:SIZE of each disk, separated by commas, as /nvme0/terrace:512GiB; off: what memory cannot hold is dropped" },
	{ "require_disks", T_CHOICE, AT(require_disks), "none", 0, 0, required_words,
	  "disks that must be usable when the daemon starts, or it does not: all, at least one, or none of them; those that are not usable are left out, and the daemon is degraded" },
	{ "disk_policy", T_POLICY, AT(disk_policy), "lru", 0, 0, NULL, "who leaves a disk that is full" },
	{ "recompute_growth", T_COUNT, AT(recompute_growth), "0", 0, UINT32_MAX, NULL,
	  "tokens before a token that double what it costs to compute (parameters / 2 / layers / hidden size), by "
	  "which graph then weighs blocks; 0: to graph all cost the same" },
	{ "slab_bytes", T_BYTES, AT(slab_bytes), "auto", MIB, 1024 * GIB, NULL,
	  "a slab file takes so much at most; each holds blocks of one size; auto: a 1024th of its disk, 1MiB at "
	  "least, which is what larger values mean, too" },
	{ "disk_depth", T_COUNT, AT(disk_depth), "32", 1, 1024, NULL, "transfers under way at a time, a disk" },
	{ "disk_slow", T_MS, AT(disk_slow_ms), "250ms", 1, HOUR_MS, NULL,
	  "a disk whose oldest transfer takes longer is spared spills and prefetches" },
	{ "spill_share", T_MILLI, AT(spill_share_milli), "0.25", 0, 1000, NULL,
	  "share of host_bytes that is to be free or copied to disk, so that eviction loses nothing" },
	{ "disk_io", T_CHOICE, AT(disk_io), "auto", 0, 0, io_words, "how disks are read and written" },
	{ "catalog", T_CHOICE, AT(catalog), "keep", 0, 0, catalog_words,
	  "rebuild: forget the catalog of the disks and make it anew from the blocks themselves" },
	{ "gpus", T_GPUS, AT(gpus), "off", 0, 0, NULL,
	  "GPUs whose memory holds blocks too: their numbers, separated by commas (one that is not there: the daemon starts, degraded), or all that there are; off: none" },
	{ "gpu_bytes", T_BYTES, AT(gpu_bytes), "auto", 16 * MIB, 1ull << 46, NULL,
	  "memory of each GPU that may be taken; auto: half of what is free when the daemon starts" },
	{ "cuda_plugin", T_PLUGIN, AT(cuda_plugin), "auto", 0, 0, NULL,
	  "library that reaches the GPUs; auto: libterrace_cuda.so.0, where libraries are found" },
	{ "graph_nodes", T_COUNT, AT(graph_nodes), "131072", 0, 1 << 26, NULL,
	  "blocks that the graph of what is asked for remembers, some 220 bytes each; 0: no graph, and nothing is read ahead" },
	{ "advisor_every", T_MS, AT(advisor_every_ms), "500ms", 50, 60000, NULL, "how often the graph is asked what is expected next" },
	{ "prefetch_bytes", T_BYTES, AT(prefetch_bytes), "256MiB", 0, 1ull << 40, NULL,
	  "read ahead from the disks at most so much a second; 0: nothing" },
	{ "gpu_prefetch_bytes", T_BYTES, AT(gpu_prefetch_bytes), "0", 0, 1ull << 40, NULL,
	  "bring up to a GPU ahead of leases there at most so much a second; 0: nothing" },
	{ "gpu_verify_up", T_CHOICE, AT(gpu_verify_up), "on", 0, 0, switch_words,
	  "look at checksums of what goes from memory to a GPU, beside the copies: a layer is there when that is done too" },
	{ "sessions_max", T_COUNT, AT(sessions_max), "1024", 1, 1 << 20, NULL, "sessions; a process holds at most seven eighths, a user fifteen sixteenths" },
	{ "leases_max", T_COUNT, AT(leases_max), "131072", 1, 1 << 20, NULL, "leases over all sessions; shared as sessions are" },
	{ "open_blocks_max", T_COUNT, AT(open_blocks_max), "4096", 1, 1 << 20, NULL, "open blocks of one session" },
	{ "session_idle", T_MS, AT(session_idle_ms), "5m", 1000, 24 * HOUR_MS, NULL,
	  "a session with no attached process and no call for so long is closed" },
	{ "lease_ttl", T_MS, AT(lease_ttl_ms), "1m", 100, 24 * HOUR_MS, NULL,
	  "a lease older than this is counted as overdue; it is not taken away" },
	{ "reservation_ttl", T_MS, AT(reservation_ttl_ms), "1m", 100, 24 * HOUR_MS, NULL, "the same for reservations" },
	{ "watch_queue", T_COUNT, AT(watch_queue), "4096", 16, 1 << 20, NULL,
	  "events a watcher may lag behind before it is told to look anew" },
	{ "workers", T_COUNT, AT(workers), "2", 1, 64, NULL, "threads for checksums, copies and scrubs of calls" },
	{ "sum_threads", T_COUNT, AT(sum_threads), "auto", 1, 16, NULL,
	  "threads for checksums of what comes from disks and GPUs; auto: half as many as the daemon may use processors, 2 at least and 12 at most" },
	{ "queue_max", T_COUNT, AT(queue_max), "256", 1, 1 << 16, NULL,
	  "calls that may wait for a worker; more are RESOURCE_EXHAUSTED" },
	{ "calls_max", T_COUNT, AT(calls_max), "1024", 16, 1 << 16, NULL,
	  "calls at a time, at most half of them streams, and half of these watches; shared as sessions are; more are RESOURCE_EXHAUSTED" },
	{ "connections_max", T_COUNT, AT(connections_max), "256", 1, 1 << 16, NULL, 
	  "connections to fd_socket, as many more for local calls, and as many of gRPC; shared as sessions are" },
	{ "call_deadline_max", T_MS, AT(call_deadline_max_ms), "1m", 100, HOUR_MS, NULL,
	  "life of a call that brings no deadline of its own, and longest stall of a stream; watches last" },
	{ "message_bytes_max", T_BYTES, AT(message_bytes_max), "4MiB", 2 * MIB, 64 * MIB, NULL,
	  "largest gRPC message" },
	{ "drain_timeout", T_MS, AT(drain_timeout_ms), "10s", 0, HOUR_MS, NULL,
	  "how long SIGTERM waits for leases and reservations to end" },
	{ "stop_timeout", T_MS, AT(stop_timeout_ms), "10s", 100, HOUR_MS, NULL,
	  "how long the stop then waits for what hangs, as in a GPU's driver, before the daemon ends without it, with exit status 3" },
	{ "busy_poll", T_MS, AT(busy_poll_ms), "0ms", 0, 1000, NULL,
	  "after each event the serving threads, and each GPU's that begins copies, look for the next one for so long without sleeping, a processor each" },
	{ "adaptive_poll", T_CHOICE, AT(adaptive_poll), "on", 0, 0, switch_words,
	  "without busy_poll: the thread of local calls, and a worker or two, look for what comes next for as long as that has been taking, 200us at most, if the daemon may use 4 processors or more" },
	{ "cluster", T_NAME, AT(cluster), "off", 0, 0, NULL,
	  "name of the cluster that this daemon joins: the daemons that have it, and the same etcd, know each other; "
	  "off: none" },
	{ "node_name", T_NAME, AT(node_name), "auto", 0, 0, NULL,
	  "this daemon's name, which no other one of the cluster has; auto: the machine's" },
	{ "peer_address", T_PEER, AT(peer_address), "off", 0, 0, NULL,
	  "HOST:PORT at which other members of the cluster reach this one" },
	{ "etcd_endpoints", T_ENDPOINTS, AT(etcd_endpoints), "off", 0, 0, NULL,
	  "HOST:PORT of the cluster's etcd v3, up to eight, separated by commas: one is used, and the next if it "
	  "fails" },
	{ "etcd_user", T_TEXT, AT(etcd_user), "off", 0, 0, NULL, "user of etcd; off: it wants none" },
	{ "etcd_password_file", T_FILE, AT(etcd_password_file), "off", 0, 0, NULL,
	  "file whose first line is that user's password; read at each connection" },
	{ "etcd_ca", T_FILE, AT(etcd_ca), "off", 0, 0, NULL,
	  "PEM file of the CAs whose certificates etcd may show; off: no TLS" },
	{ "etcd_cert", T_FILE, AT(etcd_cert), "off", 0, 0, NULL,
	  "PEM file of the certificate that the daemon shows to etcd; read at each connection" },
	{ "etcd_key", T_FILE, AT(etcd_key), "off", 0, 0, NULL, "PEM file of that certificate's private key" },
	{ "member_ttl", T_MS, AT(member_ttl_ms), "10s", 2000, 600000, NULL,
	  "a daemon that etcd has not heard of for so long is no member any more" },
	{ "directory", T_CHOICE, AT(directory), "on", 0, 0, switch_words,
	  "tell the cluster's other members which blocks this daemon has, and ask them for theirs; it needs a cluster, "
	  "listen_cert and a secret" },
	{ "rdma", T_CHOICE, AT(rdma), "off", 0, 0, switch_words,
	  "open this machine's RDMA devices (RoCE, InfiniBand) and show them in `terracectl status`; other members' "
	  "blocks come over TCP all the same" },
	{ "peer_spill", T_CHOICE, AT(peer_spill), "off", 0, 0, switch_words,
	  "before memory drops blocks that no disk takes, and when the daemon drains, offer them to other members; it "
	  "needs the directory" },
	{ "peer_room", T_MILLI, AT(peer_room_milli), "0.125", 0, 1000, NULL,
	  "share of host_bytes that other members may fill, while it is free, with blocks that they would drop" },
	{ "log_level", T_CHOICE, AT(log_level), "info", 0, 0, level_words, "least level that is logged" },
	{ "log_format", T_CHOICE, AT(log_format), "logfmt", 0, 0, format_words, "form of the lines on stderr" },
};
enum { OPTIONS = sizeof options / sizeof options[0], WORDS_MAX = 128 };
_Static_assert((int)OPTIONS <= (int)CONFIG_OPTIONS_MAX, "origin[] holds one entry an option");

static const char *const origin_words[] = { "default", "file", "environment", "flag" };

void config_complain(struct config_errors *e, const char *format, ...)
{
	size_t used = strlen(e->text);
	va_list args;

	e->count++;
	va_start(args, format);
	int n = vsnprintf(e->text + used, sizeof e->text - used, format, args);

	va_end(args);
	for (char *at = e->text + used; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?'; /* what it quotes may be any bytes, and a terminal obeys some */
	if (n < 0 || used + (size_t)n + 2 > sizeof e->text) {
		e->text[used] = 0; /* no half lines */
		e->untold++;
	} else {
		strcpy(e->text + used + n, "\n");
	}
}

void config_errors_print(const struct config_errors *e, FILE *to)
{
	fputs(e->text, to);
	if (e->untold)
		fprintf(to, "and %u more\n", e->untold);
}

static uint64_t *number_of(struct config *c, const struct option *o)
{
	return (uint64_t *)((char *)c + o->offset);
}

static char *text_of(struct config *c, const struct option *o)
{
	return (char *)c + o->offset;
}

static bool is_text(const struct option *o)
{
	return o->type <= T_POLICY;
}

static const struct config_unit *units_of(enum type type)
{
	return type == T_BYTES ? config_byte_units : type == T_MS ? config_time_units : config_no_units;
}

/* "0.75" -> 750: digits, at most three of them behind the point. */
static bool parse_milli(const char *value, uint64_t *out)
{
	uint64_t whole = 0, part = 0, scale = 1000;
	const char *p = value;

	for (; isdigit((unsigned char)*p); p++)
		if ((whole = whole * 10 + (uint64_t)(*p - '0')) > 1000)
			return false;
	if (p == value)
		return false;
	if (*p == '.') {
		for (p++; isdigit((unsigned char)*p) && scale > 1; p++, scale /= 10)
			part = part * 10 + (uint64_t)(*p - '0');
		part *= scale;
	}
	*out = whole * 1000 + part;
	return !*p;
}

static bool parse_mode(const char *value, uint64_t *out)
{
	char *end;

	if (!isdigit((unsigned char)*value))
		return false;
	*out = strtoull(value, &end, 8);
	return !*end;
}

static bool parse_choice(const char *value, const char *const *words, uint64_t *out)
{
	for (uint64_t i = 0; words[i]; i++) {
		if (!strcmp(value, words[i])) {
			*out = i;
			return true;
		}
	}
	return false;
}

/* One rule for each type of text. A type whose value is a list or an address has a parser of its own
 * (process/config_lists.c, config_cluster.c), and this passes its verdict on. */
static const char *text_problem(const struct option *o, const char *value)
{
	size_t n = strlen(value);
	bool word = o->type == T_SOCKET && (!strcmp(value, "auto") || !strcmp(value, "off"));

	if (!n)
		return "it is empty: give a value, or leave the option out";
	if (n >= CONFIG_TEXT_MAX)
		return "it is too long: at most 511 bytes";
	for (const char *p = value; *p; p++)
		if ((unsigned char)*p < 0x20)
			return "it has a control character: a value is of one line of text";
	if (o->type == T_LISTEN)
		return config_listen_problem(value);
	if (o->type == T_METRICS) {
		struct config_socket at;
		const char *problem;

		config_metrics(value, &at, &problem);
		return problem;
	}
	if (o->type == T_DISKS) {
		struct config_disk disks[CONFIG_DISKS_MAX];
		const char *problem;

		config_disks(value, disks, &problem);
		return problem;
	}
	if (o->type == T_GPUS) {
		uint32_t gpus[CONFIG_GPUS_MAX];
		const char *problem;
		bool all;

		config_gpus(value, gpus, &all, &problem);
		return problem;
	}
	if (o->type == T_NAME)
		return !strcmp(value, o->standard) ? NULL : config_name_problem(value);
	if (o->type == T_PEER)
		return !strcmp(value, "off") ? NULL : config_peer_problem(value);
	if (o->type == T_ENDPOINTS)
		return !strcmp(value, "off") ? NULL : config_endpoints_problem(value);
	if (o->type == T_SECRET)
		return !strcmp(value, "off") ? NULL : config_secret_problem(value);
	if (o->type == T_SANS)
		return !strcmp(value, "off") ? NULL : config_sans_problem(value);
	if (o->type == T_TEXT || (o->type == T_FILE && !strcmp(value, "off")))
		return NULL;
	if (o->type == T_PLUGIN && !strcmp(value, "auto"))
		return NULL;
	if (o->type == T_POLICY || o->type == T_GROUP) /* whether the group exists is checked with the machine */
		return NULL;
	if (word && o->offset == AT(fd_socket))
		return NULL;
	if (value[0] != '/')
		return "not an absolute path: begin it with /";
	if (o->type == T_SOCKET && n >= CONFIG_SOCKET_MAX)
		return "too long: a socket's path has at most 107 bytes";
	return NULL;
}

static void format_value(char *out, size_t size, const struct option *o, uint64_t n)
{
	switch (o->type) {
	case T_MILLI: {
		int used = snprintf(out, size, "%" PRIu64 ".%03" PRIu64, n / 1000, n % 1000);

		while (used > 0 && out[used - 1] == '0' && out[used - 2] != '.')
			out[--used] = 0;
		return;
	}
	case T_MODE:
		snprintf(out, size, "%04" PRIo64, n);
		return;
	case T_CHOICE:
		snprintf(out, size, "%s", o->choices[n]);
		return;
	default:
		if (!n && !strcmp(o->standard, "auto"))
			snprintf(out, size, "auto");
		else
			config_number_text(out, size, n, units_of(o->type));
	}
}

static const char *form_of(const struct option *o)
{
	switch (o->type) {
	case T_BYTES: return "a size such as 512MiB or 4GiB";
	case T_MS: return "a time such as 500ms, 10s or 5m";
	case T_MILLI: return "a share such as 0.75";
	case T_MODE: return "an octal mode such as 0660";
	default: return "a whole number";
	}
}

/* The i-th word of those that an option may have; NULL: it has no more. */
static const char *word_of(const struct option *o, size_t i)
{
	if (o->type == T_POLICY)
		return policy_table[i] ? policy_table[i]->name : NULL;
	return o->choices ? o->choices[i] : NULL;
}

static void words_of(const struct option *o, char words[WORDS_MAX])
{
	*words = 0;
	for (size_t i = 0; word_of(o, i); i++)
		snprintf(words + strlen(words), WORDS_MAX - strlen(words), "%s%s", i ? ", " : "", word_of(o, i));
}

static void complain_choice(const struct option *o, const char *value, const char *where, struct config_errors *e)
{
	char words[WORDS_MAX];

	words_of(o, words);
	config_complain(e, "%s: %s: \"%.64s\" is not one of %s", where, o->name, value, words);
}

static bool set_number(struct config *c, const struct option *o, const char *value, const char *where,
		       struct config_errors *e)
{
	uint64_t n = 0;
	char least[32], most[32];
	bool ok;

	if ((o->type == T_BYTES || o->type == T_COUNT) && !strcmp(o->standard, "auto") && !strcmp(value, "auto")) {
		*number_of(c, o) = 0;
		return true;
	}
	if (o->type == T_CHOICE) {
		ok = parse_choice(value, o->choices, &n);
		if (!ok)
			complain_choice(o, value, where, e);
	} else {
		ok = o->type == T_MILLI ? parse_milli(value, &n) :
		     o->type == T_MODE	? parse_mode(value, &n) :
					  config_number(value, units_of(o->type), &n);
		if (!ok)
			config_complain(e, "%s: %s: \"%.64s\" is not %s", where, o->name, value, form_of(o));
		else if (n < o->min || n > o->max) {
			format_value(least, sizeof least, o, o->min);
			format_value(most, sizeof most, o, o->max);
			config_complain(e, "%s: %s: %.64s is not within %s and %s", where, o->name, value, least, most);
			ok = false;
		}
	}
	if (ok)
		*number_of(c, o) = n;
	return ok;
}

static bool set_option(struct config *c, const struct option *o, const char *value, enum config_origin origin,
		       const char *where, struct config_errors *e)
{
	const char *retired = o->type == T_POLICY ? config_retired_policy(value) : NULL;

	if (retired)
		value = o->standard;
	if (o->type == T_POLICY && !policy_find(value)) {
		complain_choice(o, value, where, e);
		return false;
	}
	if (is_text(o)) {
		const char *problem = text_problem(o, value);

		if (problem) {
			config_complain(e, "%s: %s: \"%.64s\": %s", where, o->name, value, problem);
			return false;
		}
		strcpy(text_of(c, o), value);
	} else if (!set_number(c, o, value, where, e)) {
		return false;
	}
	c->origin[o - options] = origin;
	c->retired[o - options] = retired;
	return true;
}

/* The option of this name of n characters; NULL: none. Names of flags may have - in place of _. */
static const struct option *find(const char *name, size_t n, bool flag)
{
	for (size_t i = 0; i < OPTIONS; i++) {
		const char *own = options[i].name;
		size_t k = 0;

		while (k < n && own[k] && (own[k] == name[k] || (flag && own[k] == '_' && name[k] == '-')))
			k++;
		if (k == n && !own[k])
			return &options[i];
	}
	return NULL;
}

void config_defaults(struct config *c)
{
	struct config_errors none = { 0 };

	memset(c, 0, sizeof *c);
	for (size_t i = 0; i < OPTIONS; i++)
		set_option(c, &options[i], options[i].standard, CONFIG_DEFAULT, "default", &none);
}

/* ---- file ---- */

struct reading {
	struct config *c;
	struct config_errors *errors;
	const char *name;
	bool seen[OPTIONS];
};

static void take_pair(void *arg, unsigned line, const char *problem, const char *name, const char *value)
{
	struct reading *r = arg;
	char where[CONFIG_TEXT_MAX + 16];
	const struct option *o = name ? find(name, strlen(name), false) : NULL;

	snprintf(where, sizeof where, "%s:%u", r->name, line);
	if (problem)
		config_complain(r->errors, "%s: %s", where, problem);
	else if (!o)
		config_complain(r->errors, "%s: unknown option \"%.64s\": --help lists all", where, name);
	else if (r->seen[o - options])
		config_complain(r->errors, "%s: %s is set twice: leave one line", where, name);
	else
		set_option(r->c, o, value, CONFIG_FILE, where, r->errors);
	if (o)
		r->seen[o - options] = true;
}

enum status config_parse(struct config *c, const char *name, const char *bytes, size_t n, struct config_errors *errors)
{
	struct reading r = { .c = c, .errors = errors, .name = name };
	uint32_t before = errors->count;

	config_lines(bytes, n, take_pair, &r);
	return errors->count == before ? STATUS_OK : STATUS_INVALID;
}

static void read_file(struct config *c, const char *path, bool must_exist, struct config_errors *errors)
{
	size_t n = 0;
	char *bytes = config_file_bytes(path, &n);

	if (bytes)
		config_parse(c, path, bytes, n, errors);
	else if (errno == ENOENT && !must_exist)
		return;
	else if (errno == ETIMEDOUT)
		config_complain(errors, "%s: " CONFIG_PIPE_IDLE, path);
	else if (errno == EFBIG)
		config_complain(errors, "%s: larger than the 1 MiB that a configuration may have: is it another file?", path);
	else
		config_complain(errors, "%s: %s: make the configuration file readable, or name another with --config",
				path, strerror(errno));
	snprintf(c->file, sizeof c->file, "%s", path);
	free(bytes);
}

/* ---- environment and flags ---- */

static const char *env_value(char *const env[], const char *name)
{
	char wanted[64] = "TERRACE_";
	size_t n = strlen(wanted);

	for (; *name && n < sizeof wanted - 1; name++)
		wanted[n++] = (char)toupper((unsigned char)*name);
	for (; env && *env; env++)
		if (!strncmp(*env, wanted, n) && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

/* Whether a variable TERRACE_..., given behind TERRACE_ with n characters, is known and sets no option: one of the
 * daemon's own or the clients', or one that Kubernetes sets for a service named "terrace". */
static bool is_no_option(const char *name, size_t n)
{
	static const char *const words[] = { "CONFIG", "ADDRESS", "PORT",
					    "TLS_CERT", "TLS_KEY", "TLS_CA", "TLS_NAME", NULL };
	static const char *const begins[] = { "PORT_", "SERVICE_", NULL };

	for (size_t i = 0; words[i]; i++)
		if (n == strlen(words[i]) && !strncmp(name, words[i], n))
			return true;
	for (size_t i = 0; begins[i]; i++)
		if (!strncmp(name, begins[i], strlen(begins[i])))
			return true;
	return false;
}

/* Complains of variables TERRACE_... that set nothing: these are spelling mistakes. */
static void refuse_unknown(char *const env[], struct config_errors *errors)
{
	for (; env && *env; env++) {
		if (strncmp(*env, "TERRACE_", 8) != 0)
			continue;
		const char *name = *env + 8;
		size_t n = strcspn(name, "=");
		char lower[64];

		if (is_no_option(name, n))
			continue;
		for (size_t i = 0; i < n && i < sizeof lower; i++)
			lower[i] = (char)tolower((unsigned char)name[i]);
		if (n >= sizeof lower || !find(lower, n, false))
			config_complain(errors, "environment: unknown variable TERRACE_%.*s: each option has one, --help lists them; unset this one", (int)(n < 64 ? n : 64), name);
	}
}

static void read_environment(struct config *c, char *const env[], struct config_errors *errors)
{
	refuse_unknown(env, errors);
	for (size_t i = 0; i < OPTIONS; i++) {
		const char *value = env_value(env, options[i].name);

		if (value)
			set_option(c, &options[i], value, CONFIG_ENVIRONMENT, "environment", errors);
	}
}

/* Reads the flags in two passes. The first, with `file` set, only looks for --config, since the file comes before the
 * flags in order; the second sets the options. One loop serves both, so that both split the command line in the same
 * way. */
static void read_flags(struct config *c, int argc, char *const argv[], const char **file, struct config_errors *errors)
{
	bool seen[OPTIONS] = { false }, named = false;

	for (int i = 1; i < argc; i++) {
		const char *flag = argv[i], *equals = strchr(flag, '=');
		size_t n = equals ? (size_t)(equals - flag) : strlen(flag);

		if (!strcmp(flag, "--help") || !strcmp(flag, "-h")) {
			c->help = true;
			continue;
		}
		if (!strcmp(flag, "--version")) {
			c->version = true;
			continue;
		}
		if (!strcmp(flag, "--check-config") || !strcmp(flag, "--print-config")) {
			*(flag[2] == 'c' ? &c->check : &c->print) = true;
			continue;
		}
		bool dashed = n > 2 && !strncmp(flag, "--", 2), config = n == 8 && !strncmp(flag, "--config", 8);
		const struct option *o = dashed && !config ? find(flag + 2, n - 2, true) : NULL;

		if (!o && !config) {
			config_complain(errors, "command line: unknown argument \"%.64s\" (see --help)", flag);
			continue;
		}
		const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;

		if (!value)
			config_complain(errors, "command line: %.64s needs a value: as the next word, or behind =", flag);
		else if (config && file)
			*file = value;
		else if (config && named)
			config_complain(errors, "command line: config is set twice: leave one");
		else if (o && !file && seen[o - options])
			config_complain(errors, "command line: %s is set twice: leave one", o->name);
		else if (o && !file)
			set_option(c, o, value, CONFIG_FLAG, "command line", errors);
		if (o)
			seen[o - options] = true;
		named = named || config;
	}
}

/* ---- what depends on other options or on the machine ---- */

/* Chooses extent_bytes as the arena would by itself (store/arena/arena.h), so that the size is shown and its limits are
 * checked. */
static void derive_extent(struct config *c)
{
	if (c->extent_bytes)
		return;
	c->extent_bytes = c->host_bytes / 4 / MIB * MIB;
	if (c->extent_bytes < 16 * MIB)
		c->extent_bytes = 16 * MIB;
	if (c->extent_bytes > GIB)
		c->extent_bytes = GIB;
}

static void derive_cluster(struct config *c, struct config_errors *errors)
{
	const char *problems[CONFIG_CLUSTER_PROBLEMS_MAX];
	const uint32_t n = config_cluster_derive(c, problems);

	for (uint32_t i = 0; i < n; i++)
		config_complain(errors, "%s", problems[i]);
}

static void derive_listen(struct config *c, struct config_errors *errors)
{
	const char *problem = config_listen_derive(c);

	if (problem)
		config_complain(errors, "%s", problem);
}

static void derive_tenants(struct config *c, struct config_errors *errors)
{
	if (!strcmp(c->peers, "off"))
		c->peers[0] = 0;
	if (c->peers[0] && !c->listen_cert[0])
		config_complain(errors, "peers: without certificates `listen` knows no other daemon: set listen_cert, "
				"listen_key and listen_ca, or peers = off");
	if (!strcmp(c->tenants_file, "off"))
		c->tenants_file[0] = 0;
	if (!c->tenants_file[0])
		return;
	if (c->listen[0] && !c->listen_cert[0])
		config_complain(errors, "tenants: without certificates `listen` knows no tenant: set listen_cert, "
				"listen_key and listen_ca, or listen = off");
}

/* Derives options that depend on others or on the machine, a block for each. fd_socket is derived before it is compared
 * with socket. */
static void derive(struct config *c, struct config_errors *errors)
{
	size_t n = strlen(c->socket);

	if (!c->host_bytes) {
		char bound[MACHINE_WHY_MAX];
		const uint64_t memory = machine_memory("", bound);

		c->host_bytes = memory / 4 < 64 * GIB ? memory / 4 / MIB * MIB : 64 * GIB;
		if (c->host_bytes < MIB)
			c->host_bytes = MIB;
	}
	derive_extent(c);
	if (!c->sum_threads) {
		const uint32_t processors = machine_processors("");

		c->sum_threads = processors < 4 ? 2 : processors > 24 ? 12 : processors / 2;
	}
	if (!strcmp(c->fd_socket, "auto")) {
		if (n > 5 && !strcmp(c->socket + n - 5, ".sock"))
			n -= 5;
		if (n + 3 >= CONFIG_SOCKET_MAX)
			config_complain(errors, "socket: too long for a second socket next to it: shorten it, or set fd_socket");
		else
			snprintf(c->fd_socket, sizeof c->fd_socket, "%.*s.fd", (int)n, c->socket);
	}
	if (!strcmp(c->fd_socket, "off"))
		c->fd_socket[0] = 0;
	derive_listen(c, errors);
	derive_tenants(c, errors);
	if (!strcmp(c->metrics_address, "off"))
		c->metrics_address[0] = 0;
	if (!strcmp(c->disks, "off"))
		c->disks[0] = 0;
	if (!strcmp(c->gpus, "off"))
		c->gpus[0] = 0;
	derive_cluster(c, errors);
	if (!strcmp(c->admin_group, "off"))
		c->admin_group[0] = 0;
	else if (!(c->admin_gid_known = config_group(c->admin_group, &c->admin_gid)))
		config_complain(errors, "admin_group: \"%.64s\": this machine has no group of that name; name one that it has, or give a number, or off", c->admin_group);
	else if (c->admin_gid == ID_UNMAPPED)
		config_complain(errors,
				"admin_group: \"%.64s\": the kernel shows every group by this number that it cannot "
				"map, as of another user namespace: name another one",
				c->admin_group);
	if (!strcmp(c->fd_socket, c->socket))
		config_complain(errors, "fd_socket: the same path as socket: give it one of its own, or leave it out");
	if (!strncmp(c->metrics_address, "unix:", 5) && (!strcmp(c->metrics_address + 5, c->socket) || !strcmp(c->metrics_address + 5, c->fd_socket)))
		config_complain(errors, "metrics_address: the same path as socket or fd_socket: give it one of its own");
}

enum status config_load(struct config *c, int argc, char *const argv[], char *const env[], const char *default_file,
			struct config_errors *errors)
{
	const char *named = NULL;
	struct config_errors quiet = { 0 };

	memset(errors, 0, sizeof *errors);
	config_defaults(c);
	read_flags(c, argc, argv, &named, &quiet);
	config_defaults(c);
	if (!named)
		named = env_value(env, "config");
	if (named && !*named)
		config_complain(errors, "--config, or TERRACE_CONFIG: it is empty: name a file, or leave it out");
	else if (named || default_file)
		read_file(c, named ? named : default_file, named != NULL, errors);
	read_environment(c, env, errors);
	read_flags(c, argc, argv, NULL, errors);
	if (!errors->count)
		derive(c, errors);
	return errors->count ? STATUS_INVALID : STATUS_OK;
}

/* ---- output ---- */

bool config_row(const struct config *c, uint32_t i, struct config_row *out)
{
	if (i >= OPTIONS)
		return false;
	const struct option *o = &options[i];
	const char *text = (const char *)c + o->offset;

	*out = (struct config_row){ .name = o->name, .help = o->help, .origin = origin_words[c->origin[i]],
				     .retired = c->retired[i] };
	if (is_text(o))
		snprintf(out->value, sizeof out->value, "%s", *text ? text : "off");
	else
		format_value(out->value, sizeof out->value, o, *(const uint64_t *)(const void *)text);
	return true;
}

static void print_help_row(FILE *to, const struct option *o)
{
	char flag[40], words[WORDS_MAX];
	size_t n = (size_t)snprintf(flag, sizeof flag, "--%s", o->name);

	for (size_t i = 2; i < n; i++)
		if (flag[i] == '_')
			flag[i] = '-';
	fprintf(to, "  %-22s %s", flag, o->help);
	words_of(o, words);
	fprintf(to, *words ? " (%s) [%s]\n" : "%s [%s]\n", words, o->standard);
}

void config_help(FILE *to)
{
	fputs("Usage: terraced [--OPTION VALUE | --OPTION=VALUE]...\n"
	      "The Terrace daemon: keeps packed KV blocks for LLM engines and lends them out.\n\n"
	      "  --help                 this text\n"
	      "  --version              print the version\n"
	      "  --check-config         read the configuration, print \"ok\" or what is wrong with it, and exit (0 or 2)\n"
	      "  --print-config         print a sample configuration file, and exit\n"
	      "  --config FILE          file of `name = value` lines (also TERRACE_CONFIG) [/etc/terrace/terraced.conf,\n"
	      "                         if there is one]\n\n"
	      "Options, with their defaults. Each is also a variable (TERRACE_HOST_BYTES) and a name in the file\n"
	      "(host_bytes); flags win over the environment, and that over the file. Paths are absolute.\n\n",
	      to);
	for (size_t i = 0; i < OPTIONS; i++)
		print_help_row(to, &options[i]);
	fputs("\nSizes take KiB, MiB, GiB, TiB; times take ms, s, m, h.\n\n"
	      "Exit status: 0 it was stopped, or printed what was asked for; 1 it did not start, or could not print; 2 the configuration is\n"
	      "wrong; 3 it was stopped, and something that hung was left behind (see stop_timeout).\n",
	      to);
}

void config_sample(FILE *to)
{
	fputs("# Configuration of terraced: `name = value` lines. What stands here are the defaults, as comments.\n"
	      "# Made by: terraced --print-config\n",
	      to);
	for (size_t i = 0; i < OPTIONS; i++) {
		const struct option *o = &options[i];
		char words[WORDS_MAX];

		fprintf(to, "\n# %s", o->help);
		words_of(o, words);
		fprintf(to, *words ? " (%s)\n# %s = %s\n" : "%s\n# %s = %s\n", words, o->name, o->standard);
	}
}

int config_answer(const struct config *c, enum status s, const struct config_errors *errors)
{
	if (s != STATUS_OK && !c->version && !c->help && !c->print) {
		config_errors_print(errors, stderr);
		return EXIT_CONFIG;
	}
	if (c->version)
		puts("terraced " TERRACE_VERSION);
	else if (c->help || c->print)
		(c->help ? config_help : config_sample)(stdout);
	else if (!c->check)
		return -1;
	else {
		config_retired_print(c, stderr);
		puts("ok");
	}
	if (!fflush(stdout) && !ferror(stdout))
		return EXIT_SUCCESS;
	fprintf(stderr, "terraced: standard output: %s\n", strerror(errno));
	return EXIT_FAILURE;
}
