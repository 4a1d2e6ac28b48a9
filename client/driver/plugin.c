/* CUDA, loaded at run time: the public functions of kernels/cuda.
 *
 * The first call that needs the plugin looks for it (or terrace_cuda_load, with a path); it stays loaded. Arguments in
 * host memory are checked here; device pointers are not checked. Where the library or the plugin computes with floats
 * on the host (scales, soft caps), it uses the default mode (kernels/float_mode.h), whatever mode the caller's thread
 * has set.
 */
#include "client/driver/plugin.h"

#include "client/value/layout.h"
#include "client/value/status.h"
#include "kernels/cuda/plugin.h"
#include "kernels/float_mode.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>

#define PLUGIN_FILE "libterrace_cuda.so.0"

static struct {
	pthread_mutex_t lock;
	const struct kv_cuda_plugin *_Atomic table;
	const struct device_ops *devices; /* set before table; NULL: it has none */
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The table of GPU memory of a plugin; NULL: it has none, or one that this library does not know. */
static const struct device_ops *devices_of(void *library)
{
	const struct device_ops *(*get)(void) = (const struct device_ops *(*)(void))dlsym(library, DEVICE_OPS_SYMBOL);
	const struct device_ops *ops = get ? get() : NULL;

	return ops && ops->version == DEVICE_OPS_VERSION && ops->bytes == sizeof(*ops) ? ops : NULL;
}

static enum terrace_status open_plugin(const char *path, const struct kv_cuda_plugin **out)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	kv_cuda_plugin_fn *get;

	if (!library)
		return client_fail(TERRACE_UNSUPPORTED, "no CUDA: %s: install libterrace_cuda.so.0 where the loader finds it, or "
				   "do without a GPU", dlerror());
	get = (kv_cuda_plugin_fn *)dlsym(library, KV_CUDA_PLUGIN_SYMBOL);
	*out = get ? get() : NULL;
	if (*out && (*out)->version == KV_CUDA_PLUGIN_VERSION && (*out)->bytes == sizeof(**out)) {
		loaded.devices = devices_of(library);
		return TERRACE_OK;
	}
	dlclose(library);
	return client_fail(TERRACE_UNSUPPORTED, "no CUDA: %s is not of this library's version: install both from one build", path);
}

static enum terrace_status load(const char *path, const struct kv_cuda_plugin **out)
{
	enum terrace_status status = TERRACE_OK;

	pthread_mutex_lock(&loaded.lock);
	*out = loaded.table;
	if (!*out)
		status = open_plugin(path ? path : PLUGIN_FILE, out);
	if (!status)
		loaded.table = *out;
	pthread_mutex_unlock(&loaded.lock);
	return status;
}

static enum terrace_status device_will_do(const struct kv_cuda_plugin *p)
{
	const char *problem = p->problem();

	return problem ? client_fail(TERRACE_UNSUPPORTED, "no CUDA device: %s: see nvidia-smi, or do without a GPU", problem) : TERRACE_OK;
}

enum terrace_status terrace_cuda_load(const char *path)
{
	const struct kv_cuda_plugin *table;
	enum terrace_status status = load(path, &table);

	return status ? status : device_will_do(table);
}

enum terrace_status client_cuda_devices(const struct device_ops **out)
{
	const struct kv_cuda_plugin *table;
	enum terrace_status status = load(NULL, &table);

	if (status)
		return status;
	if (!loaded.devices)
		return client_fail(TERRACE_UNSUPPORTED, "no GPU memory: the CUDA plugin is not of this library's version: "
				   "install both from one build");
	*out = loaded.devices;
	return TERRACE_OK;
}

/* The plugin, if the current device will do for it. Threads may have different devices, so each call asks. */
static enum terrace_status plugin(const struct kv_cuda_plugin **out)
{
	enum terrace_status status = TERRACE_OK;

	*out = loaded.table;
	if (!*out)
		status = load(NULL, out);
	return status ? status : device_will_do(*out);
}

/* For messages: what attention and extend have. */
#define CLIENT_ATTEND_DIMS \
	"every build has head dim 128, one with TERRACE_CUDA_ALL also 64, 96, 192, 256, K of 192 with V of 128, " \
	"K of 128 with V of 64"

