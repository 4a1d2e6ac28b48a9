/* See process/machine.h. */
#include "daemon/process/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/process/cgroup.h"
#include "daemon/process/config.h"
#include "daemon/process/log.h"
#include "store/slab/disk.h"

enum {
	FILES_OTHER = 128,    /* logs, rings, the catalog, GPUs */
	/* index, advisor, catalog, restorer, local socket, local calls, gRPC's loop and listener, metrics, traces, the
	 * stop */
	THREADS_OTHER = 14,
	THREADS_GRPC = 6,     /* 1.51 starts four, one more a core, of so many at least and at most, and another when it has work */
	GRPC_CORES_LEAST = 2,
	GRPC_CORES_MOST = 32,
	THREADS_DISK = 4,
	THREADS_DISK_POOL = 18,
	THREADS_GPU = 3,
	THREADS_TRIED_MAX = 512,
	FILES_LEAST = 48,     /* a daemon of one disk that is connected to by few */
	SLAB_FILES_LEAST = 16, /* of a disk, however few descriptors there are */
	FILES_CONNECTION = 6, /* of connections_max: a socket and a pidfd each, twice, and two of a connection by gRPC */
};

uint64_t machine_memory(const char *root, char why[MACHINE_WHY_MAX])
{
	const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char where[CGROUP_WHERE_MAX];
	uint64_t left = cgroup_memory(root, all, where);
	struct rlimit space;

	snprintf(why, MACHINE_WHY_MAX, "%s", where[0] ? where : "the machine's memory");
	if (!getrlimit(RLIMIT_AS, &space) && space.rlim_cur < left) {
		left = space.rlim_cur;
		snprintf(why, MACHINE_WHY_MAX, "the limit on address space (ulimit -v, LimitAS)");
	}
	return left;
}

uint32_t machine_processors(const char *root)
{
	const long online = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;
	uint64_t all = online > 0 ? (uint64_t)online : 1;

	if (!sched_getaffinity(0, sizeof set, &set)) /* fails with more than it has room for */
		all = (uint64_t)CPU_COUNT(&set);
	return (uint32_t)cgroup_processors(root, all);
}

void machine_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

uint64_t machine_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return UINT64_MAX;
	if (limit.rlim_cur < limit.rlim_max) {
		const rlim_t before = limit.rlim_cur;

		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit))
			limit.rlim_cur = before;
	}
	return limit.rlim_cur;
}

static uint32_t disks_read(const struct config *c, struct config_disk disks[CONFIG_DISKS_MAX])
{
	const char *problem;

	return c->disks[0] ? config_disks(c->disks, disks, &problem) : 0;
}

/* The number of slab files that all disks may have. */
static uint64_t slabs_wanted(const struct config *c)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	const uint32_t n = disks_read(c, disks);
	uint64_t wanted = 0;

	for (uint32_t i = 0; i < n; i++)
		wanted += disks[i].bytes / disk_slab_bytes(disks[i].bytes, c->slab_bytes, 0) + 1;
	return wanted;
}

/* The descriptors that all but the disks need. */
static uint64_t files_beside(const struct config *c)
{
	return FILES_OTHER + FILES_CONNECTION * c->connections_max + 8 + c->host_bytes / c->extent_bytes;
}

uint32_t machine_slab_files(const struct config *c, uint64_t files)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	const uint64_t beside = files_beside(c), n = disks_read(c, disks);
	const uint64_t left = files > 2 * beside ? files - beside : files / 2;
	const uint64_t each = n ? left / n / 2 : DISK_SLABS_ENOUGH;

	return each >= DISK_SLABS_ENOUGH ? 0 : each > SLAB_FILES_LEAST ? (uint32_t)each : SLAB_FILES_LEAST;
}

#define ADDRESS_OTHER (384ull << 20)  /* the catalog's map and queues, calls */
#define ADDRESS_THREAD (20ull << 20)  /* a stack, and what malloc reserves for a thread */

