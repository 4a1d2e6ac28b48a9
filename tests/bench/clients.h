/* What `terrace-bench clients` and its worker program say to each other over the worker's standard input and output.
 *
 * The worker knows libterrace by its public header alone, and links the shared library, so that LD_LIBRARY_PATH makes it a client of
 * any build. A command is one fixed record; each command has one answer.
 */
#ifndef TERRACE_BENCH_CLIENTS_H
#define TERRACE_BENCH_CLIENTS_H

#include <stdint.h>

enum clients_call {
	CLIENTS_LOOKUP,
	CLIENTS_LEASE,
	CLIENTS_PUT,
	CLIENTS_CALLS,              /* of `terrace-bench clients` */
	CLIENTS_ABSENT = CLIENTS_CALLS, /* a lookup of keys that are nowhere, new ones each time */
	CLIENTS_LEASE_SOME,         /* of `tail`: what is there of them */
	CLIENTS_CALLS_ALL
};

enum {
	CLIENTS_KEYS = 512,         /* blocks that a fill stores, and that lookups and leases ask for */
	CLIENTS_LOOKUP_KEYS = 64,   /* a call */
	CLIENTS_LEASE_KEYS = 16,
	CLIENTS_PUT_KEYS = 4,
	CLIENTS_VERIFY_EVERY = 16,  /* one call of so many has its bytes looked at */
	CLIENTS_KEY_BYTES = 16,
	CLIENTS_STEPS = 64,         /* buckets of the histogram for each doubling of a call's time */
	CLIENTS_BUCKETS = 40 * CLIENTS_STEPS,
};

enum clients_command {
	CLIENTS_FILL,               /* stores CLIENTS_KEYS blocks */
	CLIENTS_RUN,
	CLIENTS_MODEL,              /* a session of another model's instead of the one that it has */
	CLIENTS_STORE,              /* puts blocks, some MiB a call, until so many bytes have been tried */
	CLIENTS_FLUSH,
	CLIENTS_FIRST,              /* puts a block until it is stored: ns is how long that took, calls how many tries */
};

struct clients_order {
	uint32_t command;           /* enum clients_command */
	uint32_t call;              /* of CLIENTS_RUN: enum clients_call; of CLIENTS_MODEL: its number, and size */
	uint64_t run_ns;            /* of CLIENTS_RUN: how long, in a closed loop; of CLIENTS_FIRST: at most */
	uint64_t bytes;             /* of CLIENTS_STORE */
};

/* Of one command. The histogram counts calls by nanoseconds: bucket STEPS * log2(ns). */
struct clients_result {
	uint64_t calls, ns;         /* that were made, in so much time */
	uint64_t verified, wrong;   /* blocks whose bytes were looked at; those that were not as put */
	uint64_t missing;           /* blocks that were looked for after their put, and had been evicted */
	uint64_t refused;           /* blocks for which there was no room */
	uint32_t histogram[CLIENTS_BUCKETS];
};

#endif
