/* What gRPC wants of the process when it starts. Where it does not get that it ends the process, or hangs at its own end. */
#ifndef TERRACE_CLIENT_TRANSPORT_LIMITS_H
#define TERRACE_CLIENT_TRANSPORT_LIMITS_H

#include "client/include/terrace.h"

/* TERRACE_OK if the process may have as many descriptors and threads more, by having them once. TERRACE_EXHAUSTED, with the kernel's words. */
enum terrace_status client_rpc_room(void);

#endif