/* The largest size of a file that the process may write; RLIM_INFINITY: there is no limit. */
static uint64_t file_bytes_max(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) ? RLIM_INFINITY : limit.rlim_cur;
}

static enum status file_problem(const struct config *c, char *why, size_t size)
{
	const uint64_t most = file_bytes_max();

	if (most >= (c->host_bytes < c->extent_bytes ? c->host_bytes : c->extent_bytes))
		return STATUS_OK;
	snprintf(why, size,
		 "the limit on the size of files is %" PRIu64 " bytes, and memory is taken as files of extent_bytes = %" PRIu64
		 ": raise the limit (ulimit -f, LimitFSIZE), or lower extent_bytes",
		 most, c->extent_bytes);
	return STATUS_IO;
}

static uint32_t threads_wanted(const struct config *c)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	uint32_t gpus[CONFIG_GPUS_MAX];
	const long cores = sysconf(_SC_NPROCESSORS_CONF);
	const char *problem;
	bool all;
	const uint32_t n = c->gpus[0] ? config_gpus(c->gpus, gpus, &all, &problem) : 0;

	return THREADS_OTHER + THREADS_GRPC + (uint32_t)(cores < GRPC_CORES_LEAST ? GRPC_CORES_LEAST : cores > GRPC_CORES_MOST ? GRPC_CORES_MOST : cores) +
	       (uint32_t)c->workers + (uint32_t)c->sum_threads + n * THREADS_GPU +
	       disks_read(c, disks) * (c->disk_io == CONFIG_IO_THREADS ? THREADS_DISK_POOL : THREADS_DISK);
}

static void *wait_main(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* How many of `wanted` threads the process could have at once. It starts them, and each waits until the gate is
 * opened. */
static uint32_t threads_had(uint32_t wanted)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t threads[THREADS_TRIED_MAX];
	uint32_t n = 0, had;

	pthread_mutex_lock(&gate);
	while (n < wanted && n < THREADS_TRIED_MAX && !pthread_create(&threads[n], NULL, wait_main, &gate))
		n++;
	had = n;
	pthread_mutex_unlock(&gate);
	while (n)
		pthread_join(threads[--n], NULL);
	pthread_mutex_destroy(&gate);
	return had;
}

/* Whether the process may have the threads that it needs. gRPC and liburcu end the process, or hang, where a thread of
 * theirs cannot be started, so the daemon finds out before. */
static enum status threads_problem(const struct config *c, char *why, size_t size)
{
	const uint32_t all = threads_wanted(c), wanted = all < THREADS_TRIED_MAX ? all : THREADS_TRIED_MAX, had = threads_had(wanted);

	if (had == wanted)
		return STATUS_OK;
	snprintf(why, size,
		 "the process may start %" PRIu32 " more threads, and wants %" PRIu32
		 ": raise the limit (ulimit -u, TasksMax, pids.max of its cgroup)",
		 had, wanted);
	return STATUS_EXHAUSTED;
}

/* Whether the process may have the descriptors that it needs. gRPC ends the process if it finds no descriptor for a
 * pipe of its own. */
static enum status descriptors_problem(char *why, size_t size)
{
	int fds[FILES_LEAST], n = 0, error = 0;

	while (n < FILES_LEAST && !error) {
		fds[n] = eventfd(0, EFD_CLOEXEC);
		if (fds[n] < 0)
			error = errno;
		else
			n++;
	}
	const int had = n;

	while (n)
		close(fds[--n]);
	if (!error)
		return STATUS_OK;
	snprintf(why, size, "the process may open %d more files, and wants %d at least (%s): raise the limit (ulimit -n, LimitNOFILE)", had, FILES_LEAST,
		 strerror(error));
	return STATUS_EXHAUSTED;
}

/* Whether there is address space for what the process needs. Where it runs out in the middle of the start, some library
 * hangs. */
static enum status address_problem(const struct config *c, char *why, size_t size)
{
	const uint64_t wanted = c->host_bytes + ADDRESS_OTHER + threads_wanted(c) * ADDRESS_THREAD;
	struct rlimit space;
	void *at;

