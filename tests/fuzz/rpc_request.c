/* Any bytes as the request of any unary method, against a real cache: an answer or a status with words, and never a crash. The first byte
 * chooses the method, and by its top bit whether the handle of a live session stands before the bytes as field 1, which no input could
 * guess: by the next bit of a plain session, or of one with a grid. The cache is made anew now and then, so that what one input leaves does not pile up.
 */
#include "daemon/block/lock.h"
#include "daemon/cache.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "store/status.h"
#include "tests/daemon/rpc/handle.h"
#include "tests/fuzz/daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RUNS_A_CACHE = 2000, MESSAGE_MAX = 64 * 1024 };

static struct fuzz_daemon fuzz;
static struct rpc_call call;
static unsigned runs;

static void renew(void)
{
	if (runs++ % RUNS_A_CACHE != 0)
		return;
	fuzz_daemon_close(&fuzz);
	fuzz_daemon_open(&fuzz);
}

/* Field 1 as a fixed64; a later field 1 of the input's own would win. Returns its length. */
static size_t session_field(uint8_t *out, uint64_t session)
{
	out[0] = 1 << 3 | 1;
	memcpy(out + 1, &session, sizeof session);
	return 1 + sizeof session;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[MESSAGE_MAX];
	size_t n = 0;
	ProtobufCMessage *reply = NULL;
	const struct rpc_method *method;
	enum status status;

	if (size == 0 || size > MESSAGE_MAX - 16)
		return 0;
	renew();
	if (data[0] & 0x80)
		n = session_field(bytes, data[0] & 0x40 ? fuzz.units.id : fuzz.session.id);
	memcpy(bytes + n, data + 1, size - 1);
	method = &rpc_methods[(data[0] & 0x3f) % rpc_methods_count];
	if (method->unary == NULL)
		return 0;
	rpc_call_init(&call, &fuzz.daemon, method, daemon_now_us(), daemon_now_us() + 1000);
	status = call_handle(&call, bytes, n + size - 1, &reply);
	if (status == STATUS_OK ? reply == NULL : status != STATUS_BUSY && call.why[0] == 0)
		abort();
	if (status == STATUS_OK)
		protobuf_c_message_get_packed_size(reply);
	rpc_call_fini(&call);
	cache_drain(fuzz.daemon.cache, false);
	cache_tick(fuzz.daemon.cache, daemon_now_us());
	return 0;
}
