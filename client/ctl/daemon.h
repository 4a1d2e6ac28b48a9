/* Unary calls to the daemon, over the library's internal rpc layer: the public header does not have Admin and Health.
 */
#ifndef TERRACE_CTL_DAEMON_H
#define TERRACE_CTL_DAEMON_H

#include "client/transport/grpc.h"

struct client_arena;
struct ctl_args;

enum { CTL_TIMEOUT_US = 5 * 1000 * 1000 };

struct ctl_daemon {
	struct client_rpc *rpc;
	const char *address;
	struct client_arena *arena; /* memory of the last reply; NULL: there was none */
};

/* Makes the channel, if a daemon can be reached at the address; otherwise says why at once. Returns an exit code. *d
 * needs ctl_daemon_close even if this fails. */
int ctl_daemon_open(const struct ctl_args *args, struct ctl_daemon *d);
void ctl_daemon_close(struct ctl_daemon *d);

/* Makes one call. timeout_us 0: CTL_TIMEOUT_US. *reply, of `type`, is valid until the next call or close, and is
 * written only on CTL_OK. Otherwise returns an exit code, and stderr has the reason. */
int ctl_daemon_call(struct ctl_daemon *d, enum client_method method, const ProtobufCMessage *request,
		    const ProtobufCMessageDescriptor *type, uint64_t timeout_us, void *reply);

/* Says at once if no daemon can be reached, or if the address is none; for commands that then connect by
 * terrace_connect, which would wait for a daemon. Returns an exit code. */
int ctl_daemon_check(const struct ctl_args *args);

/* Returns the exit code for a status of libterrace, and prints it on stderr with the words of terrace_error(). what:
 * the command, or the address. */
int ctl_status_failed(const char *what, enum terrace_status status);

#endif
