/* Any packet on the fd socket, at the local socket or as a local call: known and well formed, or refused. What is
 * accepted has the length its type says, and a local call's request lies inside of it. */
#include "daemon/local/packet.h"
#include "daemon/local/socket.h"
#include "daemon/rpc/handler.h"
#include "proto/fdsock.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void local_call(const uint8_t *data, size_t size)
{
	struct local_asked asked;

	if (!local_call_read(data, size, &asked))
		return;
	if (size > FDSOCK_CALL_BYTES_MAX || asked.request != data + sizeof(struct fdsock_call) ||
	    asked.bytes != size - sizeof(struct fdsock_call) || !local_call_method(asked.method)->unary)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fdsock_release release;

	local_call(data, size);
	switch (fd_socket_packet_type(data, size)) {
	case 0:
		return 0;
	case FDSOCK_HELLO:
	case FDSOCK_CALLER:
		if (size != sizeof(struct fdsock_hello))
			abort();
		return 0;
	case FDSOCK_MAP:
		if (size != sizeof(struct fdsock_map))
			abort();
		return 0;
	case FDSOCK_PREMAP:
		if (size != sizeof(struct fdsock_premap))
			abort();
		return 0;
	case FDSOCK_LISTEN:
		if (size != sizeof(struct fdsock_head))
			abort();
		return 0;
	case FDSOCK_UNMAPPED:
		if (size != sizeof(struct fdsock_unmapped))
			abort();
		return 0;
	case FDSOCK_RELEASE:
		if (size > sizeof(release) || size < offsetof(struct fdsock_release, leases))
			abort();
		memcpy(&release, data, size);
		if (release.count > FDSOCK_LEASES_MAX ||
		    size != offsetof(struct fdsock_release, leases) + 8 * (size_t)release.count)
			abort();
		return 0;
	default:
		abort();
	}
}
