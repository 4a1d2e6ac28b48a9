/* Options with a form of their own: lists of disks and of GPUs, an address. See config.h. */
#include "daemon/config.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define MIB (1024ull * 1024)

/* One FOLDER:SIZE of n bytes. */
static const char *disk_parse(const char *at, size_t n, struct config_disk *out)
{
	const char *colon = memrchr(at, ':', n);
	char size[32];

	if (!colon || colon == at)
		return "not of the form /FOLDER:SIZE";
	if (at[0] != '/')
		return "a disk's folder is not an absolute path";
	const size_t folder = (size_t)(colon - at), digits = n - folder - 1;

	if (folder >= sizeof out->folder || digits >= sizeof size)
		return "too long";
	memcpy(out->folder, at, folder);
	out->folder[folder] = 0;
	memcpy(size, colon + 1, digits);
	size[digits] = 0;
	if (!config_bytes(size, &out->bytes))
		return "a disk's size is not a size such as 512GiB";
	return out->bytes < MIB || out->bytes > 1ull << 50 ? "a disk's size is not within 1MiB and 1024TiB" : NULL;
}

uint32_t config_disks(const char *value, struct config_disk out[CONFIG_DISKS_MAX], const char **problem)
{
	uint32_t n = 0;

	*problem = NULL;
	if (!strcmp(value, "off") || !*value)
		return 0;
	for (const char *at = value;; at += strcspn(at, ",") + 1) {
		*problem = n == CONFIG_DISKS_MAX ? "more than 16 disks" : disk_parse(at, strcspn(at, ","), &out[n]);
		for (uint32_t i = 0; i < n && !*problem; i++)
			if (!strcmp(out[i].folder, out[n].folder))
				*problem = "the same folder twice";
		if (*problem)
			return 0;
		n++;
		if (!at[strcspn(at, ",")])
			return n;
	}
}

uint32_t config_gpus(const char *value, uint32_t out[CONFIG_GPUS_MAX], bool *all, const char **problem)
{
	uint32_t n = 0;

	*problem = NULL;
	*all = !strcmp(value, "all");
	if (*all || !strcmp(value, "off") || !*value)
		return 0;
	for (const char *at = value;; at += strcspn(at, ",") + 1) {
		const size_t digits = strcspn(at, ",");
		char number[8];
		uint64_t gpu = 0;

		snprintf(number, sizeof number, "%.*s", (int)digits, at);
		if (digits >= sizeof number || !config_count(number, &gpu) || gpu > 255)
			*problem = "not of the form 0,1,...";
		else if (n == CONFIG_GPUS_MAX)
			*problem = "more than 16 GPUs";
		for (uint32_t i = 0; i < n && !*problem; i++)
			if (out[i] == gpu)
				*problem = "the same GPU twice";
		if (*problem)
			return 0;
		out[n++] = (uint32_t)gpu;
		if (!at[digits])
			return n;
	}
}

const char *config_listen_problem(const char *value)
{
	char host[64];
	const char *colon = strrchr(value, ':');
	uint64_t port;
	struct in_addr v4;
	struct in6_addr v6;

	if (!strcmp(value, "off"))
		return NULL;
	if (!colon || (size_t)(colon - value) >= sizeof host)
		return "not of the form 127.0.0.1:PORT";
	memcpy(host, value, (size_t)(colon - value));
	host[colon - value] = 0;
	if (!config_count(colon + 1, &port) || port > 65535)
		return "the port is not a number from 0 to 65535";
	size_t n = strlen(host);
	bool loopback = inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;

	if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
		host[n - 1] = 0;
		loopback = inet_pton(AF_INET6, host + 1, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
	}
	return loopback ? NULL : "only a loopback address: this version has no mutual TLS, so nothing else may be served";
}
