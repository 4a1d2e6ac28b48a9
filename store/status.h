/* The one list of outcomes, shared by every part of Terrace.
 *
 * A leaf: it includes nothing of the project, and anything may include it. The public enum of
 * client/include/terrace.h and the wire enum of proto/terrace.proto carry the same numbers
 * (client/value/status.c and daemon/rpc/reply.c assert it at compile time).
 *
 * OK is 0. MISS, BUSY and CANCELLED are outcomes that callers branch on, not failures.
 */
#ifndef TERRACE_STORE_STATUS_H
#define TERRACE_STORE_STATUS_H

/*  name, value, text */
#define STATUS_MAP(X)                                                                              \
	X(OK, 0, "ok")                                                                             \
	X(MISS, 1, "miss")                                                                         \
	X(BUSY, 2, "busy, try again")                                                              \
	X(CANCELLED, 3, "cancelled")                                                               \
	X(INVALID, 4, "invalid argument")                                                          \
	X(NOT_FOUND, 5, "not found")                                                               \
	X(EXISTS, 6, "already exists")                                                             \
	X(EXHAUSTED, 7, "resource exhausted")                                                      \
	X(DEADLINE, 8, "deadline exceeded")                                                        \
	X(UNAVAILABLE, 9, "unavailable")                                                           \
	X(PRECONDITION, 10, "failed precondition")                                                 \
	X(DENIED, 11, "permission denied")                                                         \
	X(CORRUPT, 12, "data corrupt")                                                             \
	X(UNSUPPORTED, 13, "not supported")                                                        \
	X(STALE, 14, "stale epoch or generation")                                                  \
	X(IO, 15, "input/output error")                                                            \
	X(INTERNAL, 16, "internal error")

enum status {
#define STATUS_ENUM(name, value, text) STATUS_##name = value,
	STATUS_MAP(STATUS_ENUM)
#undef STATUS_ENUM
	STATUS_COUNT
};

/* The fixed English text of a status; "unknown status" for a number outside the list. Any thread. */
const char *status_text(enum status s);

/* The upper-case name of a status ("EXHAUSTED"), as logs, --json output and metrics print it;
 * "UNKNOWN" for a number outside the list. Any thread. */
const char *status_name(enum status s);

#endif
