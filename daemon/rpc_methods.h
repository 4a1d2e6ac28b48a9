/* The handlers, one file a request path; their contract is rpc_call.h's. */
#ifndef TERRACE_DAEMON_RPC_METHODS_H
#define TERRACE_DAEMON_RPC_METHODS_H

#include "daemon/rpc_call.h"

/* rpc_session.c */
rpc_unary_fn rpc_open_session, rpc_attach, rpc_close_session;
rpc_undo_fn rpc_open_session_undo;
/* rpc_lookup.c */
rpc_unary_fn rpc_lookup;
/* rpc_lease.c */
rpc_unary_fn rpc_lease, rpc_release;
rpc_undo_fn rpc_lease_undo;
/* rpc_put.c */
rpc_unary_fn rpc_reserve, rpc_commit, rpc_abort;
rpc_undo_fn rpc_reserve_undo, rpc_commit_undo;
/* rpc_touch.c */
rpc_unary_fn rpc_touch, rpc_report;
/* rpc_warm.c, rpc_flush.c */
rpc_unary_fn rpc_warm, rpc_flush;
/* rpc_delete.c */
rpc_unary_fn rpc_delete;
/* rpc_admin.c */
rpc_unary_fn rpc_stats, rpc_inspect, rpc_layouts, rpc_drain, rpc_config;
/* rpc_explain.c */
rpc_unary_fn rpc_explain, rpc_graph;
/* rpc_trace.c */
rpc_unary_fn rpc_trace_start, rpc_trace_stop;
/* rpc_verify.c, rpc_compact.c */
rpc_unary_fn rpc_verify, rpc_compact;
/* rpc_health.c */
rpc_unary_fn rpc_health_check;

extern const struct rpc_client_stream rpc_put_stream;  /* rpc_put_stream.c */
extern const struct rpc_server_stream rpc_get_stream;  /* rpc_get_stream.c */
extern const struct rpc_server_stream rpc_watch_stream; /* rpc_watch.c */
extern const struct rpc_server_stream rpc_health_watch; /* rpc_health.c */

#endif