static enum terrace_status formats_fail(const struct kv_layout *l, const char *where)
{
	return client_fail(TERRACE_UNSUPPORTED, "no CUDA kernel attends %s keys with %s values of head dims %u and %u%s",
			   kv_format_info(l->k_format)->name, kv_format_info(l->v_format)->name, l->head_dim_k,
			   l->head_dim_v, where);
}

/* The status for the caller of a launcher's status; the numbers are the same. */
static enum terrace_status answer(const struct kv_cuda_plugin *p, enum status s, const char *what)
{
	switch (s) {
	case STATUS_OK:
		return TERRACE_OK;
	case STATUS_INVALID:
		return client_fail(TERRACE_INVALID, "%s: an argument is out of its bounds or not aligned: terrace.h gives both", what);
	case STATUS_UNSUPPORTED:
		return client_fail(TERRACE_UNSUPPORTED, "%s: no kernel for these formats, this head dim or this device", what);
	case STATUS_EXHAUSTED:
		return client_fail(TERRACE_EXHAUSTED, "%s: the workspace is too small: ask for its size with the call's _workspace", what);
	default:
		return client_fail(TERRACE_INTERNAL, "%s: CUDA refuses the launch: %s", what, p->last_error());
	}
}

enum terrace_status client_cuda_attends(const struct kv_layout *l)
{
	const struct kv_cuda_plugin *p;
	enum terrace_status status = plugin(&p);
	struct kv_geometry geometry;
	struct kv_cuda_attend one = {.layout = l, .geometry = &geometry, .sequences = 1, .queries = 1, .q_heads = l->heads};
	enum status found;
	size_t bytes;

	if (status || kv_is_opaque(l)) /* the engine's own kernels attend it */
		return status;
	if (!p->attend_supported(l->k_format, l->v_format))
		return formats_fail(l, "");
	kv_geometry_of(l, &geometry);
	found = p->attend_workspace(&one, &bytes);
	if (found == STATUS_UNSUPPORTED)
		return formats_fail(l, " in this build or on this device: " CLIENT_ATTEND_DIMS);
	return answer(p, found, "cuda attend");
}

/* The begin of every call: gets the plugin, and reads the caller's layout and options. */
struct call {
	const struct kv_cuda_plugin *plugin;
	struct kv_layout layout;
	struct kv_geometry geometry;
};

/* The answer of attention and extend, whose kernels want more of a layout than the others. */
static enum terrace_status attention_answer(const struct call *c, enum status s, const char *what)
{
	const struct kv_layout *l = &c->layout;

	if (s != STATUS_UNSUPPORTED)
		return answer(c->plugin, s, what);
	return client_fail(TERRACE_UNSUPPORTED, "%s: no kernel for %s keys and %s values of head dims %u and %u "
			   "in this build or on this device: " CLIENT_ATTEND_DIMS, what,
			   kv_format_info(l->k_format)->name,
			   kv_format_info(l->v_format)->name, l->head_dim_k, l->head_dim_v);
}

static enum terrace_status begin_any(struct call *c, const struct terrace_layout *layout, const char *what)
{
	enum terrace_status status = plugin(&c->plugin);
	const char *problem;

	if (status)
		return client_fail_in(status, what);
	problem = client_layout_read(layout, &c->layout);
	if (problem)
		return client_fail(TERRACE_INVALID, "%s: %s", what, problem);
	kv_geometry_of(&c->layout, &c->geometry);
	return TERRACE_OK;
}

/* Begins a call that looks into blocks: as begin_any, and UNSUPPORTED for a layout without a codec. */
static enum terrace_status begin(struct call *c, const struct terrace_layout *layout, const char *what)
{
	const enum terrace_status status = begin_any(c, layout, what);

	if (status || client_layout_codec(&c->layout))
		return status;
	return client_fail_in(TERRACE_UNSUPPORTED, what);
}

static enum terrace_status wrong_size(const char *what)
{
	return client_fail(TERRACE_INVALID, "%s: options are NULL, or their size is not set: begin them with their INIT", what);
}

