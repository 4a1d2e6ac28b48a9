/* What control groups leave, read from trees of files such as kernels and containers show: version 2, version 1, and both at a time. */
#include "daemon/process/cgroup.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/held_folder.h"

enum { FILES_MAX = 10, ALL = 1 << 30, PROCESSORS = 64 };

#define V1(root, point, controllers) "35 31 0:32 " root " " point " rw,relatime shared:9 - cgroup cgroup rw," controllers "\n"
#define V2(root, point) "41 31 0:38 " root " " point " rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
#define OTHERS "23 1 254:0 / / rw,relatime - ext4 /dev/root rw\n31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs rw,mode=755\n"
#define UNLIMITED "9223372036854771712"

struct tree {
	const char *name, *group, *mounts; /* of /proc/self */
	struct {
		const char *path, *text;
	} files[FILES_MAX];
	uint64_t memory;                   /* 0: ALL; */
	const char *where;                 /* the end of the file's name */
	uint64_t processors;               /* 0: PROCESSORS */
};

static const struct tree trees[] = {
	{ "no groups at all", NULL, NULL, { { NULL, NULL } }, 0, "", 0 },
	{ "version 1, the process's own group", "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n",
	  OTHERS V1("/", "/sys/fs/cgroup/memory", "memory") V1("/", "/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"),
	  { { "/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "268435456" }, { "/sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED },
	    { "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000" }, { "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000" } },
	  268435456, "/sys/fs/cgroup/memory/box/memory.limit_in_bytes", 2 },
	{ "version 1, a group above it", "4:memory:/a/b\n3:cpu:/a/b\n",
	  OTHERS V1("/", "/sys/fs/cgroup/memory", "memory") V1("/", "/sys/fs/cgroup/cpu", "cpu"),
	  { { "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", UNLIMITED }, { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000000" },
	    { "/sys/fs/cgroup/memory/a/memory.use_hierarchy", "1" }, { "/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1" },
	    { "/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000" }, { "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000" },
	    { "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000" } },
	  2000000, "/a/memory.limit_in_bytes", 1 },
	{ "version 1, a group above it that bounds its own processes alone", "4:memory:/a/b\n",
	  OTHERS V1("/", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "3000000" }, { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000000" },
	    { "/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0" }, { "/sys/fs/cgroup/memory/a/b/memory.use_hierarchy", "0" } },
	  3000000, "/a/b/memory.limit_in_bytes", 0 },
	{ "version 1, memory and swap together", "4:memory:/a\n", OTHERS V1("/", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3000000" }, { "/sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes", "2500000" } },
	  2500000, "memory.memsw.limit_in_bytes", 0 },
	{ "version 1, a container that sees its own group alone, under the host's name", "4:memory:/docker/0123\n2:cpu,cpuacct:/docker/0123\n",
	  OTHERS V1("/docker/0123", "/sys/fs/cgroup/memory", "memory") V1("/docker/0123", "/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"),
	  { { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000" }, { "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000" },
	    { "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000" } },
	  4000000, "/sys/fs/cgroup/memory/memory.limit_in_bytes", 3 },
	{ "version 1, a group below the one that a container sees", "4:memory:/docker/0123/job\n",
	  OTHERS V1("/docker/0123", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000" }, { "/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3500000" } },
	  3500000, "/memory/job/memory.limit_in_bytes", 0 },
	{ "version 1, a namespace of its own", "4:memory:/\n", OTHERS V1("/", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000000" } }, 5000000, "/memory/memory.limit_in_bytes", 0 },
	{ "version 1, the mount of another namespace", "4:memory:/../host/box\n",
	  OTHERS V1("/../..", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000000" } }, 6000000, "/memory/memory.limit_in_bytes", 0 },
	{ "version 1, mounted elsewhere", "4:memory:/a\n", OTHERS V1("/", "/cgroups/all\\040of\\040it", "memory"),
	  { { "/cgroups/all of it/a/memory.limit_in_bytes", "7000000" }, { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1" } },
	  7000000, "/cgroups/all of it/a/memory.limit_in_bytes", 0 },
	{ "version 1, a mount that shows another group first", "4:memory:/a\n",
	  OTHERS V1("/other", "/mnt", "memory") V1("/", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "7000000" }, { "/mnt/memory.limit_in_bytes", "1" } },
	  7000000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", 0 },
	{ "version 1, no bound", "4:memory:/a\n3:cpu:/a\n",
	  OTHERS V1("/", "/sys/fs/cgroup/memory", "memory") V1("/", "/sys/fs/cgroup/cpu", "cpu"),
	  { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", UNLIMITED }, { "/sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes", UNLIMITED },
	    { "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1" }, { "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000" } },
	  0, "", 0 },
	{ "version 1, nonsense", "4:memory:/a\n3:cpu:/a\n:\n\n9\n",
	  OTHERS "35 31\n35 31 0:32 / /x rw - cgroup\n - \n" V1("/", "/sys/fs/cgroup/memory", "memory") V1("/", "/sys/fs/cgroup/cpu", "cpu"),
	  { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "" }, { "/sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes", "much" },
	    { "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000" }, { "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "0" } },
	  0, "", 0 },
	{ "a hybrid: version 1 has the memory, version 2 the processes", "4:memory:/a\n0::/user.slice\n",
	  OTHERS V1("/", "/sys/fs/cgroup/memory", "memory") V2("/", "/sys/fs/cgroup/unified"),
	  { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8000000" }, { "/sys/fs/cgroup/unified/user.slice/cgroup.procs", "1" } },
	  8000000, "/memory/a/memory.limit_in_bytes", 0 },
	{ "a hybrid: version 2 has the memory", "4:cpu:/a\n0::/user.slice\n",
	  OTHERS V1("/", "/sys/fs/cgroup/cpu", "cpu") V2("/", "/sys/fs/cgroup/unified"),
	  { { "/sys/fs/cgroup/unified/user.slice/memory.max", "9000000" }, { "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000" },
	    { "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000" } },
	  9000000, "/unified/user.slice/memory.max", 4 },
	{ "version 2, above memory.high the process is slowed down", "0::/a/b\n", OTHERS V2("/", "/sys/fs/cgroup"),
	  { { "/sys/fs/cgroup/a/b/memory.max", "9000000" }, { "/sys/fs/cgroup/a/b/memory.high", "max" }, { "/sys/fs/cgroup/a/memory.max", "max" },
	    { "/sys/fs/cgroup/a/memory.high", "8500000" } },
	  8500000, "/sys/fs/cgroup/a/memory.high", 0 },
	{ "version 2, a container that sees its own group alone", "0::/pods/1/c\n", OTHERS V2("/pods/1/c", "/sys/fs/cgroup"),
	  { { "/sys/fs/cgroup/memory.max", "9100000" }, { "/sys/fs/cgroup/cpu.max", "500000 100000" } }, 9100000, "/sys/fs/cgroup/memory.max", 5 },
	{ "a group of another controller", "4:memoryless:/a\n3:cpuset:/a\n", OTHERS V1("/", "/sys/fs/cgroup/memory", "memory"),
	  { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1" } }, 0, "", 0 },
	{ "no mountinfo", "4:memory:/a\n", NULL, { { "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9200000" } },
	  9200000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", 0 },
};

static void file_make(const char *root, const char *path, const char *text)
{
	char full[256];
	FILE *f;

	ck_assert_int_lt(snprintf(full, sizeof(full), "%s%s", root, path), (int)sizeof(full));
	for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = 0;
		mkdir(full, 0700);
	}
	f = fopen(full, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
}

START_TEST(what_is_left)
{
	const struct tree *t = &trees[_i];
	char root[64], where[CGROUP_WHERE_MAX], remove[96];
	uint64_t memory, processors;

	ck_assert(held_folder_make("/tmp", root, sizeof(root)));
	if (t->group)
		file_make(root, "/proc/self/cgroup", t->group);
	if (t->mounts)
		file_make(root, "/proc/self/mountinfo", t->mounts);
	for (int i = 0; i < FILES_MAX && t->files[i].path; i++)
		file_make(root, t->files[i].path, t->files[i].text);
	memory = cgroup_memory(root, ALL, where);
	processors = cgroup_processors(root, PROCESSORS);
	snprintf(remove, sizeof(remove), "rm -r %s", root);
	ck_assert_int_eq(system(remove), 0);
	ck_assert_msg(memory == (t->memory ? t->memory : ALL), "%s: %llu bytes", t->name, (unsigned long long)memory);
	ck_assert_msg(processors == (t->processors ? t->processors : PROCESSORS), "%s: %llu processors", t->name, (unsigned long long)processors);
	ck_assert_msg(strlen(where) >= strlen(t->where) && !strcmp(where + strlen(where) - strlen(t->where), t->where) && !where[0] == !t->where[0],
		      "%s: \"%s\"", t->name, where);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cgroup");
	TCase *tc = tcase_create("trees");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, what_is_left, 0, (int)(sizeof(trees) / sizeof(trees[0])));
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
