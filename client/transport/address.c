/* Addresses: a Unix socket, loopback TCP, or any TCP over TLS. */
#include "client/transport/address.h"

#include "client/value/clock.h"
#include "client/value/status.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
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

/* HOST:PORT or [HOST]:PORT. False: it has not that form. */
static bool host_of(const char *address, char host[CLIENT_ADDRESS_MAX], const char **port)
{
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;

	if (!n || n >= CLIENT_ADDRESS_MAX || !port_ok(colon + 1))
		return false;
	if (address[0] == '[' && address[n - 1] == ']')
		snprintf(host, CLIENT_ADDRESS_MAX, "%.*s", (int)(n - 2), address + 1);
	else
		snprintf(host, CLIENT_ADDRESS_MAX, "%.*s", (int)n, address);
	if (!strcmp(host, "localhost"))
		strcpy(host, "127.0.0.1");
	*port = colon + 1;
	return true;
}

/* A last label of digits alone is a damaged address of numbers (10.0.0), which a resolver may take for another one. */
static bool name_ok(const char *host)
{
	const char *dot = strrchr(host, '.'), *last = dot ? dot + 1 : host;

	for (const char *p = host; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-')
			return false;
	return *host && host[0] != '-' && (!*last || last[strspn(last, "0123456789")]);
}

static enum terrace_status tcp_read(const char *address, bool tls, char target[CLIENT_ADDRESS_MAX])
{
	struct in6_addr host6;
	struct in_addr host4;
	char host[CLIENT_ADDRESS_MAX];
	const char *port;
	int n;

	if (!host_of(address, host, &port))
		return client_fail(TERRACE_INVALID, "address \"%.120s\" is neither unix:PATH nor HOST:PORT", address);
	const bool v6 = address[0] == '[' && inet_pton(AF_INET6, host, &host6) == 1,
		   v4 = !v6 && inet_pton(AF_INET, host, &host4) == 1;

	if (!tls && !(v6 && IN6_IS_ADDR_LOOPBACK(&host6)) && !(v4 && ntohl(host4.s_addr) >> 24 == 127))
		return client_fail(
			TERRACE_UNSUPPORTED,
			"address \"%.120s\": TCP without TLS only to this machine (127.0.0.1, [::1]): for another one "
			"give a certificate, its key and the file of CAs (TERRACE_TLS_CERT, TERRACE_TLS_KEY, "
			"TERRACE_TLS_CA)",
			address);
	if (!v6 && !v4 && !name_ok(host))
		return client_fail(
			TERRACE_INVALID,
			"address \"%.120s\": the host is neither an address, as 10.0.0.1 or [fd00::1], nor a name",
			address);
	n = snprintf(target, CLIENT_ADDRESS_MAX, v6 ? "ipv6:[%s]:%s" : v4 ? "ipv4:%s:%s" : "dns:%s:%s", host, port);
	return n < CLIENT_ADDRESS_MAX ? TERRACE_OK
				      : client_fail(TERRACE_INVALID, "address \"%.120s\" is too long", address);
}

enum terrace_status client_address_read(const char *address, bool tls, char target[CLIENT_ADDRESS_MAX])
{
	const char *path = path_of(address);

	return path ? unix_read(address, path, target) : tcp_read(address, tls, target);
}

bool client_address_is_unix(const char *address)
{
	return path_of(address) != NULL;
}

void client_address_host(const char *address, char *host, size_t size)
{
	char whole[CLIENT_ADDRESS_MAX] = "";
	const char *port;

	host_of(address, whole, &port);
	snprintf(host, size, "%s", whole);
}

/* A TCP address in numbers. 0: it is none. */
static socklen_t tcp_of(const char *address, struct sockaddr_storage *to)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)to;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
	char host[CLIENT_ADDRESS_MAX];
	const char *port;

	memset(to, 0, sizeof(*to));
	if (!host_of(address, host, &port))
		return 0;
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)atoi(port));
		return sizeof(*v4);
	}
	if (inet_pton(AF_INET6, host, &v6->sin6_addr) != 1)
		return 0;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons((uint16_t)atoi(port));
	return sizeof(*v6);
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
	struct sockaddr_storage to;
	socklen_t bytes;
	int s, error;

	bytes = path ? unix_of(path, &to) : tcp_of(address, &to);
	if (!bytes)
		return 0;
	s = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	error = s < 0 ? errno : connect_error(s, &to, bytes);
	if (s >= 0)
		close(s);
	return error;
}

/* A connected socket, or -1. */
static int connect_to(const struct addrinfo *at, uint64_t wait_us)
{
	struct pollfd p = { .fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
			    .events = POLLOUT };
	socklen_t size = sizeof(int);
	int error = 0;

	if (p.fd < 0)
		return -1;
	if (connect(p.fd, at->ai_addr, at->ai_addrlen) && errno != EINPROGRESS)
		error = errno;
	else if (poll(&p, 1, (int)(wait_us / 1000)) != 1 || getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &error, &size))
		error = ETIMEDOUT;
	if (!error)
		return p.fd;
	close(p.fd);
	return -1;
}

int client_address_connect(const char *address, uint64_t until_us)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	char host[CLIENT_ADDRESS_MAX];
	struct addrinfo *found;
	const char *port;
	unsigned left = 0;
	int fd = -1;

	if (!host_of(address, host, &port) || getaddrinfo(host, port, &hints, &found))
		return -1;
	for (const struct addrinfo *at = found; at; at = at->ai_next)
		left++;
	for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next, left--) {
		const uint64_t now_us = client_now_us();

		fd = connect_to(at, now_us < until_us ? (until_us - now_us) / left : 0);
	}
	freeaddrinfo(found);
	return fd;
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
