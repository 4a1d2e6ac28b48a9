/* terraced: configuration, locks, parts started in order; a signal; drain; parts stopped in reverse (process/stop.c). */
#include "daemon/block/lock.h"
#include "daemon/cache.h"
#include "daemon/http/metrics.h"
#include "daemon/local/local_calls.h"
#include "daemon/local/socket.h"
#include "daemon/membership/membership.h"
#include "daemon/peers/peers.h"
#include "daemon/process/cache_options.h"
#include "daemon/process/catalog_child.h"
#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/config_retired.h"
#include "daemon/process/daemon.h"
#include "daemon/process/data_dir_lock.h"
#include "daemon/process/disk_log.h"
#include "daemon/process/diskless.h"
#include "daemon/process/folders.h"
#include "daemon/process/gpu_plugin.h"
#include "daemon/process/log.h"
#include "daemon/process/machine.h"
#include "daemon/process/memory_log.h"
#include "daemon/process/signals.h"
#include "daemon/process/stop.h"
#include "daemon/process/tenants.h"
#include "daemon/rpc/server.h"
#include "daemon/secrets/secrets.h"
#include "daemon/threads/pool.h"
#include "daemon/verbs/ibverbs.h"
#include "daemon/verbs/rdma.h"
#include "store/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum { EXIT_LEFT = 3 };

static sigset_t signals;

/* part: whose start it was. The reason names the thing, the cause and what to do. */
static int fail(const char *part, const char *why)
{
	log_error("start_failed", LOG_TEXT("part", part), LOG_TEXT("reason", why));
	return EXIT_FAILURE;
}

/* Until a signal ends it. */
static void serve(struct daemon *d, struct disk_log *disks)
{
	while (!signals_ends(signals_wait(&signals, disk_log_due_ms(disks)))) {
		disk_log_look(disks, d->cache);
		memory_log_look(d->cache);
		secrets_look(d->secrets, daemon_now_us());
	}
}

static int rdma_start(struct daemon *d)
{
	const char *no_ops = "", *why = "";

	if (!d->config->rdma)
		return EXIT_SUCCESS;
	if (rdma_create(ibverbs_load(&no_ops), no_ops, &d->rdma, &why))
		return fail("rdma", why);
	daemon_add(d, &rdma_part, d->rdma);
	return EXIT_SUCCESS;
}

static int peers_start(struct daemon *d)
{
	char why[DATA_DIR_LOCK_WHY_MAX] = "";
	const char *off;

	if (!peers_wanted(d, &off)) {
		if (off)
			log_warn("directory_off", LOG_TEXT("reason", off),
				 LOG_TEXT("used", "the members are known, and their blocks are not"));
		return EXIT_SUCCESS;
	}
	if (peers_create(d, why, sizeof why))
		return fail("peers", why);
	daemon_add(d, &peers_part, d->peers);
	return EXIT_SUCCESS;
}

/* What has started is listed in d, also when a later part cannot start. *metrics: NULL without a metrics_address,
 * *membership without a cluster. */
static int parts_start(struct daemon *d, struct metrics **metrics, struct membership **membership)
{
	const struct config *c = d->config;
	char why[DATA_DIR_LOCK_WHY_MAX] = "";
	struct fd_socket *fd_socket;

	if (workers_create((uint32_t)c->workers, (uint32_t)c->queue_max, &d->workers))
		return fail("workers", "cannot start the worker threads: raise the limit of threads "
				       "(ulimit -u, TasksMax, pids.max)");
	if (c->fd_socket[0]) {
		if (local_create(d, &d->local, why, sizeof why))
			return fail("local_calls", why);
		daemon_add(d, &local_part, d->local);
	}
	if (fd_socket_create(d, c->fd_socket, (unsigned)c->socket_mode, (uint32_t)c->connections_max, &fd_socket, why,
			sizeof why))
		return fail("fd_socket", why);
	daemon_add(d, &fd_socket_part, fd_socket);
	if (c->metrics_address[0]) {
		if (metrics_create(d, METRICS_LIFE_US, metrics, why, sizeof why))
			return fail("metrics", why);
		daemon_add(d, &metrics_part, *metrics);
	}
	if (c->cluster[0]) {
		if (membership_create(d, membership, why, sizeof why))
			return fail("membership", why);
		daemon_add(d, &membership_part, *membership);
	}
	if (rdma_start(d) || peers_start(d))
		return EXIT_FAILURE;
	return rpc_server_create(d, why, sizeof why) ? fail("rpc", why) : EXIT_SUCCESS;
}

