/* Addresses: a Unix socket, or loopback TCP. */
#include "client/rpc_address.h"

#include "client/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

const char *client_address_problem(const char *address)
{
	const char *path = path_of(address);
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int s, error = 0;

	if (!path || strlen(path) >= sizeof(to.sun_path))
		return NULL;
	strcpy(to.sun_path, path);
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s < 0 || (connect(s, (const struct sockaddr *)&to, sizeof(to)) && errno != EAGAIN))
		error = errno;
	if (s >= 0)
		close(s);
	return error ? strerror(error) : NULL;
}