static bool features_read(const struct terrace_cuda_features *in, struct kv_attend_features *out)
{
	struct terrace_cuda_features f;

	*out = (struct kv_attend_features){.window = 0};
	if (!in)
		return true;
	if (!client_options_copy(&f, sizeof(f), in, sizeof(f)))
		return false;
	*out = (struct kv_attend_features){.window = f.window,
					   .softcap = f.softcap,
					   .sinks = f.sinks,
					   .alibi = f.alibi,
					   .alibi_sqrt = f.alibi_sqrt,
					   .tree_bias = f.tree_bias,
					   .ranges = f.ranges,
					   .ranges_max = f.range_count,
					   .out_scale = f.out_scale};
	return true;
}

static float scale_of(float given, const struct kv_layout *l)
{
	return given != 0 ? given : 1.0f / sqrtf((float)l->head_dim_k);
}

static enum terrace_status attend_read(struct call *c, const struct terrace_layout *layout,
				       const struct terrace_cuda_attend_options *options, struct kv_cuda_attend *a)
{
	struct terrace_cuda_attend_options o;
	enum terrace_status status = begin(c, layout, "cuda attend");

	if (status)
		return status;
	*a = (struct kv_cuda_attend){.layout = &c->layout};
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)) || !features_read(o.features, &a->features))
		return wrong_size("cuda attend");
	a->geometry = &c->geometry;
	a->layer = o.layer;
	a->sequences = o.sequences;
	a->queries = o.queries;
	a->q_heads = o.q_heads;
	a->scale = scale_of(o.scale, &c->layout);
	a->q = o.q;
	a->q_dtype = (enum kv_dtype)o.q_dtype;
	a->blocks = o.blocks;
	a->blocks_stride = o.blocks_stride;
	a->kv_tokens = o.kv_tokens;
	a->out = o.out;
	a->out_dtype = (enum kv_dtype)o.out_dtype;
	a->lse = o.lse;
	a->workspace = o.workspace;
	a->workspace_bytes = o.workspace_bytes;
	a->settled = o.settled;
	a->split_tokens = o.split_tokens;
	return TERRACE_OK;
}

enum terrace_status terrace_cuda_attend_workspace(const struct terrace_layout *layout,
						  const struct terrace_cuda_attend_options *options, size_t *bytes)
{
	const struct kv_float_mode mode = kv_float_mode_enter();
	struct kv_cuda_attend a;
	struct call c;
	enum terrace_status status = attend_read(&c, layout, options, &a);

	if (!status && !bytes)
		status = client_fail(TERRACE_INVALID, "cuda attend: the pointer for the bytes is NULL");
	if (!status)
		status = attention_answer(&c, c.plugin->attend_workspace(&a, bytes), "cuda attend");
	kv_float_mode_leave(mode);
	return status;
}

enum terrace_status terrace_cuda_attend_plan(const struct terrace_layout *layout,
					     const struct terrace_cuda_attend_options *options, void *stream)
{
	const struct kv_float_mode mode = kv_float_mode_enter();
	struct kv_cuda_attend a;
	struct call c;
	enum terrace_status status = attend_read(&c, layout, options, &a);

	if (!status)
		status = attention_answer(&c, c.plugin->attend_plan(&a, stream), "cuda attend");
	kv_float_mode_leave(mode);
	return status;
}

enum terrace_status terrace_cuda_attend(const struct terrace_layout *layout,
					const struct terrace_cuda_attend_options *options, void *stream)
{
	const struct kv_float_mode mode = kv_float_mode_enter();
	struct kv_cuda_attend a;
	struct call c;
	enum terrace_status status = attend_read(&c, layout, options, &a);

	if (!status)
		status = attention_answer(&c, c.plugin->attend_run(&a, stream), "cuda attend");
	kv_float_mode_leave(mode);
	return status;
}

