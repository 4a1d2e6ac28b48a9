/* A cluster of two daemons on two machines (far.h), with a real etcd on this one. Both show one certificate
 * (raw_tls_certificate), and have one secret.
 */
#ifndef TERRACE_BENCH_CLUSTER_H
#define TERRACE_BENCH_CLUSTER_H

#include <stdbool.h>

#include "tests/bench/far.h"

struct cluster {
	struct far far;
	int etcd_pid;
};

/* False after a word on stderr: this machine has no network namespaces, or no etcd. */
bool cluster_make(struct cluster *c);
void cluster_end(struct cluster *c);

enum { CLUSTER_FLAGS_MAX = 24 };
/* Flags of a daemon, ended by a NULL. They point into the struct. */
struct cluster_flags {
	const char *words[CLUSTER_FLAGS_MAX];
	char listen[64], cert[128], key[128], secret[128], etcd[64];
};
/* Of a daemon named `name` that listens over TLS on that machine; member: it joins the cluster. */
void cluster_flags(const struct cluster *c, const char *name, bool far, bool member, struct cluster_flags *out);
/* Waits until the daemon whose log is NAME's has joined. */
void cluster_await(const char *name);

#endif
