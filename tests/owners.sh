# Which files own which third-party header: `owned HEADER FILE...` (a function of tests/rules.sh).
owned 'grpc/' daemon/rpc/server.c daemon/rpc/engine.h daemon/rpc/loop.c daemon/rpc/step.c daemon/etcd/engine.h daemon/etcd/engine.c daemon/etcd/connection.c daemon/etcd/watch.c daemon/peers/credentials.h daemon/peers/credentials.c daemon/peers/links.c daemon/peers/fetch.c client/transport/grpc.c client/transport/grpc_call.c client/transport/grpc_call.h
owned 'urcu' store/index.h store/index.c
owned 'isa-l' store/slot.c client/call/stream.c
owned 'xxhash' kernels/layout_id.c store/index.c client/value/keys.c client/value/layout.c
owned 'jansson' client/ctl/output.c client/ctl/layouts.c eviction/replay/parse.c
owned 'lzma' eviction/replay/read.c
owned 'infiniband/' daemon/verbs/ibverbs.c
owned 'liburing' store/ring/uring.c
owned 'microhttpd' daemon/http/metrics.c
owned 'systemd/' daemon/main.c
owned 'lmdb' store/catalog/file.h
owned 'openssl/' proto/tls.c proto/certificate.c daemon/secrets/secret_file.c daemon/rpc/tls.c daemon/rpc/tls_records.c client/transport/tls.c
