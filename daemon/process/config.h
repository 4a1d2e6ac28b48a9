/* Configuration: one static table (process/config.c) drives flags, environment, file, --help, the sample file and
 * Admin.Config.
 *
 * An option `host_bytes` is set by the flag --host-bytes 4GiB (or --host-bytes=4GiB), by the variable
 * TERRACE_HOST_BYTES=4GiB, or by the line `host_bytes = 4GiB` of the file. A flag wins over the environment, the
 * environment over the file, the file over the default. Unknown flags, unknown TERRACE_ variables, unknown or repeated
 * names in the file, and values out of range are refused. All errors are reported together, each with its place.
 *
 * Units: bytes take KiB, MiB, GiB, TiB (or none); times take ms, s, m, h (a bare number is ms).
 */
#ifndef TERRACE_DAEMON_PROCESS_CONFIG_H
#define TERRACE_DAEMON_PROCESS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#include "store/status.h"

struct config_errors; /* process/config_errors.h */

enum {
	CONFIG_TEXT_MAX = 512,    /* of a text value, with its NUL */
	CONFIG_OPTIONS_MAX = 80,
	CONFIG_SOCKET_MAX = 108,  /* sun_path */
};

enum config_origin { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_FLAG };

/* Choices, in the order in which the table lists their words. */
enum config_huge { CONFIG_HUGE_AUTO, CONFIG_HUGE_OFF };
enum config_verify { CONFIG_VERIFY_OFF, CONFIG_VERIFY_ON };
enum config_disk_io { CONFIG_IO_AUTO, CONFIG_IO_URING, CONFIG_IO_THREADS };
enum config_require { CONFIG_REQUIRE_NONE, CONFIG_REQUIRE_ONE, CONFIG_REQUIRE_ALL };
enum config_catalog { CONFIG_CATALOG_KEEP, CONFIG_CATALOG_REBUILD };

struct config {
	/* In the table's order. */
	char data_dir[CONFIG_TEXT_MAX], socket[CONFIG_TEXT_MAX], fd_socket[CONFIG_TEXT_MAX], listen[CONFIG_TEXT_MAX];
	char listen_cert[CONFIG_TEXT_MAX], listen_key[CONFIG_TEXT_MAX], listen_ca[CONFIG_TEXT_MAX];
	char tenants_file[CONFIG_TEXT_MAX], secret[CONFIG_TEXT_MAX], old_secret[CONFIG_TEXT_MAX];
	char peers[CONFIG_TEXT_MAX];
	uint64_t tenant_metrics;
	char metrics_address[CONFIG_TEXT_MAX], admin_group[CONFIG_TEXT_MAX];
	char policy[CONFIG_TEXT_MAX], disks[CONFIG_TEXT_MAX], disk_policy[CONFIG_TEXT_MAX];
	char gpus[CONFIG_TEXT_MAX], cuda_plugin[CONFIG_TEXT_MAX];
	char cluster[CONFIG_TEXT_MAX], node_name[CONFIG_TEXT_MAX], peer_address[CONFIG_TEXT_MAX];
	char etcd_endpoints[CONFIG_TEXT_MAX], etcd_user[CONFIG_TEXT_MAX], etcd_password_file[CONFIG_TEXT_MAX];
	char etcd_ca[CONFIG_TEXT_MAX], etcd_cert[CONFIG_TEXT_MAX], etcd_key[CONFIG_TEXT_MAX];
	uint64_t member_ttl_ms, directory, rdma, peer_spill, peer_room_milli;
	uint64_t gpu_bytes;
	uint64_t socket_mode;
	uint64_t host_bytes, extent_bytes, huge_pages;
	uint64_t pinned_share_milli;
	uint64_t graph_nodes, advisor_every_ms, prefetch_bytes, gpu_prefetch_bytes, gpu_verify_up;
	uint64_t recompute_growth, slab_bytes, disk_depth, disk_slow_ms, spill_share_milli, disk_io, catalog, require_disks;
	uint64_t sessions_max, leases_max, open_blocks_max;
	uint64_t session_idle_ms, lease_ttl_ms, reservation_ttl_ms;
	uint64_t watch_queue, workers, sum_threads, queue_max, calls_max, connections_max;
	uint64_t call_deadline_max_ms, message_bytes_max, drain_timeout_ms, stop_timeout_ms, busy_poll_ms, adaptive_poll;
	uint64_t log_level, log_format;

	const struct tenants *tenants; /* of tenants_file (process/tenants.h); NULL: off */
	bool admin_gid_known;         /* admin_group is on, and admin_gid is its number */
	uint64_t admin_gid;

