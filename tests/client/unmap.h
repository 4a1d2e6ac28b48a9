/* Has an extent unmapped as the library does itself with a mapping that is of no more use: when its last use ends. */
#ifndef TERRACE_TESTS_CLIENT_UNMAP_H
#define TERRACE_TESTS_CLIENT_UNMAP_H

#include "client/memory/attachment.h"
#include "client/memory/table.h"
#include "client/memory/turn.h"

static inline void unmap_unused(struct client_attachment *a, uint32_t extent)
{
	pthread_mutex_lock(&a->lock);
	for (int writable = 0; writable < 2; writable++) {
		struct client_mapping *m = client_fds_find(a, extent, writable);

		if (m)
			client_fds_retire(a, m);
	}
	client_fds_offer_end(a, extent);
	client_fds_sweep(a);
	pthread_mutex_unlock(&a->lock);
}

#endif
