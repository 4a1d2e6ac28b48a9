/* The option table: every option by flag, variable and file; precedence; everything that must be refused. */
#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/config_retired.h"
#include "daemon/process/data_dir_lock.h"
#include "daemon/process/machine.h"
#include "daemon/process/tenants.h"
#include "tests/held_folder.h"

#include <check.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct config c;
static struct config_errors errors;

static enum status load(char *const env[], int n, const char *const args[])
{
	char *argv[16] = { "terraced" };

	for (int i = 0; i < n; i++)
		argv[i + 1] = (char *)args[i];
	return config_load(&c, n + 1, argv, env, NULL, &errors);
}
#define LOAD(env, ...) load(env, sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *), (const char *[]){ __VA_ARGS__ })

static enum status parse(const char *text)
{
	memset(&errors, 0, sizeof errors);
	config_defaults(&c);
	return config_parse(&c, "f.conf", text, strlen(text), &errors);
}

static const char *value_of(const char *name)
{
	static struct config_row row;

	for (uint32_t i = 0; config_row(&c, i, &row); i++)
		if (!strcmp(row.name, name))
			return row.value;
	ck_abort_msg("no option %s", name);
}

static const char *origin_of(const char *name)
{
	struct config_row row;

	for (uint32_t i = 0; config_row(&c, i, &row); i++)
		if (!strcmp(row.name, name))
			return row.origin;
	ck_abort_msg("no option %s", name);
}

/* A value of each option that is not its default. */
static const char *const other[][2] = {
	{ "data_dir", "/x/y" }, { "socket", "/x/s.sock" }, { "fd_socket", "/x/d.fd" }, { "socket_mode", "0600" },
	{ "admin_group", "4242" }, { "listen", "127.0.0.1:7070" },
	{ "listen_cert", "/x/n.pem" }, { "listen_key", "/x/n.key" }, { "listen_ca", "/x/ca.pem" }, { "tenants", "/x/tenants" },
	{ "secret", "/x/secret" }, { "old_secret", "credential:old" }, { "peers", "dns:a.example, uri:spiffe://b" },
	{ "tenant_metrics", "12" }, { "metrics_address", "[::]:9464" }, { "host_bytes", "3GiB" }, { "extent_bytes", "8MiB" }, { "huge_pages", "off" },
	{ "policy", "s3fifo" }, { "pinned_share", "0.5" }, { "disks", "/a:2MiB,/b:1TiB" }, { "require_disks", "all" }, { "disk_policy", "sieve" },
	{ "recompute_growth", "30600" },
	{ "slab_bytes", "4MiB" }, { "disk_depth", "9" }, { "disk_slow", "3s" }, { "spill_share", "0.5" },
	{ "disk_io", "threads" }, { "catalog", "rebuild" }, { "gpus", "1,0" }, { "gpu_bytes", "2GiB" },
	{ "cuda_plugin", "/x/p.so" }, { "graph_nodes", "77" }, { "advisor_every", "2s" },
	{ "prefetch_bytes", "8MiB" }, { "gpu_prefetch_bytes", "5MiB" }, { "gpu_verify_up", "off" }, { "sessions_max", "7" }, { "leases_max", "8" },
	{ "open_blocks_max", "9" }, { "session_idle", "2s" }, { "lease_ttl", "150ms" }, { "reservation_ttl", "2h" },
	{ "watch_queue", "17" }, { "workers", "3" }, { "sum_threads", "6" }, { "queue_max", "5" }, { "calls_max", "99" },
	{ "connections_max", "4" }, { "call_deadline_max", "7s" }, { "message_bytes_max", "8MiB" },
	{ "drain_timeout", "1s" }, { "stop_timeout", "2s" }, { "busy_poll", "3ms" }, { "adaptive_poll", "off" },
	{ "cluster", "prod-1" }, { "node_name", "n1" }, { "peer_address", "[fd00::1]:7070" },
	{ "etcd_endpoints", "e1.example:2379,10.0.0.1:2379" }, { "etcd_user", "terrace" },
	{ "etcd_password_file", "/x/password" }, { "etcd_ca", "/x/ca" }, { "etcd_cert", "/x/cert" },
	{ "etcd_key", "/x/key" }, { "member_ttl", "3s" }, { "directory", "off" }, { "rdma", "on" },
	{ "peer_spill", "on" }, { "peer_room", "0.5" }, { "log_level", "debug" }, { "log_format", "json" },
};
enum { OTHERS = sizeof other / sizeof other[0] };

/* Options of a cluster want each other. Flags win over them, and so does a variable that stands before them. */
#define COMPANIONS                                                                                                    \
	"TERRACE_CLUSTER=c", "TERRACE_PEER_ADDRESS=h:1", "TERRACE_ETCD_ENDPOINTS=h:2", "TERRACE_ETCD_USER=u",         \
		"TERRACE_ETCD_PASSWORD_FILE=/p", "TERRACE_ETCD_CA=/a", "TERRACE_ETCD_CERT=/b",                                \
		"TERRACE_ETCD_KEY=/k", "TERRACE_SECRET=/s", NULL

