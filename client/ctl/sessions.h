/* Sessions of terracectl's own, for calls that an engine makes in a session. There is one session over all layouts of a
 * file, or one session for each layout that the daemon knows, since these need not fit together.
 */
#ifndef TERRACE_CTL_SESSIONS_H
#define TERRACE_CTL_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/layouts.h"

struct terrace_session;

enum { CTL_LAYOUTS_KNOWN_MAX = 4096 };

struct ctl_sessions {
	const struct ctl_args *args;
	uint64_t timeout_us;            /* for the calls made in the sessions */
	struct terrace_client *client;
	struct ctl_layouts file;        /* with a file: the layouts of its one session */
	struct terrace_layout *layouts; /* the layouts that the daemon knows, a session for each; NULL with a file */
	uint32_t layout_count;
	bool together;
};

/* Whether a state of a lookup says that the cell's block is in some tier. */
static inline bool ctl_is_stored(uint8_t state)
{
	return state == TERRACE_STATE_HOST || state == TERRACE_STATE_DISK || state == TERRACE_STATE_GPU;
}

/* A client for sessions, at the address and with the certificate that the command line or the environment gives.
 * terrace_error says why there is none. */
enum terrace_status ctl_client_connect(const struct ctl_args *args, struct terrace_client **out);

/* Opens the client and reads the layouts. file NULL: all layouts of the daemon. Returns an exit code; *s needs
 * ctl_sessions_close even if this fails. */
int ctl_sessions_open(const struct ctl_args *args, const char *file, uint64_t timeout_us, struct ctl_sessions *s);
void ctl_sessions_close(struct ctl_sessions *s);

/* Opens the sessions one after the other and calls `each` in each. Stops when `each` returns another code than CTL_OK,
 * and returns that code. id: of the layout; 0 for a file's session. */
int ctl_sessions_each(struct ctl_sessions *s,
		      int (*each)(void *arg, struct ctl_sessions *s, struct terrace_session *session, uint64_t id), void *arg);

#endif
