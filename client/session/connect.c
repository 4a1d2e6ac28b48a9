/* Connects to a daemon, and enforces that a child of fork() uses no handle.
 *
 * pthread_atfork's child handler increments a process generation. A handle keeps the generation in which it was made.
 */
#include "client/session/connect.h"

#include "client/value/inside.h"
#include "client/value/clock.h"
#include "client/driver/driver_thread.h"
#include "client/value/layout.h"
#include "client/transport/address.h"
#include "client/transport/tls.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "health.pb-c.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum {
	CONNECT_OPTIONS_LEAST = offsetof(struct terrace_connect_options, tls_cert)
}; /* bytes of them in their first version */
enum { DEFAULT_TIMEOUT_US = 5000000, SETTLE_TIMEOUT_US = 10000000, ASK_AGAIN_US = 5000, FORBIDDEN_AGAIN_US = 100000 };

static atomic_uint process_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void fork_in_child(void)
{
	atomic_fetch_add_explicit(&process_generation, 1, memory_order_relaxed);
}

static void fork_watch(void)
{
	pthread_atfork(NULL, NULL, fork_in_child);
}

bool client_forked(unsigned generation)
{
	return atomic_load_explicit(&process_generation, memory_order_relaxed) != generation;
}

enum terrace_status client_process_check(unsigned generation)
{
	if (client_forked(generation))
		return client_fail(TERRACE_PRECONDITION, "the handle was made before fork() and is not for the child: connect there anew");
	return TERRACE_OK;
}

void client_hold(struct terrace_client *client)
{
	atomic_fetch_add_explicit(&client->references, 1, memory_order_relaxed);
}

void client_drop(struct terrace_client *client)
{
	if (atomic_fetch_sub_explicit(&client->references, 1, memory_order_acq_rel) != 1)
		return;
	client_rpc_destroy(client->rpc);
	client_local_list_fini(&client->locals);
	free(client);
}

uint64_t client_call_deadline(const struct terrace_client *client, uint64_t timeout_us)
{
	return client_deadline_us(timeout_us ? timeout_us : client->timeout_us);
}

/* Takes the answer of a health call. Whatever it says, the daemon has answered: one that drains still takes some
 * calls. */
static enum terrace_status health_take(void *arg, const struct client_message *message)
{
	struct client_arena arena;
	void *reply;

	(void)arg;
	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &grpc__health__v1__health_check_response__descriptor, message);
	client_arena_fini(&arena);
	return reply ? TERRACE_OK : TERRACE_INTERNAL;
}

static enum terrace_status health_ask(struct terrace_client *client, uint64_t deadline_us)
{
	Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;

	return client_rpc_call(client->rpc, &(struct client_job){
						    .method = CLIENT_HEALTH_CHECK,
						    .deadline_us = deadline_us,
						    .wait_for_ready = true,
						    .first = {.message = &request.base, .last = true},
						    .take = health_take,
					    });
}

bool client_ask_again(uint64_t deadline_us)
{
	if (client_now_us() + ASK_AGAIN_US >= deadline_us)
		return false;
	nanosleep(&(struct timespec){ .tv_nsec = ASK_AGAIN_US * 1000 }, NULL);
	return true;
}

enum terrace_status client_await_daemon(struct terrace_client *client, uint64_t deadline_us)
{
	struct client_words words;
	enum terrace_status status;

	client_words_keep(&words);
	status = health_ask(client, deadline_us);
	/* The first to use a connection after the daemon's death is told of that, and does not wait for the next
	 * one. */
	while (status == TERRACE_UNAVAILABLE && client_ask_again(deadline_us))
		status = health_ask(client, deadline_us);
	if (!status)
		client_words_back(&words);
	if (status == TERRACE_DEADLINE && !client_rpc_connected(client->rpc))
		return client_fail(TERRACE_UNAVAILABLE, "%.200s: no daemon has answered in time: see if it starts, or give it more time",
				   client_rpc_address(client->rpc));
	return status;
}

static const char *address_of(const struct terrace_connect_options *options)
{
	const char *address = options->address;

	if (!address)
		address = getenv("TERRACE_ADDRESS");
	return address && *address ? address : CLIENT_ADDRESS_DEFAULT;
}

/* A daemon that starts soon is waited for, but leave to use its socket does not come by itself. It is asked twice,
 * since a daemon that starts may be making the folder of its socket just now. */