START_TEST(every_option_every_way)
{
	const char *name = other[_i][0], *value = other[_i][1];
	char flag[80], joined[120], variable[120], line[120];

	if (!strncmp(name, "listen_", 7) || !strcmp(name, "tenants") || !strcmp(name, "peers"))
		return; /* of no use alone, or without a file: listen_and_its_files, e2e_tenants, e2e_secrets */

	snprintf(flag, sizeof flag, "--%s", name);
	snprintf(joined, sizeof joined, "--%s=%s", name, value);
	for (char *p = joined; p < joined + 2 + strlen(name); p++)
		*p = *p == '_' ? '-' : *p;
	ck_assert_int_eq(LOAD(((char *[]){ COMPANIONS }), flag, value), STATUS_OK);
	ck_assert_str_eq(value_of(name), value);
	ck_assert_str_eq(origin_of(name), "flag");
	ck_assert_int_eq(LOAD(((char *[]){ COMPANIONS }), joined), STATUS_OK);
	ck_assert_str_eq(value_of(name), value);

	snprintf(variable, sizeof variable, "TERRACE_%s=%s", name, value);
	for (char *p = variable; *p != '='; p++)
		*p = *p >= 'a' && *p <= 'z' ? *p - 32 : *p;
	ck_assert_int_eq(load((char *[]){ variable, COMPANIONS }, 0, NULL), STATUS_OK);
	ck_assert_str_eq(value_of(name), value);
	ck_assert_str_eq(origin_of(name), "environment");

	snprintf(line, sizeof line, "%s = %s\n", name, value);
	ck_assert_int_eq(parse(line), STATUS_OK);
	ck_assert_str_eq(value_of(name), value);
	ck_assert_str_eq(origin_of(name), "file");
}
END_TEST

/* Policies of earlier versions: a configuration that names one is read, and goes by the default. */
START_TEST(retired_policies_become_the_default)
{
	static const char *const words[] = { "fifo", "arc", "gdsf" };
	char text[128], out[512] = "";
	FILE *f;

	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		snprintf(text, sizeof text, "disk_policy = %s\n", words[i]);
		ck_assert_int_eq(parse(text), STATUS_OK);
		ck_assert_str_eq(value_of("disk_policy"), "lru");
		ck_assert_str_eq(origin_of("disk_policy"), "file");
		f = fmemopen(out, sizeof out, "w");
		config_retired_print(&c, f);
		fclose(f);
		snprintf(text, sizeof text, "terraced: warning: the daemon has no disk_policy \"%s\" any more and goes by lru: "
					    "name one that --help lists\n", words[i]);
		ck_assert_str_eq(out, text);
	}
	/* What is given later counts, here too. */
	ck_assert_int_eq(LOAD(((char *[]){ "TERRACE_POLICY=fifo", NULL }), "--policy=sieve"), STATUS_OK);
	ck_assert_str_eq(value_of("policy"), "sieve");
	f = fmemopen(out, sizeof out, "w");
	config_retired_print(&c, f);
	fputc('.', f);
	fclose(f);
	ck_assert_str_eq(out, ".");
}
END_TEST

START_TEST(table_is_covered)
{
	struct config_row row;
	uint32_t n = 0;

	config_defaults(&c);
	for (; config_row(&c, n, &row); n++) {
		ck_assert_str_eq(row.origin, "default");
		ck_assert_int_gt(strlen(row.help), 5);
		ck_assert_str_eq(row.name, other[n][0]);
	}
	ck_assert_uint_eq(n, OTHERS);
}
END_TEST

START_TEST(options_of_a_cluster_want_each_other)
{
	static const struct {
		char *flags[6];
		const char *word;
	} rows[] = {
		{ { "--cluster=c", "--peer-address=h:1" }, "etcd_endpoints: off" },
		{ { "--cluster=c", "--etcd-endpoints=h:2" }, "peer_address: off" },
		{ { "--cluster=c", "--etcd-endpoints=h:2", "--peer-address=h:1" }, "secret: off, but there is" },
		{ { "--cluster=c", "--etcd-endpoints=h:2", "--peer-address=h:1", "--tenants=/t" }, NULL },
		{ { "--secret=/s", "--tenants=/t" }, "move them into the table" },
		{ { "--old-secret=/s" }, "set both" },
		{ { "--peers=dns:a" }, "peers: without certificates" },
		{ { "--peer-address=h:1" }, "cluster: it is off" },
		{ { "--cluster=c", "--peer-address=h:1", "--etcd-endpoints=h:2", "--etcd-user=u" }, "set both" },
		{ { "--cluster=c", "--peer-address=h:1", "--etcd-endpoints=h:2", "--etcd-key=/k" }, "name both" },
		{ { "--cluster=c", "--peer-address=h:1", "--etcd-endpoints=h:2", "--etcd-user=u",
		    "--etcd-password-file=/p" }, "in the clear" },
		{ { "--cluster=c", "--peer-address=h:1", "--etcd-endpoints=127.0.0.1:2,127.example:2", "--etcd-user=u",
		    "--etcd-password-file=/p" }, "in the clear" },
		{ { "--cluster=c", "--peer-address=h:1", "--etcd-endpoints=localhost:2,127.0.0.9:2,[::1]:2",
		    "--etcd-user=u", "--etcd-password-file=/p", "--secret=/s" }, NULL },
	};

	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		char *argv[8] = { "terraced" };
		int n = 1;

		for (; n <= 6 && rows[i].flags[n - 1]; n++)
			argv[n] = rows[i].flags[n - 1];
		ck_assert_msg(config_load(&c, n, argv, NULL, NULL, &errors) == (rows[i].word ? STATUS_INVALID : STATUS_OK),
			      "%s: %s", rows[i].word ? rows[i].word : "sound", errors.text);
		ck_assert_msg(!rows[i].word || strstr(errors.text, rows[i].word), "%s", errors.text);
	}
}
END_TEST

