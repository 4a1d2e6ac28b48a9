/* A hostile client: `hostile ADDRESS --seed N --messages N [OPTION]...`.
 *
 * Sends at least so many messages, of every kind in every shape: a third of them by gRPC, the others over the fd socket. Prints the list of kinds with
 * their counts. Options:
 *
 *     --session N, --lease N, --reservation N, --attachment N, --extent N
 *                     handles of others, as often as there are some; of a session what the daemon shows, which no call is to accept
 *     --header FILE   another copy of proto/fdsock.h, for a user who cannot read the source
 *     --beside        others work at the daemon: what stops its service by right (Drain, if this process is an admin) is left out
 *
 * Exit status: 0; 1 the daemon did what it must not do, or a kind was not sent in one of its shapes.
 */
#include "tests/hostile/calls.h"
#include "tests/hostile/packets.h"

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLERS = 3, SOCKETS = 2, SESSIONS = CALLERS + SOCKETS, CALLS_SHARE = 3 /* a call takes longer than a packet */ };

static const struct option options[] = {
	{ "seed", required_argument, NULL, 's' },       { "messages", required_argument, NULL, 'm' },  { "beside", no_argument, NULL, 'b' },
	{ "session", required_argument, NULL, 'S' },    { "lease", required_argument, NULL, 'L' },     { "reservation", required_argument, NULL, 'R' },
	{ "attachment", required_argument, NULL, 'A' }, { "extent", required_argument, NULL, 'E' },    { "header", required_argument, NULL, 'H' },
	{ NULL, 0, NULL, 0 },
};

static struct foreign foreign;
static uint64_t seed = 1, messages = 100000;
static bool beside;
static const char *header = FDSOCK_HEADER;

static void add(uint64_t *list, uint32_t *count, const char *number)
{
	if (*count < FOREIGN_MAX)
		list[(*count)++] = strtoull(number, NULL, 0);
}

static const char *read_options(int argc, char **argv)
{
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's': seed = strtoull(optarg, NULL, 0); break;
		case 'm': messages = strtoull(optarg, NULL, 0); break;
		case 'b': beside = true; break;
		case 'H': header = optarg; break;
		case 'S': add(foreign.session, &foreign.sessions, optarg); break;
		case 'L': add(foreign.lease, &foreign.leases, optarg); break;
		case 'R': add(foreign.reservation, &foreign.reservations, optarg); break;
		case 'A': add(foreign.attachment, &foreign.attachments, optarg); break;
		case 'E': add(foreign.extent, &foreign.extents, optarg); break;
		default: return NULL;
		}
	}
	return optind < argc ? argv[optind] : NULL;
}

static void *send_packets(void *arg)
{
	packets_run(arg, messages - messages / CALLS_SHARE);
	return NULL;
}

/* Sessions whose messages go by gRPC first, then those of the fd socket; each is kept attached. */
static void open_sessions(struct calls *c, struct book *sockets, int keepers[SESSIONS], char *fd_socket, size_t room)
{
	struct book *b = calls_book(c);

	for (int i = 0; i < SESSIONS; i++) {
		struct book *of = i < CALLERS ? b : sockets;
		struct opened *o = &of->open[of->count++];

		calls_open_session(c, o, fd_socket, room);
		keepers[i] = keeper_open(fd_socket, o);
	}
}

static unsigned report(const struct calls *c, const struct packets *p)
{
	unsigned empty = kinds_print(calls_kinds(c)) + kinds_print(packets_kinds(p));

	calls_print_codes(c);
	printf("sent seed=%llu calls=%llu packets=%llu empty=%u faults=%u\n", (unsigned long long)seed, (unsigned long long)kinds_sent(calls_kinds(c)),
	       (unsigned long long)kinds_sent(packets_kinds(p)), empty, faults());
	return empty;
}

int main(int argc, char **argv)
{
	const char *address = read_options(argc, argv), *without = NULL;
	struct book sockets = { .foreign = &foreign };
	int keepers[SESSIONS];
	char fd_socket[256];
	struct packets *p;
	struct calls *c;
	pthread_t thread;
	unsigned empty;

	if (!address) {
		fprintf(stderr, "usage: hostile ADDRESS --seed N --messages N [OPTION]...\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	c = calls_create(address, seed, &foreign);
	open_sessions(c, &sockets, keepers, fd_socket, sizeof fd_socket);
	if (beside && calls_is_admin(c)) {
		without = "Admin.Drain";
		printf("without %s\n", without);
	}
	p = packets_create(fd_socket, header, seed + 1, &sockets, keepers, SESSIONS);
	if (pthread_create(&thread, NULL, send_packets, p))
		abort();
	calls_run(c, messages / CALLS_SHARE, without);
	pthread_join(thread, NULL);
	empty = report(c, p);
	packets_destroy(p);
	calls_destroy(c);
	for (int i = 0; i < SESSIONS; i++)
		close(keepers[i]);
	return faults() || (empty && !without);
}
