# Which files own which third-party header: `owned HEADER FILE...` (a function of tests/rules.sh).
owned 'grpc/' daemon/rpc.c daemon/rpc_engine.h daemon/rpc_loop.c daemon/rpc_step.c client/rpc.c client/rpc_call.c client/rpc_call.h
owned 'urcu' store/index.h store/index.c
owned 'isa-l' store/slot.c client/stream.c
owned 'xxhash' kernels/layout_id.c store/index.c client/keys.c client/layout.c
owned 'jansson' client/ctl/output.c client/ctl/layouts.c eviction/replay/parse.c
owned 'lzma' eviction/replay/read.c
owned 'liburing' store/ring_uring.c
owned 'microhttpd' daemon/metrics.c
owned 'systemd/' daemon/main.c
owned 'lmdb' store/catalog_file.h
