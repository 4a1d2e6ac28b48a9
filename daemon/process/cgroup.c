/* See process/cgroup.h.
 *
 * /proc/self/cgroup names the process's group of each hierarchy: "0::/a/b" that of version 2, "4:memory:/a/b" one of version 1.
 * /proc/self/mountinfo tells where a hierarchy is mounted, and which of its groups is there: a container may see its own group alone, under
 * the name that it has on the host, or as "/" in a namespace of its own. Where the two do not fit, the group that is mounted counts. */
#include "daemon/process/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = PATH_MAX, LINE_BYTES = 4 * PATH_MAX };

/* A hierarchy as this process sees it: the folder of its mount, and below that ("" or "/a/b") the folder of the
 * process's group. */
struct hierarchy {
	char mount[PATH_BYTES], group[PATH_BYTES];
};

/* What is left of `all`, and which file said so. */
struct bound {
	uint64_t left;
	char *where; /* NULL: of no interest */
};

/* Reads the bounds of one group. above: the group is not the process's own. */
typedef void bounds_read(const char *folder, bool above, struct bound *b);

static FILE *file_open(const char *folder, const char *name)
{
	char path[2 * PATH_BYTES];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	return fopen(path, "re");
}

static void take(struct bound *b, uint64_t bound, const char *folder, const char *name)
{
	if (bound >= b->left)
		return;
	b->left = bound;
	if (b->where)
		snprintf(b->where, CGROUP_WHERE_MAX, "%s/%s", folder, name);
}

static void take_bytes(struct bound *b, const char *folder, const char *name)
{
	FILE *f = file_open(folder, name);
	uint64_t bytes;

	if (!f)
		return;
	if (fscanf(f, "%" SCNu64, &bytes) == 1) /* or "max" */
		take(b, bytes, folder, name);
	fclose(f);
}

static void memory_2(const char *folder, bool above, struct bound *b)
{
	(void)above;
	take_bytes(b, folder, "memory.max");
	take_bytes(b, folder, "memory.high");
}

/* Whether the group's use_hierarchy is 0: it bounds its own processes alone, not those of the groups in it. */
static bool is_flat(const char *folder)
{
	FILE *f = file_open(folder, "memory.use_hierarchy");
	bool flat = f && fgetc(f) == '0';

	if (f)
		fclose(f);
	return flat;
}

static void memory_1(const char *folder, bool above, struct bound *b)
{
	if (above && is_flat(folder))
		return;
	take_bytes(b, folder, "memory.limit_in_bytes");
	take_bytes(b, folder, "memory.memsw.limit_in_bytes");
}

/* Takes a bound of processors from a quota of time. Two processors that have half of their time each count as one. */
static void take_quota(struct bound *b, uint64_t quota, uint64_t period, const char *folder, const char *name)
{
	if (period)
		take(b, quota < period ? 1 : quota / period, folder, name);
}

static void processors_2(const char *folder, bool above, struct bound *b)
{
	FILE *f = file_open(folder, "cpu.max");
	uint64_t quota, period;

	(void)above;
	if (!f)
		return;
	if (fscanf(f, "%" SCNu64 " %" SCNu64, &quota, &period) == 2) /* or "max" */
		take_quota(b, quota, period, folder, "cpu.max");
	fclose(f);
}

static void processors_1(const char *folder, bool above, struct bound *b)
{
	FILE *quota_file = file_open(folder, "cpu.cfs_quota_us"), *period_file = file_open(folder, "cpu.cfs_period_us");
	int64_t quota, period;

	(void)above;
	if (quota_file && period_file && fscanf(quota_file, "%" SCNd64, &quota) == 1 && fscanf(period_file, "%" SCNd64, &period) == 1 &&
	    quota > 0 && period > 0) /* or -1 */
		take_quota(b, (uint64_t)quota, (uint64_t)period, folder, "cpu.cfs_quota_us");
	if (quota_file)
		fclose(quota_file);
	if (period_file)
		fclose(period_file);
}

/* ---- where the groups are ---- */

/* Whether a list "cpu,cpuacct" has the word. */
static bool lists(const char *list, const char *word)
{
	const size_t n = strlen(word);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (!strncmp(at, word, n) && (!at[n] || at[n] == ','))
			return true;
	}
	return false;
}

/* The name of the process's group, "/a/b", in the hierarchy of version 1 that has the controller, or (NULL) in that of
 * version 2. */
