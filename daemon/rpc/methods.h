/* The handlers, one file a request path; their contract is rpc/handler.h's. */
#ifndef TERRACE_DAEMON_RPC_METHODS_H
#define TERRACE_DAEMON_RPC_METHODS_H

#include "daemon/rpc/handler.h"

struct cache_forget_call;
struct rpc_call;

/* rpc/method/session.c */
rpc_unary_fn rpc_open_session, rpc_attach, rpc_close_session;
rpc_undo_fn rpc_open_session_undo;
/* rpc/method/lookup.c */
rpc_unary_fn rpc_lookup;
/* rpc/method/lease.c */
rpc_unary_fn rpc_lease, rpc_release;
rpc_undo_fn rpc_lease_undo;
/* rpc/method/put.c */
rpc_unary_fn rpc_reserve, rpc_commit, rpc_abort;
rpc_undo_fn rpc_reserve_undo, rpc_commit_undo;
/* rpc/method/touch.c */
rpc_unary_fn rpc_touch, rpc_report;
/* rpc/method/warm.c, rpc/method/flush.c */
rpc_unary_fn rpc_warm, rpc_flush;
/* rpc/method/delete.c */
rpc_unary_fn rpc_delete;
/* rpc/method/admin.c */
rpc_unary_fn rpc_stats, rpc_inspect, rpc_layouts, rpc_drain, rpc_config, rpc_peers;
/* rpc/method/explain.c */
rpc_unary_fn rpc_explain, rpc_graph;
/* rpc/method/trace.c */
rpc_unary_fn rpc_trace_start, rpc_trace_stop;
/* rpc/method/verify.c, rpc/method/compact.c */
rpc_unary_fn rpc_verify, rpc_compact;
/* rpc/method/peer_publish.c, rpc/method/peer_find.c, rpc/method/locate.c */
rpc_unary_fn rpc_peer_publish, rpc_peer_find, rpc_locate;
/* rpc/method/loan.c */
rpc_unary_fn rpc_lend, rpc_end_loan;
/* rpc/method/offer.c */
rpc_unary_fn rpc_offer;
/* rpc/method/forget.c; rpc_refuse_names: as an owner, names that were deleted */
rpc_unary_fn rpc_forget;
void rpc_refuse_names(struct rpc_call *c, const struct cache_forget_call *q);
/* Whether the first step of a call that removes so many names is for a worker: it then returns BUSY, and has done
 * nothing. */
bool rpc_removes_on_worker(struct rpc_call *c, uint64_t names);
rpc_undo_fn rpc_lend_undo;
/* rpc/method/health.c */
rpc_unary_fn rpc_health_check;

extern const struct rpc_client_stream rpc_put_stream;  /* rpc/method/put_stream.c */
extern const struct rpc_server_stream rpc_get_stream, rpc_fetch_stream; /* rpc/method/get_stream.c */
extern const struct rpc_server_stream rpc_watch_stream; /* rpc/method/watch.c */
extern const struct rpc_server_stream rpc_health_watch; /* rpc/method/health.c */

#endif
