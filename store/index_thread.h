/* A thread's place in the index's read sections (store/index.h), for those that run others' work and know no index. */
#ifndef TERRACE_STORE_INDEX_THREAD_H
#define TERRACE_STORE_INDEX_THREAD_H

/* By each thread, before its first call of the index and after its last. Of those that nest the outermost counts. */
void index_thread_enter(void);
void index_thread_leave(void);

#endif
