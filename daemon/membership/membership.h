/* Membership of a cluster, by etcd v3: registers this daemon, and keeps the list of members (members/members.h).
 *
 * A member is a key /terrace/CLUSTER/members/NAME with a message Member (terrace.proto) as its value. The key is under
 * a lease of the option member_ttl, which is renewed each third of that. One thread does all of it:
 *
 * connect -> renew or take a lease -> read all keys -> register -> watch -> publish
 *
 * Then it waits for events and for the next renewal. Any failure ends the session, and the thread goes on with the next
 * endpoint; once all endpoints have failed, it pauses before that. Until the next success the last list stays.
 *
 * When etcd comes back, it may lack a member of the list. Such a member stays, marked `absent`, for the time that a
 * daemon needs to register again. After a long loss every lease has expired, though none of those daemons need have
 * ended.
 *
 * A name belongs to the data folder that registered it first (the file node_id). The same folder takes its key over
 * once, at its start; any other daemon is refused for as long as the key exists.
 */
#ifndef TERRACE_DAEMON_MEMBERSHIP_MEMBERSHIP_H
#define TERRACE_DAEMON_MEMBERSHIP_MEMBERSHIP_H

#include <stddef.h>

#include "store/status.h"

struct daemon;
struct membership;
struct part_ops;

/* Makes the membership, for a configuration with a cluster. Sets d->members. Starts no thread. IO and CORRUPT (the file
 * node_id), EXHAUSTED: why[size] has a sentence. */
enum status membership_create(struct daemon *d, struct membership **out, char *why, size_t size);
/* Starts registering. NULL allowed. Called by main, when the daemon serves. */
void membership_serve(struct membership *m);

/* Stop, end and figures (process/part.h). The stop takes the daemon out of etcd, if that answers within a second. */
extern const struct part_ops membership_part;

#endif