START_TEST(precedence)
{
	char path[] = "/tmp/terrace-conf-XXXXXX", file[64];
	int fd = mkstemp(path);
	const char text[] = "workers = 5\nqueue_max = 50\ncalls_max = 500\n";

	ck_assert_int_eq(write(fd, text, sizeof text - 1), sizeof text - 1);
	close(fd);
	snprintf(file, sizeof file, "TERRACE_CONFIG=%s", path);
	ck_assert_int_eq(LOAD(((char *[]){ file, "TERRACE_WORKERS=6", "TERRACE_QUEUE_MAX=60", NULL }), "--workers=7"), STATUS_OK);
	ck_assert_uint_eq(c.workers, 7);
	ck_assert_uint_ge(c.sum_threads, 2);
	ck_assert_uint_le(c.sum_threads, 12);
	ck_assert_uint_eq(c.queue_max, 60);
	ck_assert_uint_eq(c.calls_max, 500);
	ck_assert_uint_eq(c.connections_max, 256);
	ck_assert_str_eq(c.file, path);
	ck_assert_str_eq(origin_of("workers"), "flag");
	ck_assert_str_eq(origin_of("queue_max"), "environment");
	ck_assert_str_eq(origin_of("calls_max"), "file");
	ck_assert_str_eq(origin_of("connections_max"), "default");
	ck_assert_int_eq(LOAD(NULL, "--config", path), STATUS_OK);
	ck_assert_uint_eq(c.workers, 5);
	unlink(path);
	ck_assert_int_eq(LOAD(NULL, "--config", path), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "No such file"));
}
END_TEST

static const struct {
	const char *text, *says;
} bad_files[] = {
	{ "worker = 1\n", "f.conf:1: unknown option \"worker\"" },
	{ "\n# c\nworkers = 1\nworkers = 2\n", "f.conf:4: workers is set twice" },
	{ "workers = 0\n", "f.conf:1: workers: 0 is not within 1 and 64" },
	{ "workers = two\n", "\"two\" is not a whole number" },
	{ "workers = -1\n", "is not a whole number" },
	{ "workers = 99999999999999999999\n", "is not a whole number" },
	{ "workers = 1 2\n", "is not a whole number" },
	{ "workers =\n", "is not a whole number" },
	{ "host_bytes = 4GB\n", "is not a size such as" },
	{ "host_bytes = 18014398509481984KiB\n", "is not a size such as" },
	{ "host_bytes = 1KiB\n", "not within 1MiB and 64TiB" },
	{ "lease_ttl = 5 days\n", "is not a time such as" },
	{ "drain_timeout = 30\n", "f.conf:1: drain_timeout: \"30\" is not a time such as" },
	{ "pinned_share = 1.5\n", "not within 0.01 and 1.0" },
	{ "pinned_share = .5\n", "is not a share" },
	{ "pinned_share = 0.1234\n", "is not a share" },
	{ "gpus = 0,\n", "not of the form" },
	{ "gpus = 0,1,0\n", "the same GPU twice" },
	{ "gpus = first\n", "not of the form" },
	{ "gpus = 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n", "more than 16 GPUs" },
	{ "gpu_bytes = 1MiB\n", "not within 16MiB" },
	{ "cuda_plugin = p.so\n", "not an absolute path" },
	{ "socket_mode = 0888\n", "is not an octal mode" },
	{ "socket_mode = 7777\n", "not within" },
	{ "huge_pages = yes\n", "is not one of auto, off" },
	{ "policy = magic\n", "f.conf:1: policy: \"magic\" is not one of lru, s3fifo, " },
	{ "data_dir = var\n", "not an absolute path" },
	{ "listen = localhost:50051\n", "not an address in numbers" },
	{ "listen = [::1:50051\n", "not an address in numbers" },
	{ "listen_cert = node.pem\n", "not an absolute path" },
	{ "listen = 127.0.0.1\n", "not of the form" },
	{ "cluster = a b\n", "a name has" },
	{ "secret = s\n", "neither an absolute path nor credential:NAME" },
	{ "secret = credential:\n", "a credential's name" },
	{ "old_secret = credential:../x\n", "a credential's name" },
	{ "secret = credential:a/b\n", "a credential's name" },
	{ "peers = dns:a,\n", "empty" },
	{ "peers = node1\n", "not of the form dns:HOST" },
	{ "peers = dns:*.example\n", "has no *" },
	{ "node_name = -x\n", "a name has" },
	{ "peer_address = 0.0.0.0:7070\n", "others cannot reach" },
	{ "peer_address = node1\n", "not HOST:PORT" },
	{ "peer_address = node1:0\n", "not HOST:PORT" },
	{ "etcd_endpoints = http://e:2379\n", "without http://" },
	{ "etcd_endpoints = e:2379,\n", "not HOST:PORT" },
	{ "etcd_endpoints = a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9\n", "more than 8" },
	{ "etcd_key = key.pem\n", "absolute" },
	{ "member_ttl = 1s\n", "not within" },
	{ "listen = 127.0.0.1:99999\n", "the port" },
	{ "metrics_address = localhost:9464\n", "not an address in numbers" },
	{ "metrics_address = [::1\n", "not an address in numbers" },
	{ "metrics_address = ::1:9464\n", "not an address in numbers" },
	{ "metrics_address = []:9464\n", "not an address in numbers" },
	{ "metrics_address = 127.0.0.1\n", "not of the form" },
	{ "metrics_address = 127.0.0.1:65536\n", "the port" },
	{ "metrics_address = unix:m.sock\n", "not an absolute path" },
	{ "[daemon]\nworkers = 1\n", "f.conf:1: sections are not used" },
	{ "workers\n", "f.conf:1: not of the form name = value" },
	{ "  workers 4\n", "f.conf:1: not of the form name = value" },
	{ "socket = /2345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901"
	  "23456789\n", "at most 107 bytes" },
};

