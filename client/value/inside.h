/* Tells which of the library's threads is running. */
#ifndef TERRACE_CLIENT_VALUE_INSIDE_H
#define TERRACE_CLIENT_VALUE_INSIDE_H

#include <stdbool.h>

/* True on the thread of gpu/stream_thread.h. Streams may wait for that thread, so it must wait for none of them. */
bool client_after_inside(void);
/* Called by that thread when it starts. */
void client_after_enter(void);

#endif
