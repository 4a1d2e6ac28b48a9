/* The CUDA plugin, for the rest of the library: its table of GPU memory, and which layouts its kernels can attend. */
#ifndef TERRACE_CLIENT_DRIVER_PLUGIN_H
#define TERRACE_CLIENT_DRIVER_PLUGIN_H

#include "client/include/terrace.h"

struct device_ops;
struct kv_layout;

/* The plugin's table, valid for the life of the process. Loads the plugin if it is not loaded. TERRACE_UNSUPPORTED:
 * there is no plugin, or it has no table of this version. */
enum terrace_status client_cuda_devices(const struct device_ops **out);

/* TERRACE_OK if attention on the current device has kernels for the layout, which is sound. TERRACE_UNSUPPORTED: it has
 * none; the error text says why. TERRACE_INTERNAL: CUDA fails. */
enum terrace_status client_cuda_attends(const struct kv_layout *layout);

#endif
