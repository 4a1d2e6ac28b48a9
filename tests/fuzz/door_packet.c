/* Any packet on the fd socket: known and well formed, or refused. What is accepted has the length its type says. */
#include <stdlib.h>
#include <string.h>

#include "daemon/door.h"
#include "proto/fdsock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fdsock_release release;

	switch (door_packet_type(data, size)) {
	case 0:
		return 0;
	case FDSOCK_HELLO:
		if (size != sizeof(struct fdsock_hello))
			abort();
		return 0;
	case FDSOCK_MAP:
		if (size != sizeof(struct fdsock_map))
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
