/* The queue of ends of a GPU: what is appended to it. See gpu_ends.h. */
#include "daemon/vram/gpu_ends.h"

#include "daemon/block/ends.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/state.h"

#include <pthread.h>
#include <stdlib.h>

struct gpu_ends *gpu_ends_create(void)
{
	struct gpu_ends *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	end_queue_init(&q->queue);
	q->unready_end = &q->unready;
	return q;
}

static void wake(struct gpu *g)
{
	g->completion_due = true;
	pthread_cond_signal(&g->completion_work);
}

void gpu_ends_push(struct gpu *g, struct end *e)
{
	if (end_queue_push(&g->ends->queue, e))
		wake(g);
}

void gpu_ends_push_unready(struct gpu *g, struct copy_batch *f)
{
	f->next = NULL;
	*g->ends->unready_end = f;
	g->ends->unready_end = &f->next;
	wake(g);
}

struct copy_batch *gpu_ends_take_unready(struct gpu *g)
{
	struct gpu_ends *q = g->ends;
	struct copy_batch *f = q->unready;

	if (f)
		q->unready = f->next;
	if (!q->unready)
		q->unready_end = &q->unready;
	return f;
}
