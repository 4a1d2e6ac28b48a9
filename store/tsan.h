/* Happens-before edges that ThreadSanitizer cannot see, because liburcu synchronises with inline
 * assembly and in a library that is not instrumented. Without TSan both are nothing.
 *
 * tsan_release(p) stands before what publishes or retires *p, tsan_acquire(p) behind what obtains
 * it.
 */
#ifndef TERRACE_STORE_TSAN_H
#define TERRACE_STORE_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define TERRACE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TERRACE_TSAN 1
#endif
#endif

#ifdef TERRACE_TSAN

void __tsan_acquire(void *at);
void __tsan_release(void *at);

static inline void tsan_acquire(const void *at)
{
	__tsan_acquire((void *)(unsigned long)at);
}

static inline void tsan_release(const void *at)
{
	__tsan_release((void *)(unsigned long)at);
}

#else

static inline void tsan_acquire(const void *at)
{
	(void)at;
}

static inline void tsan_release(const void *at)
{
	(void)at;
}

#endif

#endif
