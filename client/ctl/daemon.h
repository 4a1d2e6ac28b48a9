/* Unary calls to the daemon, over the library's internal rpc layer: Admin and Health are no part of the
 * public header. */
#ifndef TERRACE_CTL_DAEMON_H
#define TERRACE_CTL_DAEMON_H

#include "client/transport/grpc.h"

struct client_arena;
struct ctl_args;

enum { CTL_TIMEOUT_US = 5 * 1000 * 1000 };

struct ctl_daemon {
	struct client_rpc *rpc;
	const char *address;
	struct client_arena *arena; /* of the last reply; NULL: there was none */
};

/* Makes the channel, if a daemon can be reached at the address: else it says why at once. An exit code; *d needs ctl_daemon_close even if it fails. */
int ctl_daemon_open(const struct ctl_args *args, struct ctl_daemon *d);
void ctl_daemon_close(struct ctl_daemon *d);

/* One call. timeout_us 0: CTL_TIMEOUT_US. *reply, of `type`, is valid until the next call or close; written
 * only on CTL_OK. Else an exit code, and stderr has said why. */
int ctl_daemon_call(struct ctl_daemon *d, enum client_method method, const ProtobufCMessage *request,
		    const ProtobufCMessageDescriptor *type, uint64_t timeout_us, void *reply);

/* For what connects by terrace_connect, which would wait for a daemon: says at once if none can be reached, and that the address is none. An exit
 * code. */
int ctl_daemon_check(const struct ctl_args *args);

/* The exit code for a status of libterrace, told on stderr with the words of terrace_error(). what: the command, or the address. */
int ctl_status_failed(const char *what, enum terrace_status status);

#endif
