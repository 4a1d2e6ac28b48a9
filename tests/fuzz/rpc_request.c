/* Any bytes as the request of any unary method, against a real cache: an answer or a status with words, and never a crash. The first byte
 * chooses the method. The cache is made anew now and then, so that what one input leaves does not pile up.
 */
#include "daemon/rpc_methods.h"

#include "tests/shell.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RUNS_A_CACHE = 2000 };

static struct shell shell;
static struct rpc_call call;
static unsigned runs;

static void renew(void)
{
	if (runs++ % RUNS_A_CACHE != 0)
		return;
	if (shell.daemon.cache != NULL)
		shell_close(&shell);
	shell_open(&shell);
	shell_store(&shell, "key-of-16-bytes.");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	ProtobufCMessage *reply = NULL;
	const struct rpc_method *method;
	enum status status;

	if (size == 0)
		return 0;
	renew();
	method = &rpc_methods[data[0] % rpc_methods_count];
	if (method->unary == NULL)
		return 0;
	rpc_call_init(&call, &shell.daemon, method, daemon_now_us(), daemon_now_us() + 1000);
	status = rpc_call_handle(&call, data + 1, size - 1, &reply);
	if (status == STATUS_OK ? reply == NULL : status != STATUS_BUSY && call.why[0] == 0)
		abort();
	if (status == STATUS_OK)
		protobuf_c_message_get_packed_size(reply);
	rpc_call_fini(&call);
	cache_drain(shell.daemon.cache, false);
	cache_tick(shell.daemon.cache, daemon_now_us());
	return 0;
}
