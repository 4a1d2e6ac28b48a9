/* The CUDA plugin, for the rest of the library: its table of GPU memory, and what its kernels can attend. */
#ifndef TERRACE_CLIENT_DRIVER_PLUGIN_H
#define TERRACE_CLIENT_DRIVER_PLUGIN_H

#include "client/include/terrace.h"

struct device_ops;
struct kv_layout;

/* The plugin's table, which is good for the life of the process; the plugin is loaded if it is not. TERRACE_UNSUPPORTED: there is no
 * plugin, or it has no such table of this version. */
enum terrace_status client_cuda_devices(const struct device_ops **out);

/* TERRACE_OK if attention on the current device has kernels for the layout, which is sound; else TERRACE_UNSUPPORTED, with the reason.
 * TERRACE_INTERNAL: CUDA fails. */
enum terrace_status client_cuda_attends(const struct kv_layout *layout);

#endif