static uint64_t memory_of(const char *root)
{
	char why[MACHINE_WHY_MAX];

	return machine_memory(root, why);
}

static uint64_t processors_of(const char *root)
{
	return machine_processors(root);
}

/* What `of` reads, under a folder: its bounds are in files of this name. NULL: there is no such file. */
static uint64_t left_with(uint64_t (*of)(const char *root), const char *name, const char *group, const char *const bounds[3])
{
	static const char *const files[] = { "/sys/fs/cgroup/a/b/", "/sys/fs/cgroup/a/", "/sys/fs/cgroup/", "/proc/self/cgroup" };
	char root[32], path[128], remove[64];

	ck_assert(held_folder_make("/tmp", root, sizeof root));
	snprintf(path, sizeof path, "mkdir -p %s/proc/self %s/sys/fs/cgroup/a/b", root, root);
	ck_assert_int_eq(system(path), 0);
	for (int i = 0; i < 4; i++) {
		const char *text = i < 3 ? bounds[i] : group;

		if (!text)
			continue;
		snprintf(path, sizeof path, "%s%s%s", root, files[i], i < 3 ? name : "");
		FILE *f = fopen(path, "w");

		ck_assert_ptr_nonnull(f);
		fprintf(f, "%s\n", text);
		fclose(f);
	}
	uint64_t left = of(root);

	snprintf(remove, sizeof remove, "rm -r %s", root);
	ck_assert_int_eq(system(remove), 0);
	return left;
}

/* The least of the bounds of a process's cgroup and of those above it; those of others do not count. */
START_TEST(memory_that_cgroups_leave)
{
	const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	static const struct {
		const char *group, *bounds[3];
		uint64_t memory; /* 0: all */
	} cases[] = {
		{ NULL, { "1000", "1000", "1000" }, 0 },
		{ "4:memory:/a", { "1000", "1000", "1000" }, 0 },
		{ "0::/", { "1000", "2000", "3000" }, 3000 },
		{ "4:memory:/\n0::/a", { "1000", "2000", NULL }, 2000 },
		{ "0::/a/b", { "5000", "2000", NULL }, 2000 },
		{ "0::/a/b", { "1000", "max", NULL }, 1000 },
		{ "0::/a/b", { "max", "max", "max" }, 0 },
		{ "0::/a/b", { "99999999999999999999", "", NULL }, 0 },
		{ "0::/a/gone", { "1000", NULL, NULL }, 0 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		ck_assert_msg(left_with(memory_of, "memory.max", cases[i].group, cases[i].bounds) == (cases[i].memory ? cases[i].memory : all), "case %zu", i);
}
END_TEST

#ifndef TERRACE_SANITIZED /* sanitizers live on address space */
START_TEST(memory_that_a_limit_leaves)
{
	char why[MACHINE_WHY_MAX];
	struct rlimit before, less;
	uint64_t memory;

	ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
	less = before;
	less.rlim_cur = 300 << 20;
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &less), 0);
	memory = machine_memory("/nowhere", why);
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
	ck_assert_uint_eq(memory, 300 << 20);
	ck_assert_ptr_nonnull(strstr(why, "ulimit -v"));
	memory = machine_memory("/nowhere", why);
	ck_assert_uint_gt(memory, 300 << 20);
	ck_assert_str_eq(why, "the machine's memory");
}
END_TEST
#endif

START_TEST(processors_that_cgroups_leave)
{
	static const struct {
		const char *group, *bounds[3];
		uint64_t processors; /* 0: all */
	} cases[] = {
		{ NULL, { "100000 100000", "100000 100000", "100000 100000" }, 0 },
		{ "0::/", { "max 100000", "max 100000", "100000 100000" }, 1 },
		{ "0::/a/b", { "max 100000", "150000 100000", NULL }, 1 },
		{ "0::/a/b", { "200000 100000", "100000 100000", NULL }, 1 },
		{ "0::/a/b", { "50000 100000", "max 100000", "max 100000" }, 1 },
		{ "0::/a/b", { "max 100000", "max 100000", NULL }, 0 },
		{ "0::/a/b", { "999999999999 1", "100000", "100000 0" }, 0 },
		{ "0::/a/gone", { "100000 100000", NULL, NULL }, 0 },
	};
	const long online = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t mine, one;
	uint64_t all;

	ck_assert_int_eq(sched_getaffinity(0, sizeof mine, &mine), 0);
	all = (uint64_t)CPU_COUNT(&mine);
	ck_assert_uint_ge(all, 1);
	ck_assert_int_ge(online, (long)all);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		ck_assert_msg(left_with(processors_of, "cpu.max", cases[i].group, cases[i].bounds) == (cases[i].processors ? cases[i].processors : all),
			      "case %zu", i);
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
		if (CPU_ISSET(i, &mine))
			CPU_SET(i, &one);
	ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
	ck_assert_uint_eq(left_with(processors_of, "cpu.max", NULL, (const char *const[3]){ NULL }), 1);
	ck_assert_int_eq(sched_setaffinity(0, sizeof mine, &mine), 0);
}
END_TEST

