/* Membership of a cluster, by etcd v3: registers this daemon, and keeps the list of members (members/members.h).
 *
 * A member is a key /terrace/CLUSTER/members/NAME with a message Member (terrace.proto) as its value, under a lease of
 * the option member_ttl, renewed each third of that. One thread does all of it:
 *
 *   connect -> renew or take a lease -> read all keys -> register -> watch -> publish
 *
 * and then waits for events and for the next renewal. Whatever fails ends the session, and the thread goes on with the
 * next endpoint, after a pause once all endpoints have failed. Until then the last list stays.
 *
 * When etcd comes back, a member that it does not have stays, marked `absent`, for the time that a daemon needs to
 * register again: after a long loss every lease has expired, and none of those daemons need have ended.
 *
 * A name is the data folder's that registered first (the file node_id). The same folder takes its key over once, at its
 * start; any other daemon is refused for as long as the key is there. */
#ifndef TERRACE_DAEMON_MEMBERSHIP_MEMBERSHIP_H
#define TERRACE_DAEMON_MEMBERSHIP_MEMBERSHIP_H

#include <stddef.h>

#include "store/status.h"

struct daemon;
struct membership;
struct part_ops;

/* Of a configuration with a cluster. Sets d->members. Starts nothing. IO, EXHAUSTED, INTERNAL: why[size] has a
 * sentence. */
enum status membership_create(struct daemon *d, struct membership **out, char *why, size_t size);
/* Registers from now on. NULL is fine. By main, when the daemon serves. */
void membership_serve(struct membership *m);

/* Stop, end and figures (process/part.h). The stop takes the daemon out of etcd, if that answers within a second. */
extern const struct part_ops membership_part;

#endif
