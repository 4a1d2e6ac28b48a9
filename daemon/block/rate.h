/* A running average of how fast a device has transferred bytes lately, and from that when more bytes will have arrived.
 * An update costs a few additions at each end of a transfer; a reading needs no system call.
 *
 * The average is over the time for which the device was busy with the bytes. A transfer is charged from its own
 * beginning, or from the end of the transfer before it if that is later. So parallel transfers are not counted twice,
 * and idle time is not counted. The lock is the owner's.
 */
#ifndef TERRACE_DAEMON_BLOCK_RATE_H
#define TERRACE_DAEMON_BLOCK_RATE_H

#include <stdint.h>

#include "daemon/block/values.h"

enum {
	RATE_SAMPLES = 64,             /* after so many transfers the average halves the weight of the past, or */
	RATE_BYTES = 64 << 20,         /* after so many bytes */
	RATE_STALL_US = 1000,          /* a device that has work and has ended nothing for longer counts as slower */
};

/* us_per_mib: the assumption until transfers have been seen; it weighs as much as one transfer of a MiB. */
static inline void rate_init(struct rate *r, double us_per_mib)
{
	*r = (struct rate){ .us = us_per_mib, .bytes = 1 << 20 };
}

/* Adds `bytes` to the bytes under way. now_us is used only if none were. */
static inline void rate_begun(struct rate *r, uint64_t bytes, uint64_t now_us)
{
	if (!r->queued)
		r->ended_us = now_us;
	r->queued += bytes;
}

/* Removes `bytes` from the bytes under way, whether or not they arrived. */
static inline void rate_over(struct rate *r, uint64_t bytes)
{
	r->queued -= bytes;
}

/* Notes that `bytes` have arrived: the device began them at begun_us and ended them at ended_us. Call it before their
 * rate_over. */
static inline void rate_came(struct rate *r, uint64_t bytes, uint64_t begun_us, uint64_t ended_us)
{
	const uint64_t since = begun_us > r->ended_us ? begun_us : r->ended_us;

	r->us += ended_us > since ? (double)(ended_us - since) : 0;
	r->bytes += (double)bytes;
	r->ended_us = ended_us > r->ended_us ? ended_us : r->ended_us;
	if (++r->samples < RATE_SAMPLES && r->bytes < RATE_BYTES)
		return;
	r->samples /= 2;
	r->us /= 2;
	r->bytes /= 2;
}

/* Bytes a second. */
static inline uint64_t rate_bytes_s(const struct rate *r)
{
	return r->us > 0 ? (uint64_t)(r->bytes * 1e6 / r->us) : UINT64_MAX;
}

/* Microseconds until `bytes` more have arrived, behind those that are under way. */
static inline uint64_t rate_us(const struct rate *r, uint64_t bytes, uint64_t now_us)
{
	const double us = (double)(r->queued + bytes) * r->us / r->bytes;
	const uint64_t stalled = r->queued && now_us > r->ended_us ? now_us - r->ended_us : 0;

	return (uint64_t)us + (stalled > RATE_STALL_US ? stalled : 0);
}

#endif
