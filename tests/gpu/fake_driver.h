/* What tests ask of the driver that is none (fake_driver.cpp), beside its environment: found in the plugin by dlsym. */
#ifndef TERRACE_TESTS_GPU_FAKE_DRIVER_H
#define TERRACE_TESTS_GPU_FAKE_DRIVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAKE_DRIVER_ALWAYS = -1 };

/* The driver has memory for so many more copies, and for so many more streams, events and pieces of memory; then it says OUT_OF_MEMORY. */
void fake_driver_memory(int64_t copies, int64_t things);

/* The thread that has put the last copy into a stream, as gettid() says. */
uint32_t fake_driver_copier(void);

/* How many kernels have been launched; how long the events say that lists took, from now on. */
uint32_t fake_driver_kernels(void);
void fake_driver_late(uint32_t ms);

/* How many copies of rows have been asked for. */
uint32_t fake_driver_rows(void);

#ifdef __cplusplus
}
#endif

#endif
