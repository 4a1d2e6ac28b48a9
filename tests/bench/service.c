/* The terraced under test: started in a folder of its own, waited for, stopped whatever happens. */
#include "tests/bench/service.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/bench.h"

enum { START_TRIES = 3000, TIMEOUT_US = 30 * 1000 * 1000, FILL_KEYS = 64, FLAGS_MAX = 32 };

void service_check(enum terrace_status status, const char *what)
{
	if (status != TERRACE_OK)
		bench_die("%s: %s: %s", what, terrace_status_text(status), terrace_error());
}

/* The socket must be there before gRPC looks: after a refusal it waits a second. */
static void await_socket(int pid, const char *name, const char *terraced, const char *socket)
{
	const struct timespec pause = {0, 10 * 1000 * 1000};

	for (int i = 0; access(socket, F_OK); i++) {
		if (bench_ended(pid, name))
			bench_die("%s did not start", terraced);
		if (i == START_TRIES)
			bench_die("%s does not come up", terraced);
		nanosleep(&pause, NULL);
	}
}

int service_spawn(const char *name, const char *terraced, const char *host_bytes, char *address, size_t bytes,
		  const char *const *extra)
{
	char data[100], socket[100];
	const char *arguments[FLAGS_MAX] = {terraced, "--data-dir", data, "--socket", socket, "--host-bytes", host_bytes};
	size_t n = 7;
	int pid;

	snprintf(data, sizeof(data), "%s/%s.data", bench_options.folder, name);
	snprintf(socket, sizeof(socket), "%s/%s.sock", bench_options.folder, name);
	snprintf(address, bytes, "unix:%s", socket);
	for (; *extra && n + 1 < FLAGS_MAX; extra++)
		arguments[n++] = *extra;
	arguments[n] = NULL;
	pid = bench_spawn(name, arguments);
	await_socket(pid, name, terraced, socket);
	return pid;
}

/* Whether the log has the event, with its line. */
static bool logged(const char *name, const char *event, char *line, size_t bytes)
{
	char path[128], words[64];
	bool found = false;
	FILE *f;

	bench_log_path(name, path, sizeof(path));
	snprintf(words, sizeof(words), "event=%s ", event);
	f = fopen(path, "re");
	if (!f)
		bench_die("%s cannot be read", path);
	while (!found && fgets(line, (int)bytes, f))
		found = strstr(line, words);
	fclose(f);
	return found;
}

void service_await(const char *name, const char *event, char *line, size_t bytes)
{
	const struct timespec pause = {0, 10 * 1000 * 1000};

	for (int i = 0; i < START_TRIES; i++) {
		if (logged(name, event, line, bytes))
			return;
		nanosleep(&pause, NULL);
	}
	bench_log_print(name);
	bench_die("%s does not log %s: its words are above", name, event);
}

uint16_t service_port(const char *name)
{
	char line[1024];
	const char *at;
	unsigned port = 0;

	service_await(name, "ready", line, sizeof(line));
	at = strstr(line, " port=");
	if (!at || sscanf(at, " port=%u", &port) != 1)
		bench_die("%s does not say its port: %s", name, line);
	return (uint16_t)port;
}

static void start(struct service *s, const char *host_bytes, const char *const *extra)
{
	struct terrace_connect_options options = TERRACE_CONNECT_OPTIONS_INIT;
	const char *flags[FLAGS_MAX];
	char busy[32];
	size_t n = 0;

	for (; *extra && n + 2 < FLAGS_MAX; extra++)
		flags[n++] = *extra;
	if (bench_options.busy_poll) {
		snprintf(busy, sizeof(busy), "--busy-poll=%dms", BENCH_BUSY_POLL_MS);
		flags[n++] = busy;
		options.busy_poll_us = BENCH_BUSY_POLL_MS * 1000;
	}
	flags[n] = NULL;
	s->pid = service_spawn("terraced", bench_options.terraced, host_bytes, s->address, sizeof(s->address), flags);
	options.address = s->address;
	options.timeout_us = TIMEOUT_US;
	options.no_local_calls = bench_options.no_local;
	service_check(terrace_connect(&options, &s->client), "connect");
}

