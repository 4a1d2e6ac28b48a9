/* What a session's opening says of a GPU on which no block of the session can lie. */
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "proto/layout_message.h"
#include "tests/shell.h"
#include "tests/sim/device.h"

#include <sys/mman.h>

static struct shell s;
static struct rpc_call call;

static void setup(void)
{
	setenv("SIM_GPU_DEVICES", "1", 1);
	shell_open_all(&s, NULL, terrace_device_ops());
	log_setup(LOG_WARN, LOG_LOGFMT);
}

static void teardown(void)
{
	rpc_call_fini(&call);
	shell_close(&s);
}

static const Terrace__V1__OpenSessionReply *ask(rpc_unary_fn *method, const void *request)
{
	const struct rpc_method *m = rpc_methods;
	ProtobufCMessage *reply = NULL;

	while (m->unary != method)
		m++;
	rpc_call_fini(&call);
	rpc_call_init(&call, &s.daemon, m, daemon_now_us(), daemon_now_us() + 10000000);
	ck_assert_msg(method(&call, request, &reply) == STATUS_OK, "%s", call.why);
	return (const Terrace__V1__OpenSessionReply *)reply;
}

static const Terrace__V1__OpenSessionReply *open_session(void)
{
	static struct kv_layout layout;
	static Terrace__V1__Layout message, *list = &message;
	Terrace__V1__OpenSessionRequest q = TERRACE__V1__OPEN_SESSION_REQUEST__INIT;

	layout = shell_layout(3);
	layout_message_write(&layout, &message);
	q.layouts = &list;
	q.n_layouts = 1;
	return ask(rpc_open_session, &q);
}

/* What is logged from the first call on, until the second takes it. */
static int log_file, log_before;

static void log_take(void)
{
	log_file = memfd_create("log", MFD_CLOEXEC);
	log_before = dup(STDERR_FILENO);
	ck_assert_int_ge(dup2(log_file, STDERR_FILENO), 0);
}

static const char *log_taken(void)
{
	static char text[4096];
	ssize_t n;

	dup2(log_before, STDERR_FILENO);
	n = pread(log_file, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	close(log_before);
	close(log_file);
	return text;
}

static void says(const char *words)
{
	static const char *const parts[] = {
		"layouts[0]: a block takes", "bytes of GPU 0, and leases and reservations may hold 0 at most",
		"raise pinned_share or gpu_bytes",
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		ck_assert_msg(strstr(words, parts[i]) != NULL, "%s", words);
}

START_TEST(opening_tells_of_a_gpu_that_is_too_small)
{
	Terrace__V1__AttachRequest attach = TERRACE__V1__ATTACH_REQUEST__INIT;
	const Terrace__V1__OpenSessionReply *r;
	uint8_t token[CACHE_TOKEN_BYTES];
	const char *log;

	log_take();
	r = open_session();
	ck_assert_uint_eq(r->n_gpus, 1);
	ck_assert_str_eq(r->gpus[0]->unfit, "");
	ck_assert_str_eq(log_taken(), "");
	s.daemon.cache->options.gpu_pinned_milli = 0; /* so little of it that no block fits */
	log_take();
	r = open_session();
	log = log_taken();
	says(r->gpus[0]->unfit);
	says(log);
	ck_assert_msg(strstr(log, "layout_unfit") && strstr(log, "calls of the session that name this GPU are refused"),
		      "%s", log);
	memcpy(token, r->token.data, sizeof(token));
	attach.token = (ProtobufCBinaryData){ sizeof(token), token };
	says(ask(rpc_attach, &attach)->gpus[0]->unfit);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_unfit");
	TCase *t = tcase_create("rpc_unfit");
	SRunner *r;
	int failed;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, opening_tells_of_a_gpu_that_is_too_small);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