static bool name_read(const char *root, const char *controller, char group[PATH_BYTES])
{
	FILE *f = file_open(root, "proc/self/cgroup");
	char line[LINE_BYTES];
	bool found = false;

	while (f && !found && fgets(line, sizeof line, f)) {
		char *list = strchr(line, ':'), *name = list ? strchr(list + 1, ':') : NULL;

		line[strcspn(line, "\n")] = 0;
		if (!name || name[1] != '/' || strlen(name + 1) >= PATH_BYTES)
			continue;
		*name++ = 0;
		found = controller ? lists(list + 1, controller) : !strncmp(line, "0:", 2) && !list[1];
		if (found)
			strcpy(group, name);
	}
	if (f)
		fclose(f);
	return found;
}

/* Replaces the octal escapes that mountinfo has for blanks and the like (\040), in place. */
static void unescape(char *path)
{
	char *to = path;

	for (const char *at = path; *at; at++) {
		int code = 0, digits = 0;

		while (*at == '\\' && digits < 3 && at[1 + digits] >= '0' && at[1 + digits] <= '7')
			code = 8 * code + at[1 + digits++] - '0';
		*to++ = digits == 3 ? (char)code : *at;
		at += digits == 3 ? 3 : 0;
	}
	*to = 0;
}

/* Reads a line of mountinfo. True: it is of that hierarchy, and *group is mounted at *mount. */
static bool line_read(char *line, const char *controller, char **group, char **mount)
{
	char *rest = strstr(line, " - "), *words[5], *type, *options, *state = NULL;

	line[strcspn(line, "\n")] = 0;
	if (!rest)
		return false;
	*rest = 0;
	for (int i = 0; i < 5; i++)
		if (!(words[i] = strtok_r(i ? NULL : line, " ", &state)))
			return false;
	type = strtok_r(rest + 3, " ", &state);
	if (!type || !strtok_r(NULL, " ", &state) || !(options = strtok_r(NULL, " ", &state)))
		return false;
	*group = words[3];
	*mount = words[4];
	return controller ? !strcmp(type, "cgroup") && lists(options, controller) : !strcmp(type, "cgroup2");
}

/* The part of the group's name that is below the group that is mounted. NULL: it is not below that one. */
static const char *below(const char *name, const char *mounted)
{
	const size_t n = strcmp(mounted, "/") ? strlen(mounted) : 0;

	return strncmp(name, mounted, n) || (name[n] && name[n] != '/') ? NULL : name + n;
}

/* Finds the group below the first mount that shows it. If none does, takes the last mount of the hierarchy as the group
 * itself, whatever name it has here. */
static void mount_read(const char *root, const char *controller, const char *name, struct hierarchy *h)
{
	FILE *f = file_open(root, "proc/self/mountinfo");
	char line[LINE_BYTES], *mounted, *mount;
	const char *rest = NULL;

	while (f && !rest && fgets(line, sizeof line, f)) {
		if (!line_read(line, controller, &mounted, &mount))
			continue;
		unescape(mounted);
		unescape(mount);
		rest = strstr(name, "/..") ? NULL : below(name, mounted);
		if ((size_t)snprintf(h->mount, sizeof h->mount, "%s%s", root, mount) >= sizeof h->mount)
			h->mount[0] = 0;
		snprintf(h->group, sizeof h->group, "%s", rest && strcmp(rest, "/") ? rest : "");
	}
	if (f)
		fclose(f);
}

/* Finds the process's group in the hierarchy of the controller. False: it has none there. */
static bool hierarchy_find(const char *root, const char *controller, struct hierarchy *h)
{
	char name[PATH_BYTES];

	if (!name_read(root, controller, name))
		return false;
	/* The usual folders, if mountinfo cannot be read. */
	snprintf(h->mount, sizeof h->mount, "%s/sys/fs/cgroup%s%s", root, controller ? "/" : "", controller ? controller : "");
	snprintf(h->group, sizeof h->group, "%s", strcmp(name, "/") ? name : "");
	mount_read(root, controller, name, h);
	return true;
}

/* Reads the bounds of the group, and of the groups above it up to the one that is mounted. */
static void climb(const char *root, const char *controller, bounds_read *read, struct bound *b)
{
	struct hierarchy h;
	char folder[2 * PATH_BYTES];
	bool above = false;

	if (!hierarchy_find(root, controller, &h))
		return;
	for (;; above = true) {
		char *slash = strrchr(h.group, '/');

		snprintf(folder, sizeof folder, "%s%s", h.mount, h.group);
		read(folder, above, b);
		if (!slash)
			return;
		*slash = 0;
	}
}

uint64_t cgroup_memory(const char *root, uint64_t all, char where[CGROUP_WHERE_MAX])
{
	struct bound b = { all, where };

	where[0] = 0;
	climb(root, NULL, memory_2, &b);
	climb(root, "memory", memory_1, &b);
	return b.left;
}

uint64_t cgroup_processors(const char *root, uint64_t all)
{
	struct bound b = { all, NULL };

	climb(root, NULL, processors_2, &b);
	climb(root, "cpu", processors_1, &b);
	return b.left;
}
