/* Options with a form of their own: lists of disks and of GPUs, an address, a group. See process/config.h. */
#include "daemon/process/config.h"
#include "daemon/process/config_values.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define MIB (1024ull * 1024)

/* Writes a folder's name plainly: without a slash at the end, doubled slashes and "/." in between. Each folder has one
 * such name. */
static void folder_plain(char *folder)
{
	char *to = folder;

	for (const char *at = folder; *at;) {
		const size_t n = strcspn(at + 1, "/") + 1;

		if (n > 1 && !(n == 2 && at[1] == '.')) {
			memmove(to, at, n);
			to += n;
		}
		at += n;
	}
	if (to == folder)
		*to++ = '/';
	*to = 0;
}

/* Parses one FOLDER:SIZE of n bytes. NULL, or what is wrong. */
static const char *disk_parse(const char *at, size_t n, struct config_disk *out)
{
	const char *colon = memrchr(at, ':', n);
	char size[32];

	if (!colon || colon == at)
		return "not of the form /FOLDER:SIZE, as /nvme0/terrace:512GiB";
	if (at[0] != '/')
		return "a disk's folder is not an absolute path: begin it with /";
	const size_t folder = (size_t)(colon - at), digits = n - folder - 1;

	if (folder >= sizeof out->folder || digits >= sizeof size)
		return "too long for a disk's folder and size";
	memcpy(out->folder, at, folder);
	out->folder[folder] = 0;
	folder_plain(out->folder);
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
				*problem = "the same folder twice: name each disk once";
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
			*problem = "not of the form 0,1,... or all";
		else if (n == CONFIG_GPUS_MAX)
			*problem = "more than 16 GPUs";
		for (uint32_t i = 0; i < n && !*problem; i++)
			if (out[i] == gpu)
				*problem = "the same GPU twice: give each once";
		if (*problem)
			return 0;
		out[n++] = (uint32_t)gpu;
		if (!at[digits])
			return n;
	}
}

/* Parses HOST:PORT or [HOST]:PORT, in numbers. NULL, or what is wrong. */
static const char *host_port(const char *value, struct config_socket *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&out->address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out->address;
	const char *colon = strrchr(value, ':');
	char host[64];
	uint64_t port;

	*out = (struct config_socket){ .bytes = 0 };
	if (!colon || (size_t)(colon - value) >= sizeof host)
		return "not of the form 127.0.0.1:PORT";
	memcpy(host, value, (size_t)(colon - value));
	host[colon - value] = 0;
	if (!config_count(colon + 1, &port) || port > 65535)
		return "the port is not a number from 0 to 65535";
	const size_t n = strlen(host);

	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		out->bytes = sizeof *v4;
		out->loopback = ntohl(v4->sin_addr.s_addr) >> 24 == 127;
		return NULL;
	}
	if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
		host[n - 1] = 0;
		if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1) {
			v6->sin6_family = AF_INET6;
			v6->sin6_port = htons((uint16_t)port);
			out->bytes = sizeof *v6;
			out->loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
			return NULL;
		}
	}
	return "the host is not an address in numbers, as 127.0.0.1 or [::1]";
}

const char *config_listen_problem(const char *value)
{
	struct config_socket at;

	return strcmp(value, "off") != 0 ? host_port(value, &at) : NULL;
}

bool config_listen_tls(const struct config *c)
{
	return c->listen_cert[0] == '/';
}

bool config_listen(const struct config *c, struct config_socket *out)
{
	return c->listen[0] && strcmp(c->listen, "off") != 0 && !host_port(c->listen, out) &&
	       (out->loopback || config_listen_tls(c));
}

