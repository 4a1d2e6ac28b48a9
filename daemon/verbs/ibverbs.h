/* The table of real devices: libibverbs, loaded at run time. Nothing of the daemon is linked with it. */
#ifndef TERRACE_DAEMON_VERBS_IBVERBS_H
#define TERRACE_DAEMON_VERBS_IBVERBS_H

struct verbs_ops;

/* Loads the library, which stays loaded. NULL: it cannot be used, and *why has a sentence, which stays valid. By one
 * thread. */
const struct verbs_ops *ibverbs_load(const char **why);

#endif
