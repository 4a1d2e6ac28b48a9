/* See cluster.h. Without namespaces both daemons would have one address, so there is no cluster then. */
#include "tests/bench/cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/raw_tls.h"
#include "tests/bench/service.h"

#define PORT "7070"
#define ETCD_PORT "2379"
enum { SECRET_BYTES = 32 };

static bool has_etcd(void)
{
	return bench_wait_for(bench_spawn("etcd-version", (const char *const[]){"etcd", "--version", NULL}), 60) == 0;
}

static void secret_make(void)
{
	char path[128], secret[SECRET_BYTES];
	uint64_t seed = 9;
	int fd;

	snprintf(path, sizeof(path), "%s/secret", bench_options.folder);
	for (int i = 0; i < SECRET_BYTES; i++)
		secret[i] = (char)('a' + bench_random(&seed) % 26);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, secret, sizeof(secret)) != sizeof(secret))
		bench_die("%s: %s", path, strerror(errno));
	close(fd);
}

static void etcd_start(struct cluster *c)
{
	char url[64], data[128];

	snprintf(url, sizeof(url), "http://%s:" ETCD_PORT, c->far.own_host);
	snprintf(data, sizeof(data), "%s/etcd", bench_options.folder);
	c->etcd_pid = bench_spawn("etcd", (const char *const[]){
		"etcd", "--name", "n", "--data-dir", data, "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", "n=http://127.0.0.1:2380", "--unsafe-no-fsync", NULL});
}

bool cluster_make(struct cluster *c)
{
	if (!has_etcd()) {
		fprintf(stderr, "terrace-bench: no etcd (Debian's etcd-server)\n");
		return false;
	}
	far_make(&c->far);
	if (c->far.there < 0)
		return false;
	raw_tls_certificate(bench_options.folder);
	secret_make();
	etcd_start(c);
	return true;
}

void cluster_end(struct cluster *c)
{
	bench_stop(c->etcd_pid);
	far_end(&c->far);
}

void cluster_flags(const struct cluster *c, const char *name, bool far, bool member, struct cluster_flags *out)
{
	uint32_t n = 0;

	snprintf(out->listen, sizeof(out->listen), "%s:" PORT, far ? c->far.host : c->far.own_host);
	snprintf(out->cert, sizeof(out->cert), "%s/tls.pem", bench_options.folder);
	snprintf(out->key, sizeof(out->key), "%s/tls.key", bench_options.folder);
	snprintf(out->secret, sizeof(out->secret), "%s/secret", bench_options.folder);
	snprintf(out->etcd, sizeof(out->etcd), "%s:" ETCD_PORT, c->far.own_host);
	const char *const words[] = {
		"--listen", out->listen, "--listen-cert", out->cert, "--listen-key", out->key, "--listen-ca", out->cert,
		"--cluster", "bench", "--node-name", name, "--peer-address", out->listen, "--etcd-endpoints", out->etcd,
		"--secret", out->secret, "--peers", "dns:" RAW_TLS_NAME,
	};
	const uint32_t count = member ? sizeof(words) / sizeof(words[0]) : 8;

	for (; n < count; n++)
		out->words[n] = words[n];
	out->words[n] = NULL;
}

void cluster_await(const char *name)
{
	char line[1024];

	service_await(name, "membership_joined", line, sizeof(line));
}
