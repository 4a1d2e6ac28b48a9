/* Addresses: a Unix socket, or loopback TCP. */
#include "client/rpc_address.h"

#include "client/status.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static enum terrace_status unix_read(const char *address, char target[CLIENT_ADDRESS_MAX])
{
	const char *path = address + strlen("unix:");

	if (!strncmp(path, "//", 2))
		path += 2;
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
	if (!strncmp(address, "unix:", 5))
		return unix_read(address, target);
	return tcp_read(address, target);
}