/* As many disks as there may be, each with a name of some length: a line of 500 bytes, and a comment of any length. */
START_TEST(long_lines)
{
	char disks[CONFIG_TEXT_MAX] = "", text[8192] = "# ";
	struct config_disk list[CONFIG_DISKS_MAX];
	const char *problem;

	memset(text + 2, '-', 4000);
	for (int i = 0; i < CONFIG_DISKS_MAX; i++)
		snprintf(disks + strlen(disks), sizeof disks - strlen(disks), "%s/mnt/nvme%02d/terrace:3500GiB", i ? "," : "", i);
	snprintf(text + strlen(text), sizeof text - strlen(text), "\n disks =\t %s \t; all of them\r\n", disks);
	ck_assert_msg(parse(text) == STATUS_OK, "%s", errors.text);
	ck_assert_str_eq(c.disks, disks);
	ck_assert_uint_eq(config_disks(c.disks, list, &problem), CONFIG_DISKS_MAX);

	strcpy(text, "data_dir = /");
	memset(text + strlen(text), 'a', CONFIG_TEXT_MAX - 1);
	ck_assert_int_eq(parse(text), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "too long"));
	memset(text + strlen(text), 'a', 2000);
	ck_assert_int_eq(parse(text), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "f.conf:1: the line is too long"));
}
END_TEST

START_TEST(a_folder_has_one_name)
{
	static const struct {
		const char *value, *folder, *problem;
	} cases[] = {
		{ "/x:1GiB", "/x", NULL }, { "/x/:1GiB", "/x", NULL }, { "//x//y///:1GiB", "/x/y", NULL }, { "/./x/./y/.:1GiB", "/x/y", NULL },
		{ "/x/.y/..z:1GiB", "/x/.y/..z", NULL }, { "/x/../y:1GiB", "/x/../y", NULL }, { "/:1GiB", "/", NULL }, { "///.//:1GiB", "/", NULL },
		{ "/x:1GiB,/x/:1GiB", NULL, "the same folder twice: name each disk once" }, { "/a/b:1GiB,/a/./b:2GiB", NULL, "the same folder twice: name each disk once" },
		{ "x:1GiB", NULL, "a disk's folder is not an absolute path: begin it with /" },
	};
	struct config_disk list[CONFIG_DISKS_MAX];
	const char *problem;

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		ck_assert_uint_eq(config_disks(cases[i].value, list, &problem), cases[i].folder != NULL);
		if (cases[i].folder)
			ck_assert_str_eq(list[0].folder, cases[i].folder);
		else
			ck_assert_str_eq(problem, cases[i].problem);
	}
}
END_TEST

START_TEST(every_bad_line_is_told)
{
	ck_assert_int_eq(parse("workers\nqueue_max 4\n[a]\ncalls_max = 1\n[b\n"), STATUS_INVALID);
	ck_assert_str_eq(errors.text, "f.conf:1: not of the form name = value\nf.conf:2: not of the form name = value\n"
				      "f.conf:3: sections are not used: leave the line out\nf.conf:4: calls_max: 1 is not within 16 and 65536\n"
				      "f.conf:5: sections are not used: leave the line out\n");
}
END_TEST

START_TEST(good_lines)
{
	ck_assert_msg(parse("\xef\xbb\xbfworkers = 3 ; three\n; c\n\t#c\n\n queue_max: 7 \r\ndata_dir=/a;b") == STATUS_OK, "%s", errors.text);
	ck_assert_uint_eq(c.workers, 3);
	ck_assert_uint_eq(c.queue_max, 7);
	ck_assert_str_eq(c.data_dir, "/a;b");
}
END_TEST

/* As `--config <(command)`: what the command prints comes later than the daemon looks. */
START_TEST(file_is_a_pipe)
{
	const char text[] = "workers = 5\n";
	char path[32];
	int ends[2];

	ck_assert_int_eq(pipe(ends), 0);
	snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
	pid_t writer = fork();

	if (!writer) {
		usleep(50000);
		_exit(write(ends[1], text, sizeof text - 1) != sizeof text - 1);
	}
	close(ends[1]);
	ck_assert_msg(LOAD(NULL, "--config", path) == STATUS_OK, "%s", errors.text);
	ck_assert_uint_eq(c.workers, 5);
	waitpid(writer, NULL, 0);
}
END_TEST