static bool forbidden(const char *address)
{
	for (int i = 0; i < 2; i++) {
		const int error = client_address_error(address);

		if (error != EACCES && error != EPERM)
			return false;
		if (!i)
			nanosleep(&(struct timespec){ .tv_nsec = FORBIDDEN_AGAIN_US * 1000 }, NULL);
	}
	return true;
}

static enum terrace_status connect_refused(struct terrace_client *client, const char *address, int error, enum terrace_status status)
{
	char words[CLIENT_ADDRESS_WORDS_MAX];

	terrace_disconnect(client);
	client_address_words(address, error, words);
	return client_fail(status, "connect: %s", words);
}

/* Ends a connection whose certificate is not accepted. It fails at once, as waiting does not help. */
static enum terrace_status connect_distrusted(struct terrace_client *client, const char *words)
{
	terrace_disconnect(client);
	return client_fail(TERRACE_DENIED, "connect: %s", words);
}

static enum terrace_status open_channel(struct terrace_client *client, const struct terrace_connect_options *o)
{
	const struct client_tls_options given = { o->tls_cert, o->tls_key, o->tls_ca, o->tls_name };
	struct client_tls tls;
	enum terrace_status status = client_tls_read(address_of(o), &given, &tls);

	return status ? status : client_rpc_open(address_of(o), o->busy_poll_us, &tls, &client->rpc);
}

/* Copies the options, opens the channel, and then waits for the daemon. Long because each failure has its own sentence:
 * a socket that may not be opened, a certificate, and no daemon in time need different steps from the user. */
enum terrace_status terrace_connect(const struct terrace_connect_options *options, struct terrace_client **out)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	char words[CLIENT_TLS_WORDS_MAX];
	struct terrace_client *client;
	enum terrace_status status;

	if (!out)
		return client_fail(TERRACE_INVALID, "connect: the pointer for the client is NULL");
	if (options && !client_options_copy(&o, sizeof(o), options, CONNECT_OPTIONS_LEAST))
		return client_fail(TERRACE_INVALID, "connect: the options' size is not set: begin them with TERRACE_CONNECT_OPTIONS_INIT");
	pthread_once(&fork_once, fork_watch);
	client = calloc(1, sizeof(*client));
	if (!client)
		return client_fail(TERRACE_EXHAUSTED, "connect: no memory");
	atomic_init(&client->references, 1);
	client->generation = atomic_load_explicit(&process_generation, memory_order_relaxed);
	client->timeout_us = o.timeout_us ? o.timeout_us : DEFAULT_TIMEOUT_US;
	client->busy_poll_us = o.busy_poll_us;
	client->no_borrow = o.no_borrow;
	client->no_local_calls = o.no_local_calls;
	client->no_adaptive_poll = o.no_adaptive_poll;
	status = open_channel(client, &o);
	if (status) {
		free(client);
		return client_fail_in(status, "connect");
	}
	client_local_list_init(&client->locals);
	if (forbidden(address_of(&o)))
		return connect_refused(client, address_of(&o), EACCES, TERRACE_DENIED);
	if (client_rpc_tls(client->rpc)->on && client_tls_problem(address_of(&o), client_rpc_tls(client->rpc), words))
		return connect_distrusted(client, words);
	status = client_await_daemon(client, client_call_deadline(client, 0));
	if (status) {
		const int error = client_address_error(address_of(&o));

		if (error)
			return connect_refused(client, address_of(&o), error, status);
		if (client_tls_problem(address_of(&o), client_rpc_tls(client->rpc), words))
			return connect_distrusted(client, words);
		terrace_disconnect(client);
		return client_fail_in(status, "connect");
	}
	*out = client;
	return TERRACE_OK;
}

void terrace_disconnect(struct terrace_client *client)
{
	if (!client || client_forked(client->generation))
		return;
	if (client_rpc_in_background(client->rpc) || client_after_inside()) {
		client_fail(TERRACE_PRECONDITION, "disconnect: a callback would wait for itself: call it from another thread");
		return;
	}
	client_local_list_cancel(&client->locals);
	client_rpc_close(client->rpc);
	client_drop(client);
	/* a process that ends now does not end amid them */
	client_driver_tasks_settle(client_deadline_us(SETTLE_TIMEOUT_US));
}