/* The daemon's life from top to bottom, in one function on purpose: what the first half starts, the second half
 * ends. */
static int run(const struct config *c, struct secrets *secrets)
{
	struct diskless diskless = { .distrust = false };
	struct daemon d = {
		.config = c, .started_us = daemon_now_us(), .diskless = &diskless, .secrets = secrets
	};
	struct metrics *metrics = NULL;
	struct membership *membership = NULL;
	struct cache_config options;
	struct disk_log disks = { .begun = false };
	const char *cache_why = "";
	char why[DATA_DIR_LOCK_WHY_MAX] = "";
	int lock = -1, code = EXIT_SUCCESS;

	const uint64_t files = machine_files();

	cache_config(c, &options);
	options.options.slab_files = machine_slab_files(c, files);
	if (machine_problem(c, why, sizeof why))
		return fail("limits", why);
	if (data_dir_lock(c->data_dir, &lock, why, sizeof why) || data_dir_lock_socket(c->socket, why, sizeof why) ||
	    (c->fd_socket[0] && data_dir_lock_socket(c->fd_socket, why, sizeof why)) ||
	    diskless_begin(&diskless, c, why, sizeof why))
		return fail("lock", why);
	options.options.distrust_disks = diskless.distrust;
	gpu_plugin_load(c, &options);
	if (cache_create(&options.options, d.started_us, &d.cache, &cache_why)) {
		diskless_end(&diskless, true);
		return fail("storage", cache_why);
	}
	diskless_opened(&diskless);
	cache_thread_enter();
	disk_log_look(&disks, d.cache);
	code = parts_start(&d, &metrics, &membership);
	if (!code) {
		log_info("ready", LOG_TEXT("version", TERRACE_VERSION), LOG_NUM("pid", getpid()),
			 LOG_TEXT("socket", c->socket), LOG_TEXT("fd_socket", c->fd_socket),
			 LOG_TEXT("listen", c->listen), LOG_NUM("port", rpc_server_port(d.rpc)),
			 LOG_TEXT("metrics_address", c->metrics_address),
			 LOG_NUM("metrics_port", metrics_port(metrics)),
			 LOG_NUM("host_bytes", c->host_bytes), LOG_TEXT("disks", c->disks[0] ? c->disks : "off"));
		machine_warn(c, files);
		places_warn(c);
		metrics_serve(metrics);
		rdma_serve(d.rdma);
		peers_serve(d.peers);
		membership_serve(membership);
		sd_notify(false, "READY=1\nSTATUS=serving");
		serve(&d, &disks);
		sd_notify(false, "STOPPING=1\nSTATUS=draining");
		stop_drain(&d, &signals);
		memory_log_look(d.cache);
	}
	const bool ended = stop_daemon(&d, !code, &signals);

	if (ended) {
		peers_destroy(d.peers);
		secrets_destroy(secrets);
	}
	diskless_end(&diskless, ended);
	close(lock);
	code = code ? code : ended ? EXIT_SUCCESS : EXIT_LEFT;
	log_info("stopped", LOG_NUM("pid", getpid()), LOG_NUM("code", code));
	if (!ended)
		_exit(code);
	return code;
}

static struct secrets *secrets_of(const struct config *c, struct config_errors *errors)
{
	const struct secrets_options o = { c->tenants, c->secret, c->old_secret, .wanted = c->cluster[0] };

	return secrets_load(&o, errors);
}

static void warn_retired(const char *option, const char *value, const char *used, const char *why)
{
	log_warn("retired_value", LOG_TEXT("option", option), LOG_TEXT("value", value), LOG_TEXT("used", used),
		 LOG_TEXT("reason", why));
}

int main(int argc, char **argv)
{
	static struct config config;
	struct config_errors errors;
	struct secrets *secrets = NULL;
	int code;

	signals_spare();
	machine_streams();
	if (catalog_child(argc, argv, &code))
		return code;
	enum status s = config_load(&config, argc, argv, environ, "/etc/terrace/terraced.conf", &errors);

	if (!s && config.tenants_file[0])
		s = (config.tenants = tenants_load(&config, &errors)) ? s : STATUS_INVALID;
	if (!s)
		s = (secrets = secrets_of(&config, &errors)) ? s : STATUS_INVALID;
	code = config_answer(&config, places_refuse(&config, s, &errors), &errors);
	if (code >= 0) {
		secrets_destroy(secrets);
		return code;
	}
	log_setup((enum log_level)config.log_level, (enum log_format)config.log_format);
	config_retired_tell(&config, warn_retired);
	signals_block(&signals); /* before any thread, gRPC's own included */
	return run(&config, secrets);
}
