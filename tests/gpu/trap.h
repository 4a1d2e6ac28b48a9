/* A GPU lost to this process alone: a kernel in the primary context that traps, after which the context does nothing any more, and every call
 * of the driver's in it says so. The GPU itself, and other processes on it, are unharmed. Over the simulated device the file is made that its
 * loss goes by. */
#ifndef TERRACE_TESTS_GPU_TRAP_H
#define TERRACE_TESTS_GPU_TRAP_H

/* NULL, or words. Before anything that is to be seen: loads the kernel. */
const char *trap_ready(int ordinal);
/* Begins it; the loss follows in microseconds. Once. */
const char *trap_spring(void);

#endif