/* The table of tenants too: half of it must not do for the whole. */
START_TEST(table_is_a_pipe)
{
	static const char *const text[] = { "tenant = a\nuids = 1\n", "tenant = b\nuids = 2\n" };
	struct config named = { .host_bytes = 1 << 30 };
	struct tenants *t;
	char path[32];
	int ends[2];

	memset(&errors, 0, sizeof errors);
	ck_assert_int_eq(pipe(ends), 0);
	snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
	pid_t writer = fork();

	for (int i = 0; !writer && i < 2; i++) {
		if (write(ends[1], text[i], strlen(text[i])) != (ssize_t)strlen(text[i]))
			_exit(1);
		usleep(50000);
	}
	if (!writer)
		_exit(0);
	close(ends[1]);
	usleep(25000);
	snprintf(named.tenants_file, sizeof named.tenants_file, "%s", path);
	t = tenants_load(&named, &errors);
	ck_assert_msg(t != NULL, "%s", errors.text);
	ck_assert_uint_eq(t->count, 3);
	tenants_free(t);
	waitpid(writer, NULL, 0);
}
END_TEST

static void leave(const char *folder)
{
	ck_assert_int_eq(chdir("/"), 0);
	ck_assert_int_eq(rmdir(folder), 0);
}

/* A stale socket that this user may not connect to: nobody can tell that it is stale, and nobody says that a daemon answers. */
START_TEST(socket_of_another_user)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char folder[] = "/tmp/terrace-lock-XXXXXX", why[DATA_DIR_LOCK_WHY_MAX];
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	ck_assert_ptr_nonnull(mkdtemp(folder));
	chmod(folder, 0755);
	snprintf(at.sun_path, sizeof at.sun_path, "%s/s", folder);
	ck_assert_int_eq(bind(s, (struct sockaddr *)&at, sizeof at), 0);
	chmod(at.sun_path, 0);
	const bool root = !geteuid();

	if (root)
		ck_assert_int_eq(seteuid(65534), 0);
	ck_assert_int_eq(data_dir_lock_socket(at.sun_path, why, sizeof why), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(why, "cannot tell if a daemon answers at /tmp/"));
	ck_assert_ptr_nonnull(strstr(why, "Permission denied"));
	if (root)
		ck_assert_int_eq(seteuid(0), 0);
	chmod(at.sun_path, 0600);
	ck_assert_int_eq(data_dir_lock_socket(at.sun_path, why, sizeof why), STATUS_OK); /* it was stale */
	ck_assert_int_ne(access(at.sun_path, F_OK), 0);
	ck_assert_int_eq(bind(s = socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at), 0);
	ck_assert_int_eq(listen(s, 0), 0);
	ck_assert_int_eq(data_dir_lock_socket(at.sun_path, why, sizeof why), STATUS_BUSY);
	unlink(at.sun_path);
	leave(folder);
}
END_TEST

START_TEST(claims_say_why)
{
	char folder[] = "/tmp/terrace-lock-XXXXXX", path[CONFIG_TEXT_MAX], why[DATA_DIR_LOCK_WHY_MAX], file[64];
	int first = -1, second = -1;

	memset(path, 'a', sizeof path);
	memcpy(path, "/proc/", 6);
	for (size_t i = 100; i < sizeof path; i += 100)
		path[i] = '/';
	path[sizeof path - 1] = 0;
	ck_assert_int_eq(data_dir_lock(path, &first, why, sizeof why), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(why, "No such file"));

	ck_assert_ptr_nonnull(mkdtemp(folder));
	ck_assert_int_eq(data_dir_lock(folder, &first, why, sizeof why), STATUS_OK);
	ck_assert_int_eq(data_dir_lock(folder, &second, why, sizeof why), STATUS_BUSY);
	ck_assert_ptr_nonnull(strstr(why, "another terraced uses the data folder /tmp/"));
	snprintf(file, sizeof file, "%s/lock", folder);
	ck_assert_int_eq(data_dir_lock_socket(file, why, sizeof why), STATUS_BUSY);
	ck_assert_ptr_nonnull(strstr(why, "exists and is no socket"));
	unlink(file);
	leave(folder);
}
END_TEST

START_TEST(bad_file_is_refused)
{
	ck_assert_int_eq(parse(bad_files[_i].text), STATUS_INVALID);
	ck_assert_msg(strstr(errors.text, bad_files[_i].says) != NULL, "%s", errors.text);
}
END_TEST

START_TEST(bad_flags_are_refused_all_at_once)
{
	ck_assert_int_eq(LOAD(NULL, "--nonsense", "--workers", "0", "--queue-max", "x", "stray", "--calls-max"), STATUS_INVALID);
	ck_assert_uint_eq(errors.count, 5);
	ck_assert_ptr_nonnull(strstr(errors.text, "unknown argument \"--nonsense\""));
	ck_assert_ptr_nonnull(strstr(errors.text, "unknown argument \"stray\""));
	ck_assert_ptr_nonnull(strstr(errors.text, "--calls-max needs a value"));
	ck_assert_int_eq(LOAD(NULL, "--workers=1", "--workers=2"), STATUS_INVALID);
	ck_assert_int_eq(LOAD(NULL, "--config", "/dev/null", "--config=/dev/null"), STATUS_INVALID);
	ck_assert_str_eq(errors.text, "command line: config is set twice: leave one\n");
	ck_assert_int_eq(LOAD(NULL, "--config="), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "TERRACE_CONFIG: it is empty"));
	ck_assert_int_eq(LOAD(NULL, "--socket=/a/b", "--fd-socket=/a/b"), STATUS_INVALID);
	ck_assert_int_eq(load((char *[]){ "TERRACE_HOST_BYTEZ=5", NULL }, 0, NULL), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "unknown variable TERRACE_HOST_BYTEZ"));
	ck_assert_int_eq(load((char *[]){ "TERRACE_ADDRESS=unix:/x", "TERRACE=1", NULL }, 0, NULL), STATUS_OK);
	/* of a service "terrace", in each pod beside it */
	ck_assert_int_eq(load((char *[]){ "TERRACE_SERVICE_HOST=10.0.0.1", "TERRACE_SERVICE_PORT_GRPC=1", "TERRACE_PORT=tcp://10.0.0.1:1",
					  "TERRACE_PORT_1_TCP_ADDR=10.0.0.1", NULL }, 0, NULL), STATUS_OK);
	ck_assert_int_eq(load((char *[]){ "TERRACE_PORTS=5", NULL }, 0, NULL), STATUS_INVALID);
	ck_assert_int_eq(load((char *[]){ "TERRACE_WORKERS=\033[2J", NULL }, 0, NULL), STATUS_INVALID);
	ck_assert_ptr_null(strchr(errors.text, '\033'));
	ck_assert_int_eq(load((char *[]){ "TERRACE_WORKERS=x", NULL }, 0, NULL), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "environment: workers"));
}
END_TEST

