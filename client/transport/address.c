/* Addresses: a Unix socket, or loopback TCP. */
#include "client/transport/address.h"

#include "client/value/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TCP_WAIT_MS = 20 };

/* The path of "unix:PATH" or "unix://PATH", else NULL. */
static const char *path_of(const char *address)
{
	if (strncmp(address, "unix:", 5) != 0)
		return NULL;
	return address + (strncmp(address + 5, "//", 2) ? 5 : 7);
}

static enum terrace_status unix_read(const char *address, const char *path, char target[CLIENT_ADDRESS_MAX])
{
	if (!*path || strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return client_fail(TERRACE_INVALID, "address \"%.120s\": the path is empty or longer than %zu bytes", address,
				   sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
	snprintf(target, CLIENT_ADDRESS_MAX, "unix:%s", path);
	return TERRACE_OK;
}

static bool port_ok(const char *port)
{
	return *port && strlen(port) <= 5 && strspn(port, "0123456789") == strlen(port) && atoi(port) >= 1 &&
	       atoi(port) <= 65535;
}

static enum terrace_status tcp_read(const char *address, char target[CLIENT_ADDRESS_MAX])
{
	const char *colon = strrchr(address, ':');
	struct in_addr host4;
	char host[64];

	if (!colon || colon == address || (size_t)(colon - address) >= sizeof(host) || !port_ok(colon + 1))
		return client_fail(TERRACE_INVALID, "address \"%.120s\" is neither unix:PATH nor HOST:PORT", address);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
	if (!strcmp(host, "localhost"))
		strcpy(host, "127.0.0.1");
	if (!strcmp(host, "[::1]"))
		snprintf(target, CLIENT_ADDRESS_MAX, "ipv6:[::1]:%s", colon + 1);
	else if (inet_pton(AF_INET, host, &host4) == 1 && ntohl(host4.s_addr) >> 24 == 127)
		snprintf(target, CLIENT_ADDRESS_MAX, "ipv4:%s:%s", host, colon + 1);
	else
		return client_fail(TERRACE_UNSUPPORTED, "address \"%.120s\": TCP only to this machine (127.0.0.1, [::1])",
				   address);
	return TERRACE_OK;
}

enum terrace_status client_address_read(const char *address, char target[CLIENT_ADDRESS_MAX])
{
	const char *path = path_of(address);

	return path ? unix_read(address, path, target) : tcp_read(address, target);
}

/* A loopback address in gRPC's form, as client_address_read writes it. 0: it is none. */
static socklen_t tcp_of(const char *address, struct sockaddr_storage *to)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)to;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
	char target[CLIENT_ADDRESS_MAX], *colon;

	if (client_address_read(address, target))
		return 0;
	colon = strrchr(target, ':');
	*colon = '\0';
	memset(to, 0, sizeof(*to));
	if (!strncmp(target, "ipv4:", 5) && inet_pton(AF_INET, target + 5, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)atoi(colon + 1));
		return sizeof(*v4);
	}
	v6->sin6_family = AF_INET6;
	v6->sin6_addr = in6addr_loopback;
	v6->sin6_port = htons((uint16_t)atoi(colon + 1));
	return strncmp(target, "ipv6:", 5) ? 0 : sizeof(*v6);
}

static socklen_t unix_of(const char *path, struct sockaddr_storage *to)
{
	struct sockaddr_un *at = (struct sockaddr_un *)to;

	if (strlen(path) >= sizeof(at->sun_path))
		return 0;
	at->sun_family = AF_UNIX;
	strcpy(at->sun_path, path);
	return sizeof(*at);
}

/* A loopback host answers at once, with a refusal where nothing listens; a Unix socket does so in connect(). */
static int connect_error(int s, const struct sockaddr_storage *to, socklen_t bytes)
{
	struct pollfd p = { .fd = s, .events = POLLOUT };
	socklen_t size = sizeof(int);
	int error = 0;

	if (!connect(s, (const struct sockaddr *)to, bytes) || errno == EAGAIN)
		return 0;
	if (errno != EINPROGRESS)
		return errno;
	if (poll(&p, 1, TCP_WAIT_MS) == 1)
		getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size);
	return error;
}

int client_address_error(const char *address)
{
	const char *path = path_of(address);
	struct client_words words;
	struct sockaddr_storage to;
	socklen_t bytes;
	int s, error;

	client_words_keep(&words);
	bytes = path ? unix_of(path, &to) : tcp_of(address, &to);
	client_words_back(&words);
	if (!bytes)
		return 0;
	s = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	error = s < 0 ? errno : connect_error(s, &to, bytes);
	if (s >= 0)
		close(s);
	return error;
}

static const char *advice(int error)
{
	switch (error) {
	case ENOENT:
	case ECONNREFUSED:
		return "start terraced, or give its address (TERRACE_ADDRESS, or --address of terracectl)";
	case EACCES:
	case EPERM:
		return "this user may not use the socket: add the user to the socket's group, or change socket_mode of terraced";
	case EPROTOTYPE:
		return "that socket is terraced's for memory (fd_socket): give the one for calls (socket)";
	default:
		return "give terraced's address (TERRACE_ADDRESS, or --address of terracectl)";
	}
}

void client_address_words(const char *address, int error, char words[CLIENT_ADDRESS_WORDS_MAX])
{
	const bool absent = error == ENOENT || error == ECONNREFUSED;

	snprintf(words, CLIENT_ADDRESS_WORDS_MAX, "%.200s: %s: %s: %s", address, absent ? "no daemon is there" : "the daemon cannot be reached",
		 strerror(error), advice(error));
}
