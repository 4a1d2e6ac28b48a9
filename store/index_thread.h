/* Registers a thread for the index's read sections (store/index.h). For modules that run other modules' work on their
 * threads and do not know the index.
 */
#ifndef TERRACE_STORE_INDEX_THREAD_H
#define TERRACE_STORE_INDEX_THREAD_H

/* Each thread calls enter before its first call of the index, and leave after its last. Calls may nest; only the
 * outermost pair has an effect. */
void index_thread_enter(void);
void index_thread_leave(void);

#endif