START_TEST(many_errors_do_not_overflow)
{
	char text[40000] = "", *told = NULL, more[32];
	uint32_t lines = 0;
	size_t n = 0;

	for (int i = 0; i < 1500; i++)
		strcat(text, "nonsense = 1\n");
	ck_assert_int_eq(parse(text), STATUS_INVALID);
	ck_assert_uint_eq(errors.count, 1500);
	ck_assert_uint_lt(strlen(errors.text), sizeof errors.text);
	ck_assert_int_eq(errors.text[strlen(errors.text) - 1], '\n');
	for (const char *p = errors.text; (p = strchr(p, '\n')); p++)
		lines++;
	FILE *to = open_memstream(&told, &n);

	config_errors_print(&errors, to);
	fclose(to);
	snprintf(more, sizeof more, "\nand %u more\n", 1500 - lines);
	ck_assert_ptr_nonnull(strstr(told, more));
	free(told);
}
END_TEST

/* An address that other machines reach wants certificates, and these come together. */
START_TEST(listen_and_its_files)
{
	struct config_socket at;
	static const char *const far[] = { "0.0.0.0:50051", "192.168.1.4:50051", "[::]:50051" };

	for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
		ck_assert_int_eq(LOAD(NULL, "--listen", far[i]), STATUS_INVALID);
		ck_assert_msg(strstr(errors.text, "no loopback address") && strstr(errors.text, "listen_cert"), "%s", errors.text);
		ck_assert_int_eq(LOAD(NULL, "--listen", far[i], "--listen-cert=/c", "--listen-key=/k", "--listen-ca=/a"), STATUS_OK);
		ck_assert(config_listen(&c, &at) && !at.loopback);
	}
	ck_assert_int_eq(LOAD(NULL, "--listen=[::1]:0", "--listen-cert=/c", "--listen-ca=/a"), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "all three"));
	ck_assert_int_eq(LOAD(NULL, "--listen-cert=/c", "--listen-key=/k", "--listen-ca=/a"), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "no `listen`"));
	ck_assert_int_eq(LOAD(NULL, "--listen=127.0.0.1:0"), STATUS_OK);
	ck_assert(config_listen(&c, &at) && at.loopback);
	ck_assert_int_eq(LOAD(NULL, "--listen=off"), STATUS_OK);
	ck_assert(!config_listen(&c, &at));
}
END_TEST

START_TEST(derived_values)
{
	ck_assert_int_eq(LOAD(NULL, "--socket=/a/b.sock"), STATUS_OK);
	ck_assert_str_eq(c.fd_socket, "/a/b.fd");
	ck_assert_str_eq(c.listen, "");
	ck_assert_uint_ge(c.host_bytes, 1 << 20);
	ck_assert_uint_eq(c.host_bytes % (1 << 20), 0);
	ck_assert_int_eq(LOAD(NULL, "--socket=/a/b", "--fd-socket=off", "--listen=[::1]:0"), STATUS_OK);
	ck_assert_str_eq(c.fd_socket, "");
	ck_assert_str_eq(c.listen, "[::1]:0");
	ck_assert_str_eq(c.metrics_address, "");
	ck_assert_int_eq(LOAD(NULL, "--socket=/a/b", "--metrics-address=unix:/a/b"), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "metrics_address: the same path"));
	ck_assert_int_eq(LOAD(NULL, "--socket=/a/b.sock", "--metrics-address=unix:/a/b.fd"), STATUS_INVALID);
	ck_assert(!c.admin_gid_known);
	ck_assert_str_eq(value_of("admin_group"), "off");
	ck_assert_int_eq(LOAD(NULL, "--admin-group=0"), STATUS_OK);
	ck_assert(c.admin_gid_known);
	ck_assert_uint_eq(c.admin_gid, 0);
	ck_assert_int_eq(LOAD(NULL, "--admin-group=root"), STATUS_OK);
	ck_assert_uint_eq(c.admin_gid, 0);
	ck_assert_int_eq(LOAD(NULL, "--admin-group=4294967294"), STATUS_OK);
	ck_assert_uint_eq(c.admin_gid, 4294967294);
	ck_assert_int_eq(LOAD(NULL, "--admin-group=4294967295"), STATUS_INVALID); /* which stands for no group */
	ck_assert_int_eq(LOAD(NULL, "--admin-group=-1"), STATUS_INVALID);
	ck_assert_int_eq(LOAD(NULL, "--admin-group=no such group"), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(errors.text, "admin_group: \"no such group\": this machine has no group of that name"));
	ck_assert_int_eq(LOAD(NULL, "--check-config", "--print-config", "-h"), STATUS_OK);
	ck_assert(c.check && c.print && c.help);
}
END_TEST

