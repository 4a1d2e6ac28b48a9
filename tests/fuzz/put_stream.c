/* Any bytes as the messages of a Put stream: byte 0 says how long the pieces are in which gRPC would have received them; each message is
 * two bytes of length and its bytes. The largest number stands for the live session's handle, which no input could guess. Whatever the stream
 * said, afterwards no reservation is left.
 */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "store/status.h"
#include "tests/fuzz/daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SPANS = 64, INPUT_MAX = 1 << 20 };

static struct fuzz_daemon fuzz;
static struct rpc_call call;

static const struct rpc_method *put_method(void)
{
	for (uint32_t i = 0; i < rpc_methods_count; i++)
		if (rpc_methods[i].in == &rpc_put_stream)
			return &rpc_methods[i];
	abort();
}

static enum status send_piece(const uint8_t *bytes, size_t n, size_t piece)
{
	struct rpc_span spans[SPANS];
	size_t count = 0;

	for (size_t at = 0; at < n && count < SPANS; count++) {
		size_t most = count + 1 == SPANS ? n - at : piece;

		spans[count] = (struct rpc_span){ bytes + at, n - at < most ? n - at : most };
		at += spans[count].bytes;
	}
	return rpc_put_stream.message(&call, spans, count);
}

/* Writes the session's handle where the input has 2^64 - 1. */
static void session_fill(uint8_t *bytes, size_t size)
{
	const uint64_t largest = UINT64_MAX;
	uint8_t *at;

	while ((at = memmem(bytes, size, &largest, sizeof largest)) != NULL)
		memcpy(at, &fuzz.session.id, sizeof largest);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static uint8_t data[INPUT_MAX];
	ProtobufCMessage *reply = NULL;
	struct cache_load load;
	enum status status = STATUS_OK;
	size_t piece, at = 1;

	if (size == 0 || size > INPUT_MAX)
		return 0;
	if (fuzz.daemon.cache == NULL)
		fuzz_daemon_open(&fuzz);
	memcpy(data, input, size);
	session_fill(data, size);
	piece = 1 + data[0];
	rpc_call_init(&call, &fuzz.daemon, put_method(), daemon_now_us(), daemon_now_us() + 1000000);
	if (rpc_put_stream.open(&call) != STATUS_OK)
		abort();
	while (status == STATUS_OK && size - at >= 2) {
		size_t n = (size_t)data[at] << 8 | data[at + 1];

		at += 2;
		n = n < size - at ? n : size - at;
		status = send_piece(data + at, n, piece);
		at += n;
	}
	if (status == STATUS_OK)
		status = rpc_put_stream.end(&call, &reply);
	if (status == STATUS_OK ? reply == NULL : call.why[0] == 0)
		abort();
	rpc_put_stream.close(&call);
	rpc_call_fini(&call);
	cache_load(fuzz.daemon.cache, &load);
	if (load.reservations != 0)
		abort();
	return 0;
}
