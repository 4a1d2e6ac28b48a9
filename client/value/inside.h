/* Which of the library's threads this is. */
#ifndef TERRACE_CLIENT_VALUE_INSIDE_H
#define TERRACE_CLIENT_VALUE_INSIDE_H

#include <stdbool.h>

/* True on the thread of gpu/stream_thread.h, which streams may wait for: it waits for none of them. */
bool client_after_inside(void);
/* That thread says so of itself. */
void client_after_enter(void);

#endif
