/* terracectl compact: disk after disk, with calls until the daemon has nothing more to do. */
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/values.h"
#include "client/ctl/daemon.h"
#include "client/ctl/disks.h"
#include "client/ctl/output.h"

enum { OPTION_DISK, OPTION_MAX };
enum { PAUSE_MS = 100, TRIES_IDLE = 20 };
#define COMPACT_TIMEOUT_US (600ull * 1000000)

/* Asks how many disks the daemon has. unusable: a bit for each disk that the daemon does not use. */
static int ask_count(struct ctl_daemon *d, uint64_t timeout_us, uint32_t *count, uint64_t *unusable)
{
	Terrace__V1__StatsRequest request = TERRACE__V1__STATS_REQUEST__INIT;
	Terrace__V1__StatsReply *reply;
	int code = ctl_daemon_call(d, CLIENT_ADMIN_STATS, &request.base, &terrace__v1__stats_reply__descriptor, timeout_us, &reply);

	if (code)
		return code;
	*count = disks_count(reply);
	for (uint32_t i = 0; i < *count && i < 64; i++)
		*unusable |= (uint64_t)disk_is_unusable(reply, i) << i;
	return *count ? CTL_OK : ctl_failed("compact: the daemon has no disks: it was started without --disks");
}

/* Compacts a disk until there is nothing more, or what is left is in use all the time. */
static int compact_disk(const struct ctl_args *args, struct ctl_daemon *d, const Terrace__V1__CompactRequest *request,
			struct json_t *rows)
{
	Terrace__V1__CompactReply *reply;
	uint64_t freed = 0, slabs = 0;
	struct json_t *row;
	int idle = 0;

	do {
		int code = ctl_daemon_call(d, CLIENT_ADMIN_COMPACT, &request->base, &terrace__v1__compact_reply__descriptor,
					   args->timeout_us ? args->timeout_us : COMPACT_TIMEOUT_US, &reply);

		if (code)
			return code;
		freed += reply->freed_bytes;
		slabs += reply->slabs;
		idle = reply->slabs ? 0 : idle + 1;
		if (reply->more && !reply->slabs)
			nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000l}, NULL);
	} while (reply->more && idle < TRIES_IDLE);
	row = out_object();
	out_put_uint(row, "disk", request->disk);
	out_put_uint(row, "slabs", slabs);
	out_put_uint(row, "freed_bytes", freed);
	out_append(rows, row);
	return CTL_OK;
}

static int compact(const struct ctl_args *args, struct ctl_daemon *d, uint64_t only, uint64_t max_bytes)
{
	Terrace__V1__CompactRequest request = TERRACE__V1__COMPACT_REQUEST__INIT;
	struct json_t *rows, *tree;
	uint32_t count = 0;
	uint64_t unusable = 0;
	int code = ask_count(d, args->timeout_us, &count, &unusable);

	if (code)
		return code;
	if (args->value[OPTION_DISK] && only >= count)
		return ctl_failed("compact: no disk %s: the daemon has %u, and their numbers begin with 0", args->value[OPTION_DISK], count);
	request.max_bytes = max_bytes;
	rows = out_array();
	for (uint32_t i = 0; i < count && !code; i++) {
		request.disk = i;
		if (args->value[OPTION_DISK] ? i == only : !(unusable >> i & 1))
			code = compact_disk(args, d, &request, rows);
	}
	if (code) {
		out_free(rows);
		return code;
	}
	tree = rows;
	if (args->json) {
		tree = out_object();
		out_put(tree, "disks", rows);
	}
	return out_print(tree, args->json, false) ? CTL_OK : CTL_FAILED;
}

int ctl_run_compact(const struct ctl_args *args)
{
	const char *disk = args->value[OPTION_DISK], *max = args->value[OPTION_MAX];
	uint64_t only = 0, max_bytes = 0;
	struct ctl_daemon d;
	int code;

	if (disk && !ctl_parse_uint(disk, UINT32_MAX, &only))
		return ctl_usage(args->command, "compact: --disk %s: not the number of a disk, as 'terracectl stat' shows it", disk);
	if (max && (!ctl_parse_bytes(max, &max_bytes) || !max_bytes))
		return ctl_usage(args->command, "compact: --max %s: not a number of bytes above 0, as 100GiB", max);
	code = ctl_daemon_open(args, &d);
	if (!code)
		code = compact(args, &d, only, max_bytes);
	ctl_daemon_close(&d);
	return code;
}
