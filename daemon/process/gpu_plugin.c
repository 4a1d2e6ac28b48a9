/* See process/gpu_plugin.h. */
#include "daemon/process/gpu_plugin.h"

#include "daemon/process/cache_options.h"
#include "daemon/process/config.h"
#include "daemon/process/log.h"
#include "store/device.h"
#include "store/status.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define GPU_PLUGIN_FILE "libterrace_cuda.so.0"

/* The table in place of a missing plugin: GPUs that the configuration names are lost from the start, with the reason.
 * No other function is called for a GPU that was not opened. */
static char none_why[160];

static uint32_t none_count(void)
{
	return 0;
}

static enum status none_open(uint32_t ordinal, struct device **out, const char **why)
{
	(void)ordinal;
	(void)out;
	*why = none_why;
	return STATUS_UNAVAILABLE;
}

static const struct device_ops none = { .version = DEVICE_OPS_VERSION, .bytes = sizeof none, .count = none_count, .open = none_open };

static const struct device_ops *table_of(const char *file, const char **why)
{
	const struct device_ops *(*get)(void);
	const struct device_ops *ops = NULL;
	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		*why = dlerror();
		return NULL;
	}
	*(void **)&get = dlsym(library, DEVICE_OPS_SYMBOL);
	if (get)
		ops = get();
	*why = "the library is not of this version";
	if (ops && ops->version == DEVICE_OPS_VERSION && ops->bytes == sizeof(*ops))
		return ops;
	dlclose(library);
	return NULL;
}

void gpu_plugin_load(const struct config *c, struct cache_config *out)
{
	const char *file = strcmp(c->cuda_plugin, "auto") ? c->cuda_plugin : GPU_PLUGIN_FILE, *why = "no GPU, or no driver for it";
	const struct device_ops *ops;
	uint32_t n, there;
	bool all;

	n = config_gpus(c->gpus, out->gpus, &all, &(const char *){ NULL });
	if (!n && !all)
		return;
	ops = table_of(file, &why);
	there = ops ? ops->count() : 0;
	if (ops && !there)
		why = "no GPU, or no driver for it";
	if (!there && n) {
		snprintf(none_why, sizeof none_why, "%s", why);
		ops = &none;
	} else if (!there) {
		log_warn("gpus_off", LOG_TEXT("gpus", c->gpus), LOG_TEXT("library", file), LOG_TEXT("reason", why));
		return;
	}
	for (; all && n < there && n < CONFIG_GPUS_MAX; n++)
		out->gpus[n] = n;
	out->options.device_ops = ops;
	out->options.gpu_count = n;
}