	if (getrlimit(RLIMIT_AS, &space) || space.rlim_cur == RLIM_INFINITY)
		return STATUS_OK;
	at = mmap(NULL, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at != MAP_FAILED) {
		munmap(at, wanted);
		return STATUS_OK;
	}
	snprintf(why, size,
		 "the process wants %" PRIu64 " bytes more of address space, host_bytes among them, and the limit on it is %" PRIu64
		 ": raise the limit (ulimit -v, LimitAS), or lower host_bytes",
		 wanted, (uint64_t)space.rlim_cur);
	return STATUS_EXHAUSTED;
}

enum status machine_problem(const struct config *c, char *why, size_t size)
{
	enum status s = file_problem(c, why, size);

	if (!s)
		s = address_problem(c, why, size);
	if (!s)
		s = descriptors_problem(why, size);
	return s ? s : threads_problem(c, why, size);
}

/* The largest slab file that the disks are to have. 0: there are no disks. */
static uint64_t slab_bytes_most(const struct config *c, uint32_t files)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	const uint32_t n = disks_read(c, disks);
	uint64_t most = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t slab = disk_slab_bytes(disks[i].bytes, c->slab_bytes, files);

		most = slab > most ? slab : most;
	}
	return most;
}

static void warn_of_file_size(const struct config *c, uint32_t files)
{
	const uint64_t most = file_bytes_max(), slab = slab_bytes_most(c, files);

	if (most < slab)
		log_warn("file_size", LOG_NUM("limit", most), LOG_NUM("slab_bytes", slab),
			 LOG_TEXT("reason", "slab files may not be that large, so disks take nothing: raise the limit (ulimit -f, LimitFSIZE), or lower slab_bytes"));
	else if (slab && most != RLIM_INFINITY)
		log_warn("file_size", LOG_NUM("limit", most), LOG_TEXT("folder", c->data_dir),
			 LOG_TEXT("reason", "the catalog may not grow beyond the limit on the size of files (ulimit -f, LimitFSIZE): flushes fail then"));
}

static bool may_lock(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { { .effective = 0 } };

	return !syscall(SYS_capget, &head, data) && data[0].effective >> CAP_IPC_LOCK & 1;
}

/* Warns if too little memory may be locked. io_uring counts what is registered with it against that limit, for each
 * disk, unless the process has CAP_IPC_LOCK. */
static void warn_of_locked(const struct config *c)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	const uint64_t wanted = disks_read(c, disks) * c->host_bytes;
	struct rlimit limit;

	if (c->disk_io == CONFIG_IO_THREADS || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur >= wanted || may_lock())
		return;
	log_warn("locked_memory", LOG_NUM("limit", limit.rlim_cur), LOG_NUM("wanted", wanted),
		 LOG_TEXT("reason", "memory is not all registered with the disks, which are slower then: ulimit -l, LimitMEMLOCK"));
}

static void warn_of_memory(const struct config *c)
{
	char bound[MACHINE_WHY_MAX];
	const uint64_t memory = machine_memory("", bound);

	if (c->host_bytes > memory)
		log_warn("host_bytes", LOG_NUM("host_bytes", c->host_bytes), LOG_NUM("memory", memory), LOG_TEXT("bound", bound),
			 LOG_TEXT("reason", "host_bytes is more than this process may use: the kernel may end it: lower host_bytes, or raise the bound"));
}

void machine_warn(const struct config *c, uint64_t files)
{
	const uint64_t wanted = files_beside(c) + slabs_wanted(c);

	warn_of_memory(c);
	warn_of_file_size(c, machine_slab_files(c, files));
	warn_of_locked(c);
	if (files < wanted)
		log_warn("files", LOG_NUM("wanted", wanted), LOG_NUM("limit", files),
			 LOG_TEXT("reason", "without descriptors no engine can connect; disks get fewer and larger slab files, "
					    "so that fewer block sizes find one: ulimit -n, LimitNOFILE"));
}
