/* What the tests of local calls share: the thread of local calls before a real cache, with a GPU that is none, and
 * callers by hand. */
#ifndef TERRACE_TESTS_DAEMON_LOCAL_RIG_H
#define TERRACE_TESTS_DAEMON_LOCAL_RIG_H

#include "daemon/local/local_calls.h"
#include "daemon/local/packet.h"
#include "tests/shell.h"

enum { NET_S = 60, CONNECTIONS = 8 }; /* NET_S: ends a wait for what does not come */

extern struct shell s;
extern char hold[64];                  /* copies to the GPU wait while there is such a file */
extern uint8_t packet[2 * FDSOCK_CALL_BYTES_MAX];

void local_rig_open(void);
void local_rig_close(void);

struct fdsock_head head_of(enum fdsock_type type);
/* 0: the other end has hung up. */
ssize_t hear(int fd, void *into, size_t size);
int greet_with(enum fdsock_type type, const uint8_t token[16], struct fdsock_welcome *w);
int caller(void);
/* Sends a call that has so many microseconds. */
void say(int fd, enum fdsock_method method, const void *request, uint64_t left_us);
/* The status of the reply, and the message if it is asked for: to be dropped. */
uint32_t answer(int fd, const ProtobufCMessageDescriptor *type, void *message);
void drop(void *message);

extern Terrace__V1__Keys k1;
Terrace__V1__Keys keys_of(const char *bytes, uint32_t key_bytes);
Terrace__V1__LookupRequest lookup_k1(void);
Terrace__V1__LeaseRequest lease_k1(bool gpu);

/* A session ends with its last process: the socket of one, to be closed. */
extern uint64_t attachment;
int attach(void);

double stat_of(const char *name, const char *labels);
/* Waits until it has that value. */
void until(const char *name, const char *labels, double value);
void held_becomes(uint64_t leases, uint64_t reservations);
/* Copies to the GPU wait from here on, so that a lease there is put aside. */
void hold_copies(void);
void lease_waits(int fd, uint64_t left_us);
void until_a_worker_runs(void);

#endif
