/* The daemon's certificate as gRPC's client wants it: read anew when a file has changed. One thread. */
#ifndef TERRACE_DAEMON_PEERS_CREDENTIALS_H
#define TERRACE_DAEMON_PEERS_CREDENTIALS_H

#include <grpc/grpc_security.h>
#include <stdbool.h>

#include "daemon/process/log_unwritten.h"
#include "proto/tls.h"

struct peer_credentials {
	struct tls_files files;        /* kept by the caller */
	struct tls_stamp stamp;
	bool read;                     /* files of that stamp */
	struct log_again failed;
};

/* New credentials, for grpc_channel_credentials_release, if the files have changed since the last ones. NULL: they have
 * not, or cannot be used; then the log says why, once in a while. */
grpc_channel_credentials *credentials_look(struct peer_credentials *c);

#endif
