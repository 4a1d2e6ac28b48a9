/* The list of members while it is being changed: ordered by name, for one thread. */
#ifndef TERRACE_DAEMON_MEMBERSHIP_VIEW_H
#define TERRACE_DAEMON_MEMBERSHIP_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/members/members.h"

struct view {
	struct member *at;           /* MEMBERS_MAX of them */
	uint64_t *until_us;          /* of an `absent` member: the time when it is forgotten */
	bool *seen;                  /* since view_read_begin */
	uint32_t count;
	bool changed;                /* since it was published */
};

/* Makes an empty view. False: no memory. */
bool view_init(struct view *v);
void view_fini(struct view *v);

/* Adds or replaces a member. Its since_us is now_us, unless its epoch is known already. False: the list is full. */
bool view_put(struct view *v, const struct member *m, uint64_t now_us);
void view_remove(struct view *v, const char *name);

/* Between these two calls view_put is called for every member that etcd has. The others are absent from then on and are
 * forgotten at until_us, or at once if that is 0. A member that was absent before keeps its time. */
void view_read_begin(struct view *v);
void view_read_end(struct view *v, uint64_t until_us);

/* Forgets members that have been absent long enough. Returns the time for the next call; UINT64_MAX: never. */
uint64_t view_forget(struct view *v, uint64_t now_us);

#endif