void service_start(struct service *s, const char *host_bytes)
{
	start(s, host_bytes, (const char *const[]){NULL});
}

void service_start_disk(struct service *s, const char *host_bytes, const char *disk_bytes, const char *spill_share)
{
	char disks[128];

	snprintf(disks, sizeof(disks), "%s/disk:%s", bench_options.folder, disk_bytes);
	start(s, host_bytes, (const char *const[]){"--disks", disks, "--spill-share", spill_share, NULL});
}

void service_start_with(struct service *s, const char *host_bytes, const char *const *flags)
{
	start(s, host_bytes, flags);
}

void service_stop(struct service *s)
{
	terrace_disconnect(s->client);
	bench_stop(s->pid);
}

struct terrace_layout service_layout(const char *name, enum terrace_format format, uint32_t layers,
				     uint32_t heads, uint32_t dim)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	terrace_fingerprint(name, strlen(name), l.fingerprint);
	l.layers = layers;
	l.heads = l.total_heads = heads;
	l.head_dim_k = l.head_dim_v = dim;
	l.block_tokens = 16;
	l.k_format = l.v_format = format;
	return l;
}

struct terrace_session *service_session(struct service *s, const struct terrace_layout *layout)
{
	return service_session_of(s->client, layout);
}

struct terrace_session *service_session_of(struct terrace_client *client, const struct terrace_layout *layout)
{
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_session *session = NULL;

	options.engine = "terrace-bench";
	service_check(terrace_session_open(client, layout, 1, &options, &session), "open session");
	if (!terrace_session_borrows(session))
		bench_die("the session does not borrow: %s", terrace_error());
	return session;
}

struct terrace_keys service_keys(uint32_t count, uint32_t key_bytes, uint64_t seed)
{
	uint8_t *bytes = malloc((size_t)count * key_bytes);

	if (!bytes)
		bench_die("out of memory");
	for (size_t i = 0; i < (size_t)count * key_bytes; i++)
		bytes[i] = (uint8_t)bench_random(&seed);
	return (struct terrace_keys){.bytes = bytes, .count = count, .key_bytes = key_bytes};
}

struct terrace_keys service_key(const struct terrace_keys *keys, uint32_t first, uint32_t count)
{
	return (struct terrace_keys){.bytes = keys->bytes + (size_t)first * keys->key_bytes,
				     .count = count,
				     .key_bytes = keys->key_bytes};
}

static void fill_some(struct terrace_session *session, const struct terrace_keys *keys, uint64_t block_bytes,
		      uint64_t *seed)
{
	enum terrace_status statuses[FILL_KEYS];
	struct terrace_reservation *reservation = NULL;

	service_check(terrace_reserve(session, keys, NULL, 0, statuses, &reservation), "reserve");
	for (uint32_t i = 0; i < keys->count; i++) {
		uint64_t *words = terrace_reservation_block(reservation, i, 0);

		service_check(statuses[i], "reserve a block");
		for (uint64_t j = 0; j < block_bytes / 8; j++)
			words[j] = bench_random(seed);
	}
	service_check(terrace_commit(reservation, 0, statuses, NULL), "commit");
	for (uint32_t i = 0; i < keys->count; i++)
		service_check(statuses[i], "commit a block");
}

void service_fill(struct terrace_session *session, const struct terrace_keys *keys, uint64_t block_bytes)
{
	uint64_t seed = 1;

	for (uint32_t i = 0; i < keys->count; i += FILL_KEYS) {
		uint32_t n = keys->count - i < FILL_KEYS ? keys->count - i : FILL_KEYS;
		struct terrace_keys some = service_key(keys, i, n);

		fill_some(session, &some, block_bytes, &seed);
	}
}