static enum terrace_status extend_read(struct call *c, const struct terrace_layout *layout,
				       const struct terrace_cuda_extend_options *options, struct kv_cuda_extend *e)
{
	struct terrace_cuda_extend_options o;
	enum terrace_status status = begin(c, layout, "cuda extend");

	if (status)
		return status;
	*e = (struct kv_cuda_extend){.layout = &c->layout};
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)) || !features_read(o.features, &e->features))
		return wrong_size("cuda extend");
	e->geometry = &c->geometry;
	e->layer = o.layer;
	e->sequences = o.sequences;
	e->total_queries = o.total_queries;
	e->q_heads = o.q_heads;
	e->scale = scale_of(o.scale, &c->layout);
	e->query_starts = o.query_starts;
	e->prefix_tokens = o.prefix_tokens;
	e->q = o.q;
	e->q_dtype = (enum kv_dtype)o.q_dtype;
	e->k = o.k;
	e->v = o.v;
	e->k_stride = o.k_stride;
	e->v_stride = o.v_stride;
	e->own_dtype = (enum kv_dtype)o.kv_dtype;
	e->blocks = o.blocks;
	e->blocks_stride = o.blocks_stride;
	e->out = o.out;
	e->out_dtype = (enum kv_dtype)o.out_dtype;
	e->lse = o.lse;
	e->workspace = o.workspace;
	e->workspace_bytes = o.workspace_bytes;
	e->tree_stride = o.tree_stride;
	return TERRACE_OK;
}

enum terrace_status terrace_cuda_extend_workspace(const struct terrace_layout *layout,
						  const struct terrace_cuda_extend_options *options, size_t *bytes)
{
	const struct kv_float_mode mode = kv_float_mode_enter();
	struct kv_cuda_extend e;
	struct call c;
	enum terrace_status status = extend_read(&c, layout, options, &e);

	if (!status && !bytes)
		status = client_fail(TERRACE_INVALID, "cuda extend: the pointer for the bytes is NULL");
	if (!status)
		status = attention_answer(&c, c.plugin->extend_workspace(&e, bytes), "cuda extend");
	kv_float_mode_leave(mode);
	return status;
}

enum terrace_status terrace_cuda_extend(const struct terrace_layout *layout,
					const struct terrace_cuda_extend_options *options, void *stream)
{
	const struct kv_float_mode mode = kv_float_mode_enter();
	struct kv_cuda_extend e;
	struct call c;
	enum terrace_status status = extend_read(&c, layout, options, &e);

	if (!status)
		status = attention_answer(&c, c.plugin->extend_run(&e, stream), "cuda extend");
	kv_float_mode_leave(mode);
	return status;
}

static enum terrace_status codec_read(struct call *c, const struct terrace_layout *layout,
				      const struct terrace_cuda_codec_options *options, struct kv_cuda_codec *out,
				      const char *what)
{
	struct terrace_cuda_codec_options o;
	enum terrace_status status = begin(c, layout, what);

	if (status)
		return status;
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return wrong_size(what);
	*out = (struct kv_cuda_codec){.layout = &c->layout,
				      .geometry = &c->geometry,
				      .layer = o.layer,
				      .tokens = o.tokens,
				      .slots = o.slots,
				      .blocks = o.blocks,
				      .block_count = o.block_count,
				      .k = o.k,
				      .v = o.v,
				      .k_stride = o.k_stride,
				      .v_stride = o.v_stride,
				      .dtype = (enum kv_dtype)o.dtype,
				      .rows = o.rows};
	return TERRACE_OK;
}

enum terrace_status terrace_cuda_encode(const struct terrace_layout *layout,
					const struct terrace_cuda_codec_options *options, void *stream)
{
	struct kv_cuda_codec k;
	struct call c;
	enum terrace_status status = codec_read(&c, layout, options, &k, "cuda encode");

	return status ? status : answer(c.plugin, c.plugin->encode(&k, stream), "cuda encode");
}

enum terrace_status terrace_cuda_decode(const struct terrace_layout *layout,
					const struct terrace_cuda_codec_options *options, void *stream)
{
	struct kv_cuda_codec k;
	struct call c;
	enum terrace_status status = codec_read(&c, layout, options, &k, "cuda decode");

	return status ? status : answer(c.plugin, c.plugin->decode(&k, stream), "cuda decode");
}

static struct kv_pages_side pages_of(const struct terrace_pages *p)
{
	return (struct kv_pages_side){p->codes, p->scales, p->code_page, p->code_token, p->code_head,
				      p->scale_page, p->scale_token, p->scale_head};
}

