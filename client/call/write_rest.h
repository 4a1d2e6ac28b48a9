/* What has been reserved is not writable for long after: memory/writing.c, at the right times. */
#ifndef TERRACE_CLIENT_CALL_WRITE_REST_H
#define TERRACE_CLIENT_CALL_WRITE_REST_H

#include "client/memory/places.h"

/* Has the attachment's writable pages looked at from now on, if these places have some. Costs nothing while that is
 * done. */
void client_write_rest(struct client_attachment *attachment, const struct client_places *places);

#endif
