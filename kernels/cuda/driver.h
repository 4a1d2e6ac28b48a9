/* CUDA's driver, found at run time: the functions that device_memory.cu and device_copy.cu call, so that nothing is
 * linked against libcuda. Inside libterrace_cuda.
 */
#ifndef TERRACE_KERNELS_CUDA_DRIVER_H
#define TERRACE_KERNELS_CUDA_DRIVER_H

#include <cudaTypedefs.h>

#include "store/status.h"

/*  function, version of its form */
#define DRIVER_FUNCTIONS(X)                                                                                                          \
	X(cuInit, 2000)                                                                                                              \
	X(cuGetErrorString, 6000)                                                                                                    \
	X(cuDeviceGet, 2000)                                                                                                         \
	X(cuDeviceGetCount, 2000)                                                                                                    \
	X(cuDeviceGetName, 2000)                                                                                                     \
	X(cuDeviceGetUuid, 11040)                                                                                                    \
	X(cuDeviceGetAttribute, 2000)                                                                                                \
	X(cuDeviceCanAccessPeer, 4000)                                                                                               \
	X(cuDevicePrimaryCtxRetain, 7000)                                                                                            \
	X(cuDevicePrimaryCtxRelease, 11000)                                                                                          \
	X(cuCtxPushCurrent, 4000)                                                                                                    \
	X(cuCtxPopCurrent, 4000)                                                                                                     \
	X(cuThreadExchangeStreamCaptureMode, 10010)                                                                                  \
	X(cuMemGetInfo, 3020)                                                                                                        \
	X(cuMemGetAllocationGranularity, 10020)                                                                                      \
	X(cuMemAddressReserve, 10020)                                                                                                \
	X(cuMemAddressFree, 10020)                                                                                                   \
	X(cuMemCreate, 10020)                                                                                                        \
	X(cuMemRelease, 10020)                                                                                                       \
	X(cuMemMap, 10020)                                                                                                           \
	X(cuMemUnmap, 10020)                                                                                                         \
	X(cuMemSetAccess, 10020)                                                                                                     \
	X(cuMemExportToShareableHandle, 10020)                                                                                       \
	X(cuMemImportFromShareableHandle, 10020)                                                                                     \
	X(cuMemGetAllocationPropertiesFromHandle, 10020)                                                                             \
	X(cuMemHostRegister, 6050)                                                                                                   \
	X(cuMemHostUnregister, 4000)                                                                                                 \
	X(cuMemHostGetDevicePointer, 3020)                                                                                           \
	X(cuMemHostAlloc, 2020)                                                                                                      \
	X(cuMemFreeHost, 2000)                                                                                                       \
	X(cuMemAlloc, 3020)                                                                                                          \
	X(cuMemFree, 3020)                                                                                                           \
	X(cuMemcpyAsync, 4000)                                                                                                       \
	X(cuMemcpy2DAsync, 3020)                                                                                                     \
	X(cuMemcpyPeerAsync, 4000)                                                                                                   \
	X(cuMemsetD8Async, 3020)                                                                                                     \
	X(cuStreamCreateWithPriority, 5050)                                                                                          \
	X(cuStreamDestroy, 4000)                                                                                                     \
	X(cuStreamQuery, 2000)                                                                                                       \
	X(cuStreamWaitEvent, 3020)                                                                                                   \
	X(cuStreamSynchronize, 2000)                                                                                                 \
	X(cuStreamWriteValue32, 11070)                                                                                               \
	X(cuStreamWaitValue32, 11070)                                                                                                \
	X(cuLaunchHostFunc, 10000)                                                                                                   \
	X(cuEventCreate, 2000)                                                                                                       \
	X(cuEventRecord, 2000)                                                                                                       \
	X(cuEventElapsedTime, 2000)                                                                                                  \
	X(cuEventQuery, 2000)                                                                                                        \
	X(cuEventDestroy, 4000)

struct cuda_driver {
#define DRIVER_MEMBER(name, version) PFN_##name##_v##version name;
	DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
	PFN_cuMemcpyBatchAsync_v13000 cuMemcpyBatchAsync; /* NULL: the driver is older */
};

/* NULL: there is no driver, or none that has all of them. Any thread; the first call lasts. */
const struct cuda_driver *cuda_driver(void);

/* True for errors after which a context does nothing any more, and those of a GPU that is gone. */
bool cuda_error_sticks(CUresult r);
enum status cuda_error_status(CUresult r);

#endif
