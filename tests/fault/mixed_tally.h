/* What an engine of the mixed load counts and times, in a file that it has mapped, so that a killed engine's counts are not lost and
 * others see where it hangs.
 *
 * A thread that only sleeps measures what the machine itself stalls: by how much each of its sleeps is too long. What of that falls into a
 * call is taken off the call's time, which is kept with and without. */
#ifndef TERRACE_TESTS_MIXED_TALLY_H
#define TERRACE_TESTS_MIXED_TALLY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Calls and waits that are timed. */
#define TALLY_CALLS(X)                                                                                                              \
	X(LOOKUP, "lookup") X(LEASE, "lease") X(WAIT, "stream wait") X(CHECK, "lease check") X(RELEASE, "release")                 \
	X(RESERVE, "reserve") X(COMMIT, "commit") X(ABORT, "abort") X(LAUNCH, "launch") X(WARM, "warm") X(FLUSH, "flush")          \
	X(CANCEL, "cancel") X(CLOSE, "close") X(OPEN, "open") /* and bounded by nothing: FIRST, all of what opens the GPU; REOPEN, */  \
	X(FIRST, "first") X(REOPEN, "reopen")                /* what waits for the next daemon */

/* What is counted besides. */
#define TALLY_COUNTS(X)                                                                                                             \
	X(CHECKED, "checked_blocks") X(STORED_GPU, "stored_gpu_blocks") X(STORED_HOST, "stored_host_blocks")                       \
	X(UNKNOWN, "unknown_blocks") /* committed, and nobody said whether in time */                                               \
	X(ATTENDED, "attends") X(OPENED, "open_blocks") X(DEADLINES, "deadlines") X(EXHAUSTED, "exhausted")                        \
	X(CANCELLED, "cancelled") X(MISSES, "misses") X(FLUSHED, "flushes") X(WARMED, "warms") X(SESSIONS, "sessions")             \
	X(REOPENED, "reopens") X(VOID, "void_leases") /* whose daemon died before their copies were all there */

enum tally_call {
#define TALLY_ENUM(name, text) CALL_##name,
	TALLY_CALLS(TALLY_ENUM)
#undef TALLY_ENUM
	CALL_KINDS
};

enum tally_count {
#define TALLY_ENUM(name, text) COUNT_##name,
	TALLY_COUNTS(TALLY_ENUM)
#undef TALLY_ENUM
	COUNT_KINDS
};

/* What a late call was about, and where its time went. */
struct tally_late {
	_Atomic uint64_t kind, us, own_us, status, began_ns;
	_Atomic uint64_t keys, where;       /* as tally_about was told */
	_Atomic uint64_t driver_us, longest_us, longest; /* in calls of the GPU's driver, on any thread; the longest one, and which */
};
enum { TALLY_LATE = 16, TALLY_LATE_US = 100000 };

/* Bucket b counts what took less than 2^b * 16 us and is in no bucket before; the last, all the rest. */
enum { TALLY_BUCKETS = 20, TALLY_BUCKET_US = 16 };

/* Written by one thread of one process; read by anyone. */
struct tally {
	_Atomic uint64_t since_ns;  /* CLOCK_MONOTONIC: the call `kind` has begun; 0: none is under way */
	_Atomic uint64_t kind, keys, where; /* the last two as tally_about was told */
	_Atomic uint64_t worst_us[CALL_KINDS], own_us[CALL_KINDS]; /* the longest; the longest less stalls */
	_Atomic uint64_t buckets[CALL_KINDS][TALLY_BUCKETS];
	_Atomic uint64_t counts[COUNT_KINDS];
	_Atomic uint64_t late_count; /* calls that took longer than TALLY_LATE_US, less stalls: the longest of them */
	struct tally_late late[TALLY_LATE];
};

/* Maps the file, made and zeroed if it is not there. NULL: it cannot be. */
struct tally *tally_open(const char *path);

/* Begins to measure stalls, for the life of the process; once. False: no thread. */
bool tally_meter(void);

/* Around each call. status: its own. */
void tally_begin(struct tally *t, enum tally_call kind);
void tally_end(struct tally *t, uint32_t status);
/* What the calls from here on are about: so many keys, in a tier of these words. */
#define TALLY_WHERES(X) X(NOWHERE, "") X(GPU, "gpu") X(GPU_OR_HOST, "gpu or host") X(HOST, "host")
enum tally_where {
#define TALLY_ENUM(name, text) WHERE_##name,
	TALLY_WHERES(TALLY_ENUM)
#undef TALLY_ENUM
};
void tally_about(struct tally *t, uint32_t keys, enum tally_where where);

/* Times what the library asks of the GPU's driver from now on: its table of functions, as the library has it. Once. */
struct device_ops;
const struct device_ops *tally_driver(const struct device_ops *ops);
void tally_add(struct tally *t, enum tally_count what, uint64_t n);

/* Prints one JSON object: "calls" with worst_ms, own_ms (less stalls) and histogram (name to counts by bucket), "counts", "now" with
 * the call under way (empty: none) and for how many milliseconds, and "late", a row each of the longest that were so. */
void tally_print(const struct tally *t);

#endif