START_TEST(sample_file_is_current_and_sound)
{
	char *made = NULL, have[65536] = "", *plain;
	size_t n = 0;
	FILE *to = open_memstream(&made, &n), *from = fopen(TEST_DATA "/../../deploy/terraced.conf", "r");

	config_sample(to);
	fclose(to);
	ck_assert_ptr_nonnull(from);
	ck_assert_uint_gt(fread(have, 1, sizeof have - 1, from), 100);
	fclose(from);
	ck_assert_msg(!strcmp(made, have), "deploy/terraced.conf is not what --print-config prints");
	/* Each line `# name = value` is valid when the # goes. */
	plain = strdup(made);
	for (char *p = plain; (p = strstr(p, "\n# ")); p++)
		if (strchr(p, '=') && strchr(p + 1, '\n') > strstr(p, " = ") && strstr(p, " = "))
			memcpy(p + 1, "  ", 2);
	ck_assert_msg(parse(plain) == STATUS_OK, "%s", errors.text);
	free(plain);
	free(made);
}
END_TEST

/* A # behind a value would be part of the value. */
static void no_comment_in_value(void *arg, unsigned line, const char *problem, const char *name, const char *value)
{
	(void)line;
	ck_assert_msg(!problem && !strchr(value, '#'), "%s: %s = %s", (const char *)arg, name ? name : problem, value);
}

/* Lines `name = value` of examples, indented or not. */
START_TEST(examples_can_be_copied)
{
	static const char *const documents[] = { "TCP.md", "CLUSTER.md", "TENANTS.md" };
	char path[PATH_MAX], text[16384] = "", *line = NULL;
	size_t size = 0;
	FILE *from;

	snprintf(path, sizeof path, TEST_DATA "/../../deploy/%s", documents[_i]);
	from = fopen(path, "r");
	ck_assert_ptr_nonnull(from);
	while (getline(&line, &size, from) > 0) {
		const char *at = line + strspn(line, " ");

		if (!strncmp(at + strspn(at, "abcdefghijklmnopqrstuvwxyz_"), " = ", 3))
			strncat(text, at, sizeof text - strlen(text) - 1);
	}
	fclose(from);
	free(line);
	ck_assert_ptr_nonnull(strchr(text, '='));
	config_lines(text, strlen(text), no_comment_in_value, (void *)documents[_i]);
	if (strcmp(documents[_i], "TENANTS.md") != 0) /* that table is a file of its own */
		ck_assert_msg(parse(text) == STATUS_OK, "%s", errors.text);
}
END_TEST

/* Any bytes at all: no crash, and a refusal leaves an error. */
START_TEST(random_bytes)
{
	static const char alphabet[] = "workers=\n #;[]: \"queue_max\t\r4GiB\0";
	char text[300];

	srand48(_i);
	for (size_t round = 0; round < 300; round++) {
		size_t n = (size_t)(lrand48() % (long)sizeof text);

		for (size_t i = 0; i < n; i++)
			text[i] = lrand48() % 8 ? alphabet[lrand48() % (long)sizeof alphabet] : (char)lrand48();
		memset(&errors, 0, sizeof errors);
		config_defaults(&c);
		ck_assert_int_eq(config_parse(&c, "f", text, n, &errors) == STATUS_OK, errors.count == 0);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("config");
	TCase *t = tcase_create("config");
	SRunner *r;

	tcase_add_loop_test(t, every_option_every_way, 0, OTHERS);
	tcase_add_test(t, retired_policies_become_the_default);
	tcase_add_test(t, table_is_covered);
	tcase_add_test(t, options_of_a_cluster_want_each_other);
	tcase_add_test(t, precedence);
	tcase_add_test(t, long_lines);
	tcase_add_test(t, a_folder_has_one_name);
	tcase_add_test(t, every_bad_line_is_told);
	tcase_add_test(t, good_lines);
	tcase_add_test(t, file_is_a_pipe);
	tcase_add_test(t, table_is_a_pipe);
	tcase_add_test(t, socket_of_another_user);
	tcase_add_test(t, claims_say_why);
	tcase_add_test(t, memory_that_cgroups_leave);
#ifndef TERRACE_SANITIZED
	tcase_add_test(t, memory_that_a_limit_leaves);
#endif
	tcase_add_test(t, processors_that_cgroups_leave);
	tcase_add_loop_test(t, bad_file_is_refused, 0, sizeof bad_files / sizeof bad_files[0]);
	tcase_add_test(t, bad_flags_are_refused_all_at_once);
	tcase_add_test(t, many_errors_do_not_overflow);
	tcase_add_test(t, listen_and_its_files);
	tcase_add_test(t, derived_values);
	tcase_add_test(t, sample_file_is_current_and_sound);
	tcase_add_loop_test(t, examples_can_be_copied, 0, 3);
	tcase_add_loop_test(t, random_bytes, 0, 4);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
