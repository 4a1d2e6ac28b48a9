/* Sessions of terracectl's own, for calls that an engine makes in one: over the layouts of a file together, or over each layout
 * that the daemon knows by itself, which need not go together. */
#ifndef TERRACE_CTL_SESSIONS_H
#define TERRACE_CTL_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/layouts.h"

struct terrace_session;

enum { CTL_LAYOUTS_KNOWN_MAX = 4096 };

struct ctl_sessions {
	const struct ctl_args *args;
	uint64_t timeout_us;            /* of the calls made in them */
	struct terrace_client *client;
	struct ctl_layouts file;        /* of a session over all layouts of a file */
	struct terrace_layout *layouts; /* that the daemon knows, a session each; NULL with a file */
	uint32_t layout_count;
	bool together;
};

/* Of a lookup's states: the cell's block is in some tier. */
static inline bool ctl_is_stored(uint8_t state)
{
	return state == TERRACE_STATE_HOST || state == TERRACE_STATE_DISK || state == TERRACE_STATE_GPU;
}

/* file NULL: all layouts of the daemon. An exit code; *s needs ctl_sessions_close even if it fails. */
int ctl_sessions_open(const struct ctl_args *args, const char *file, uint64_t timeout_us, struct ctl_sessions *s);
void ctl_sessions_close(struct ctl_sessions *s);

/* Opens a session after the other and calls `each` in it, until one gives another code than CTL_OK, which is returned. id: of the
 * layout; 0 for those of a file. */
int ctl_sessions_each(struct ctl_sessions *s,
		      int (*each)(void *arg, struct ctl_sessions *s, struct terrace_session *session, uint64_t id), void *arg);

#endif
