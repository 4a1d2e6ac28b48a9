/* The table of every method that the daemon serves. A method of the .proto that is missing here is
 * UNIMPLEMENTED. */
#include "daemon/rpc/methods.h"

#include "health.pb-c.h"
#include "terrace.pb-c.h"

#define CACHE(method) "/terrace.v1.Cache/" method, "Cache." method
#define ADMIN(method) "/terrace.v1.Admin/" method, "Admin." method
#define PEER(method) "/terrace.v1.Peer/" method, "Peer." method
#define HEALTH(method) "/grpc.health.v1.Health/" method, "Health." method
#define ASK(message) &terrace__v1__##message##_request__descriptor

const struct rpc_method rpc_methods[] = {
	{ CACHE("OpenSession"), RPC_INLINE, false, ASK(open_session), rpc_open_session, rpc_open_session_undo },
	{ CACHE("Attach"), RPC_INLINE, false, ASK(attach), rpc_attach },
	{ CACHE("CloseSession"), RPC_INLINE, false, ASK(close_session), rpc_close_session },
	{ CACHE("Lookup"), RPC_INLINE, true, ASK(lookup), rpc_lookup },
	{ CACHE("Lease"), RPC_INLINE, true, ASK(lease), rpc_lease, rpc_lease_undo },
	{ CACHE("Release"), RPC_INLINE, true, ASK(release), rpc_release },
	{ CACHE("Reserve"), RPC_INLINE, true, ASK(reserve), rpc_reserve, rpc_reserve_undo },
	{ CACHE("Commit"), RPC_WORKER, true, ASK(commit), rpc_commit, rpc_commit_undo },
	{ CACHE("Abort"), RPC_INLINE, false, ASK(abort), rpc_abort },
	{ CACHE("Put"), RPC_CLIENT_STREAM, false, NULL, .in = &rpc_put_stream },
	{ CACHE("Get"), RPC_SERVER_STREAM, false, ASK(get), .out = &rpc_get_stream },
	{ CACHE("Touch"), RPC_INLINE, true, ASK(touch), rpc_touch },
	{ CACHE("Report"), RPC_INLINE, false, ASK(report), rpc_report },
	{ CACHE("Warm"), RPC_INLINE, false, ASK(warm), rpc_warm },
	{ CACHE("Flush"), RPC_INLINE, false, ASK(flush), rpc_flush },
	{ CACHE("Delete"), RPC_INLINE, false, ASK(delete), rpc_delete },
	{ CACHE("Watch"), RPC_SERVER_STREAM, false, ASK(watch), .out = &rpc_watch_stream },
	{ ADMIN("Stats"), RPC_INLINE, false, ASK(stats), rpc_stats },
	{ ADMIN("Inspect"), RPC_WORKER, false, ASK(inspect), rpc_inspect },
	{ ADMIN("Explain"), RPC_WORKER, false, ASK(explain), rpc_explain },
	{ ADMIN("Graph"), RPC_WORKER, false, ASK(graph), rpc_graph },
	{ ADMIN("TraceStart"), RPC_WORKER, false, ASK(trace_start), rpc_trace_start },
	{ ADMIN("TraceStop"), RPC_WORKER, false, ASK(trace_stop), rpc_trace_stop },
	{ ADMIN("Verify"), RPC_WORKER, false, ASK(verify), rpc_verify },
	{ ADMIN("Compact"), RPC_WORKER, false, ASK(compact), rpc_compact },
	{ ADMIN("Layouts"), RPC_INLINE, false, ASK(layouts), rpc_layouts },
	{ ADMIN("Drain"), RPC_WORKER, false, ASK(drain), rpc_drain },
	{ ADMIN("Config"), RPC_INLINE, false, ASK(config), rpc_config },
	{ ADMIN("Peers"), RPC_WORKER, false, ASK(peers), rpc_peers },
	{ ADMIN("Locate"), RPC_WORKER, false, ASK(locate), rpc_locate },
	{ PEER("Publish"), RPC_WORKER, false, ASK(publish), rpc_peer_publish, .cluster = true },
	{ PEER("Find"), RPC_INLINE, true, ASK(find), rpc_peer_find, .cluster = true },
	{ PEER("Lend"), RPC_WORKER, false, ASK(lend), rpc_lend, rpc_lend_undo, .cluster = true },
	{ PEER("EndLoan"), RPC_INLINE, false, ASK(end_loan), rpc_end_loan, .cluster = true },
	{ PEER("Forget"), RPC_INLINE, false, ASK(forget), rpc_forget, .cluster = true },
	{ PEER("Offer"), RPC_INLINE, false, ASK(offer), rpc_offer, .cluster = true },
	{ PEER("Fetch"), RPC_SERVER_STREAM, false, ASK(fetch), .out = &rpc_fetch_stream, .cluster = true },
	{ HEALTH("Check"), RPC_INLINE, false, &grpc__health__v1__health_check_request__descriptor, rpc_health_check },
	{ HEALTH("Watch"), RPC_SERVER_STREAM, false, &grpc__health__v1__health_check_request__descriptor,
	  .out = &rpc_health_watch },
};
const uint32_t rpc_methods_count = sizeof rpc_methods / sizeof rpc_methods[0];