	enum config_origin origin[CONFIG_OPTIONS_MAX];
	const char *retired[CONFIG_OPTIONS_MAX]; /* NULL, or the word that was given and that now stands for another
						  * one */
	char file[CONFIG_TEXT_MAX];   /* the file that was read; empty: none */
	bool help, version, check, print; /* --help, --version, --check-config, --print-config */
};

/* Sets every option to its default. */
void config_defaults(struct config *c);

/* Sets the defaults, then reads the file named by --config or TERRACE_CONFIG (or default_file, if it exists), then the
 * environment, then the flags. Then it derives what one option says of another (fd_socket from socket, host_bytes from
 * the machine's memory). argv as main got it. env: as environ; may be NULL. OK, or INVALID with at least one error;
 * then *c may be used for help, check and print alone. */
enum status config_load(struct config *c, int argc, char *const argv[], char *const env[], const char *default_file,
			struct config_errors *errors);

/* Parses the bytes of a file, named `name` in errors. Fuzzed. */
enum status config_parse(struct config *c, const char *name, const char *bytes, size_t n, struct config_errors *errors);

/* The disks that `disks` names, with folder and size. Returns their number, at most CONFIG_DISKS_MAX. 0 with *problem
 * NULL: off. 0 with *problem: what is wrong with the value. Fuzzed with config_parse. */
enum { CONFIG_DISKS_MAX = 16 };
struct config_disk {
	char folder[CONFIG_TEXT_MAX];
	uint64_t bytes;
};
uint32_t config_disks(const char *value, struct config_disk out[CONFIG_DISKS_MAX], const char **problem);

/* The GPUs that `gpus` names, by number. Returns their number, at most CONFIG_GPUS_MAX. 0 with *all: every GPU of the
 * machine. 0 with *problem: what is wrong with the value. 0 with neither: off. Fuzzed with config_parse. */
enum { CONFIG_GPUS_MAX = 16 };
uint32_t config_gpus(const char *value, uint32_t out[CONFIG_GPUS_MAX], bool *all, const char **problem);

/* What is wrong with the form of an address to listen on; NULL: nothing, or it is off. Addresses are numbers only: a
 * name could resolve to anything. Whether an address beyond loopback has certificates is checked when all options are
 * known. */
const char *config_listen_problem(const char *value);

/* Where /metrics is served: true and *out. False with *problem NULL: off. False with *problem: what is wrong with the
 * value. The address is numbers only, as above, but may be any address. Fuzzed with config_parse. */
struct config_socket {
	struct sockaddr_storage address;
	socklen_t bytes;
	bool loopback; /* only this machine reaches it; also set for a Unix socket */
};
bool config_metrics(const char *value, struct config_socket *out, const char **problem);
/* The number of the group that admin_group names, or gives as a number. False: this machine has no group of that name.
 * It reads the machine's list of groups. */
bool config_group(const char *value, uint64_t *gid);
/* The address of `listen`. False: it is off, or must not be listened on: beyond loopback, without certificates. */
bool config_listen(const struct config *c, struct config_socket *out);
/* Turns `off` into an empty text in listen and in the three options of its certificates. Returns NULL, or a sentence
 * about what does not fit: certificates are three files or none, and an address beyond loopback needs them. */
const char *config_listen_derive(struct config *c);
/* Whether `listen` is served over TLS alone, with the three files. */
bool config_listen_tls(const struct config *c);

/* Turns `off` into an empty text and sets node_name to the machine's name. Writes a sentence for each problem of the
 * cluster's options with each other; returns their number. process/config_cluster.c */
enum { CONFIG_CLUSTER_PROBLEMS_MAX = 12 };
uint32_t config_cluster_derive(struct config *c, const char *problems[CONFIG_CLUSTER_PROBLEMS_MAX]);

/* Row i of the table; false past its end. value: the value in force, in the form that the file takes. */
struct config_row {
	const char *name, *help, *origin;
	const char *retired;           /* NULL, or the word that was given and that now stands for `value` */
	char value[CONFIG_TEXT_MAX];
};
bool config_row(const struct config *c, uint32_t i, struct config_row *out);

void config_help(FILE *to);
/* Prints the sample file: every option at its default, as comments. */
void config_sample(FILE *to);

/* Answers the result of config_load. Prints errors, or what was asked for (--help and the like), and returns the
 * program's exit status (1: it could not be printed). -1: nothing to print, and the daemon is to run. */
int config_answer(const struct config *c, enum status s, const struct config_errors *errors);

#endif