const char *config_listen_derive(struct config *c)
{
	char *const files[] = { c->listen_cert, c->listen_key, c->listen_ca };
	struct config_socket at;
	int given = 0;

	if (!strcmp(c->listen, "off"))
		c->listen[0] = 0;
	for (int i = 0; i < 3; i++) {
		if (!strcmp(files[i], "off"))
			files[i][0] = 0;
		given += files[i][0] != 0;
	}
	if (given && given < 3)
		return "listen_cert, listen_key, listen_ca: some are off: name all three files, or none";
	if (given && !c->listen[0])
		return "listen_cert: there is no `listen` that it is for: set listen, or leave listen_cert, "
		       "listen_key and listen_ca out";
	if (c->listen[0] && !config_listen(c, &at))
		return "listen: it is no loopback address, and there are no certificates: set listen_cert, "
		       "listen_key and listen_ca, or listen on 127.0.0.1 or [::1]";
	return NULL;
}

bool config_metrics(const char *value, struct config_socket *out, const char **problem)
{
	struct sockaddr_un *local = (struct sockaddr_un *)&out->address;

	*problem = NULL;
	if (!strcmp(value, "off") || !*value)
		return false;
	if (strncmp(value, "unix:", 5) != 0) {
		*problem = host_port(value, out);
		return !*problem;
	}
	value += 5;
	if (*value != '/')
		*problem = "not an absolute path: begin it with /";
	else if (strlen(value) >= sizeof local->sun_path)
		*problem = "too long: a socket's path has at most 107 bytes";
	if (*problem)
		return false;
	*out = (struct config_socket){ .bytes = sizeof *local, .loopback = true };
	local->sun_family = AF_UNIX;
	strcpy(local->sun_path, value);
	return true;
}

bool config_group(const char *value, uint64_t *gid)
{
	const struct group *group;

	if (config_count(value, gid))
		return *gid < UINT32_MAX; /* which stands for none */
	group = getgrnam(value);
	if (group)
		*gid = group->gr_gid;
	return group;
}

/* ---- secrets, and names of certificates ---- */

const char *config_secret_problem(const char *value)
{
	static const char credential[] = "credential:";
	const char *name = value + sizeof credential - 1;

	if (*value == '/')
		return NULL;
	if (strncmp(value, credential, sizeof credential - 1) != 0)
		return "neither an absolute path nor credential:NAME";
	if (!*name || *name == '.')
		return "a credential's name is that of LoadCredential=NAME:FILE, and does not begin with a dot";
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && !strchr("._-", *name))
			return "a credential's name has letters, digits and . _ - alone";
	return NULL;
}

const char *config_san_problem(const char *value)
{
	static const char *const kinds[] = { "dns:", "ip:", "uri:", "email:" };

	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
		if (!strncmp(value, kinds[k], strlen(kinds[k])) && value[strlen(kinds[k])] && !strchr(value, ' '))
			return strchr(value, '*') ? "a name stands for itself, and has no *" : NULL;
	return "not of the form dns:HOST, ip:ADDRESS, uri:URI or email:ADDRESS";
}

/* The length of the word at *at, without blanks around it; *at: where it begins. */
static size_t word_at(const char **at)
{
	size_t n;

	*at += strspn(*at, " \t");
	n = strcspn(*at, ",");
	while (n && strchr(" \t", (*at)[n - 1]))
		n--;
	return n;
}

const char *config_sans_problem(const char *value)
{
	char word[CONFIG_TEXT_MAX];

	for (const char *at = value;; at++) {
		const size_t n = word_at(&at);
		const char *problem;

		snprintf(word, sizeof word, "%.*s", (int)n, at);
		problem = n ? config_san_problem(word) : "a word of the list is empty";
		if (problem)
			return problem;
		at += strcspn(at, ",");
		if (!*at)
			return NULL;
	}
}

bool config_sans_have(const char *list, const char *name)
{
	for (const char *at = list;; at++) {
		const size_t n = word_at(&at);

		if (n && n == strlen(name) && !memcmp(at, name, n))
			return true;
		at += strcspn(at, ",");
		if (!*at)
			return false;
	}
}
