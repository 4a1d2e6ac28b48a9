/* What gRPC needs of the process when it starts. If gRPC does not get that, it ends the process, or hangs at its own
 * end.
 */
#ifndef TERRACE_CLIENT_TRANSPORT_LIMITS_H
#define TERRACE_CLIENT_TRANSPORT_LIMITS_H

#include "client/include/terrace.h"

/* TERRACE_OK if the process may have as many more descriptors and threads as gRPC needs. To learn that, it takes them
 * and gives them back. TERRACE_EXHAUSTED, with the kernel's words. */
enum terrace_status client_rpc_room(void);

#endif
