/* See far.h. Both namespaces are nameless: descriptors hold them, and `ip` is told one as a path in /proc. */
#include "tests/bench/far.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"

#define HOST_THERE "10.213.7.1"
#define HOST_HERE "10.213.7.2"
enum { IP_S_MAX = 30 };

static bool ip(const char *const *words)
{
	return bench_wait_for(bench_spawn("ip", words), IP_S_MAX) == 0;
}

static int space_now(void)
{
	return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

static void enter(int space)
{
	if (space >= 0 && setns(space, CLONE_NEWNET))
		bench_die("setns: %s", strerror(errno));
}

/* From `here`; the other end is given to `there`. */
static bool link_up(const struct far *f)
{
	char there[64];

	snprintf(there, sizeof(there), "/proc/%d/fd/%d", getpid(), f->there);
	if (!ip((const char *const[]){"ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0", NULL}) ||
	    !ip((const char *const[]){"ip", "link", "set", "far0", "netns", there, NULL}) ||
	    !ip((const char *const[]){"ip", "address", "add", HOST_HERE "/24", "dev", "near0", NULL}) ||
	    !ip((const char *const[]){"ip", "link", "set", "near0", "up", NULL}) ||
	    !ip((const char *const[]){"ip", "link", "set", "lo", "up", NULL}))
		return false;
	enter(f->there);
	const bool up = ip((const char *const[]){"ip", "address", "add", HOST_THERE "/24", "dev", "far0", NULL}) &&
			ip((const char *const[]){"ip", "link", "set", "far0", "up", NULL}) &&
			ip((const char *const[]){"ip", "link", "set", "lo", "up", NULL});

	enter(f->here);
	return up;
}

void far_make(struct far *f)
{
	*f = (struct far){.home = space_now(), .there = -1, .here = -1, .host = HOST_THERE, .own_host = HOST_HERE,
			  .network = "veth"};
	if (f->home >= 0 && !unshare(CLONE_NEWNET) && (f->there = space_now()) >= 0 && !unshare(CLONE_NEWNET) &&
	    (f->here = space_now()) >= 0 && link_up(f))
		return;
	fprintf(stderr, "terrace-bench: this machine makes no network namespaces (root and iproute2 are wanted): "
			"loopback instead of veth\n");
	far_end(f);
	f->host = f->own_host = "127.0.0.1";
	f->network = "loopback";
}

void far_enter(const struct far *f)
{
	enter(f->there);
}

void far_return(const struct far *f)
{
	enter(f->here);
}

void far_end(struct far *f)
{
	const int spaces[] = {f->home, f->there, f->here};

	enter(f->home);
	for (int i = 0; i < 3; i++)
		if (spaces[i] >= 0)
			close(spaces[i]);
	f->home = f->there = f->here = -1;
}
