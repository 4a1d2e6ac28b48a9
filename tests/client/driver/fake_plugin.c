/* A plugin without a GPU: notes what it is called with, and answers what the test wants. */
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/client/driver/fake_plugin.h"

static struct client_cuda_noted noted;

__attribute__((visibility("default"))) struct client_cuda_noted *client_cuda_noted(void)
{
	return &noted;
}

static const char *problem(void)
{
	return noted.problem;
}

static const char *last_error(void)
{
	return "the words of CUDA";
}

static bool attend_supported(enum kv_format k, enum kv_format v)
{
	return k == v;
}

static unsigned float_mode(void)
{
#if defined(__x86_64__)
	return _mm_getcsr() & ~0x3fu;
#else
	return 0;
#endif
}

static void note(const struct kv_layout *l, const struct kv_geometry *g, struct CUstream_st *stream)
{
	noted.calls++;
	noted.float_mode = float_mode();
	noted.layout = *l;
	noted.geometry = *g;
	noted.stream = stream;
}

static enum status workspace(size_t *bytes)
{
	noted.float_mode = float_mode();
	if (noted.answer == STATUS_OK)
		*bytes = noted.workspace;
	return noted.answer;
}

static enum status attend_workspace(const struct kv_cuda_attend *a, size_t *bytes)
{
	noted.attend = *a;
	return workspace(bytes);
}

static enum status attend_plan(const struct kv_cuda_attend *a, struct CUstream_st *stream)
{
	note(a->layout, a->geometry, stream);
	noted.attend = *a;
	return noted.answer;
}

static enum status extend_workspace(const struct kv_cuda_extend *e, size_t *bytes)
{
	noted.extend = *e;
	return workspace(bytes);
}

static enum status extend_run(const struct kv_cuda_extend *e, struct CUstream_st *stream)
{
	note(e->layout, e->geometry, stream);
	noted.extend = *e;
	return noted.answer;
}

static enum status codec(const struct kv_cuda_codec *c, struct CUstream_st *stream)
{
	note(c->layout, c->geometry, stream);
	noted.codec = *c;
	return noted.answer;
}

static enum status repack_from_pages(const struct kv_cuda_repack *r, struct CUstream_st *stream)
{
	note(r->layout, r->geometry, stream);
	noted.repack = *r;
	noted.to_pages = false;
	return noted.answer;
}

static enum status repack_to_pages(const struct kv_cuda_repack *r, struct CUstream_st *stream)
{
	enum status answer = repack_from_pages(r, stream);

	noted.to_pages = true;
	return answer;
}

static enum status merge(const struct kv_cuda_merge *m, struct CUstream_st *stream)
{
	noted.calls++;
	noted.stream = stream;
	noted.merge = *m;
	return noted.answer;
}

static enum status copy(const struct kv_cuda_copy *c, struct CUstream_st *stream)
{
	note(c->layout, c->geometry, stream);
	noted.copy = *c;
	return noted.answer;
}

__attribute__((visibility("default"))) const struct kv_cuda_plugin *kv_cuda_plugin(void)
{
	static const struct kv_cuda_plugin table = {
		.version = KV_CUDA_PLUGIN_VERSION, .bytes = sizeof(table), .problem = problem, .last_error = last_error,
		.attend_supported = attend_supported, .attend_workspace = attend_workspace, .attend_plan = attend_plan,
		.attend_run = attend_plan, .extend_workspace = extend_workspace, .extend_run = extend_run, .encode = codec,
		.decode = codec, .repack_from_pages = repack_from_pages, .repack_to_pages = repack_to_pages,
		.merge = merge, .copy = copy,
	};

	return &table;
}
