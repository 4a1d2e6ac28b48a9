/* The library that reaches GPUs (store/device.h), loaded when the configuration names GPUs; it stays loaded. */
#ifndef TERRACE_DAEMON_PROCESS_GPU_PLUGIN_H
#define TERRACE_DAEMON_PROCESS_GPU_PLUGIN_H

struct cache_config;
struct config;

/* Fills in device_ops and gpu_count of out->options. Without the library, a driver or a GPU there is no VRAM tier if `gpus` is "all", and the log
 * says why, once; GPUs that it names cannot be opened then, as one that is not there: cache_create has them lost from the start. Before other
 * threads start. */
void gpu_plugin_load(const struct config *c, struct cache_config *out);

#endif
