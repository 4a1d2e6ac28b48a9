/* Blocks of a loan by stream: Peer.Fetch at the end that reads.
 *
 * A stream brings the slots of one loan one after another, each as its header and its block, straight to where they
 * are wanted. Nothing of what comes is trusted: the stream only takes care that a slot gets exactly as many bytes as it
 * has; call/arrival.c checks them. */
#ifndef TERRACE_DAEMON_PEERS_FETCH_H
#define TERRACE_DAEMON_PEERS_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct peer_links;
struct peer_stream;

enum { FETCH_PIECES_MAX = 1024 };

struct peer_piece {
	uint32_t index;                /* its number in the loan */
	uint8_t *to;                   /* [bytes]: header and block */
	uint64_t bytes;
	uint32_t own;                  /* the caller's */
};

/* On the links' thread, without a lock. */
struct peer_stream_ops {
	/* A piece has ended: OK, all its bytes are there; MISS, the holder has it no more. Once for each piece. */
	void (*came)(void *arg, uint32_t own, enum status s);
	/* After the last piece, and last: nothing of the stream is used any more. bytes, us: what came, and in what
	 * time. s: OK, or why some pieces did not come. */
	void (*ended)(void *arg, enum status s, uint64_t bytes, uint64_t us);
};

struct peer_stream_call {
	const char *member, *tenant;   /* used until peer_stream_begin returns; the member until the end */
	uint64_t loan;
	const struct peer_piece *piece; /* [count], which are copied */
	uint32_t count;                /* at most FETCH_PIECES_MAX */
	uint64_t deadline_us;          /* of the machine's clock */
};

/* Begins a stream. OK: *out is set before the first of ops may run. Else nothing was begun, as of links_call. */
enum status peer_stream_begin(struct peer_links *l, const struct peer_stream_call *q, const struct peer_stream_ops *ops,
			      void *arg, struct peer_stream **out);
/* Ends it soon; its ends still come. As links_cancel. */
void peer_stream_cancel(struct peer_stream *s);

#endif