static enum terrace_status repack_read(struct call *c, const struct terrace_layout *layout,
				       const struct terrace_cuda_repack_options *options, struct kv_cuda_repack *out)
{
	struct terrace_cuda_repack_options o;
	enum terrace_status status = begin(c, layout, "cuda repack");

	if (status)
		return status;
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return wrong_size("cuda repack");
	if (c->layout.rope_dim)
		return client_fail(TERRACE_UNSUPPORTED, "cuda repack: " CLIENT_ROPE_REPACK);
	*out = (struct kv_cuda_repack){.layout = &c->layout,
				       .geometry = &c->geometry,
				       .layer = o.layer,
				       .tokens = o.tokens,
				       .slots = o.slots,
				       .page_slots = o.page_slots,
				       .blocks = o.blocks,
				       .block_count = o.block_count,
				       .page_tokens = o.page_tokens,
				       .page_count = o.page_count,
				       .side = {pages_of(&o.k), pages_of(&o.v)}};
	return TERRACE_OK;
}

enum terrace_status terrace_cuda_repack_from_pages(const struct terrace_layout *layout,
						   const struct terrace_cuda_repack_options *options, void *stream)
{
	struct kv_cuda_repack r;
	struct call c;
	enum terrace_status status = repack_read(&c, layout, options, &r);

	return status ? status : answer(c.plugin, c.plugin->repack_from_pages(&r, stream), "cuda repack");
}

enum terrace_status terrace_cuda_repack_to_pages(const struct terrace_layout *layout,
						 const struct terrace_cuda_repack_options *options, void *stream)
{
	struct kv_cuda_repack r;
	struct call c;
	enum terrace_status status = repack_read(&c, layout, options, &r);

	return status ? status : answer(c.plugin, c.plugin->repack_to_pages(&r, stream), "cuda repack");
}

enum terrace_status terrace_cuda_merge(const struct terrace_cuda_merge_options *options, void *stream)
{
	struct terrace_cuda_merge_options o;
	const struct kv_cuda_plugin *p;
	enum terrace_status status = plugin(&p);
	struct kv_cuda_merge m;

	if (status)
		return client_fail_in(status, "cuda merge");
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return wrong_size("cuda merge");
	if (!o.parts || o.parts > KV_CUDA_MERGE_PARTS || !o.out || !o.lse)
		return client_fail(TERRACE_INVALID, "cuda merge: 1 to %d parts", KV_CUDA_MERGE_PARTS);
	m = (struct kv_cuda_merge){.parts = o.parts,
				   .rows = o.rows,
				   .d = o.d,
				   .in_dtype = (enum kv_dtype)o.in_dtype,
				   .out_dtype = (enum kv_dtype)o.out_dtype,
				   .merged = o.merged,
				   .merged_lse = o.merged_lse};
	for (uint32_t i = 0; i < o.parts; i++) {
		m.out[i] = o.out[i];
		m.lse[i] = o.lse[i];
	}
	return answer(p, p->merge(&m, stream), "cuda merge");
}

enum terrace_status terrace_cuda_copy(const struct terrace_layout *layout, const struct terrace_cuda_copy_options *options,
				      void *stream)
{
	struct terrace_cuda_copy_options o;
	struct kv_cuda_copy copy;
	struct call c;
	enum terrace_status status = begin_any(&c, layout, "cuda copy");

	if (status)
		return status;
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return wrong_size("cuda copy");
	if (o.tokens && !client_layout_codec(&c.layout))
		return client_fail(TERRACE_UNSUPPORTED, "cuda copy: the layout is opaque, and where tokens lie in its "
				   "blocks is not known here: set tokens to NULL, which copies whole blocks");
	copy = (struct kv_cuda_copy){.count = o.count,
				     .from = o.from,
				     .to = o.to,
				     .block_bytes = c.geometry.block_bytes,
				     .tokens = o.tokens,
				     .layout = &c.layout,
				     .geometry = &c.geometry,
				     .ctas = o.ctas};
	return answer(c.plugin, c.plugin->copy(&copy, stream), "cuda copy");
}
