/* See sim/stream.h. */
#include "tests/sim/stream.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define SIM_STREAM_MAGIC 0x5354524541u

struct work {
	struct work *next;
	enum status (*run)(void *arg, bool failed);
	void *arg;
};

struct sim_stream {
	uint64_t magic;
	pthread_t thread;
	pthread_mutex_t mutex;   /* guards the rest */
	pthread_cond_t changed;
	struct work *first, **last;
	uint64_t put, done;      /* of all time */
	enum status failure;
	bool ending;
};

static struct work *next_work(struct sim_stream *s)
{
	struct work *w;

	while (!s->first && !s->ending)
		pthread_cond_wait(&s->changed, &s->mutex);
	w = s->first;
	if (w) {
		s->first = w->next;
		if (!s->first)
			s->last = &s->first;
	}
	return w;
}

static void *run(void *stream)
{
	struct sim_stream *s = stream;
	struct work *w;

	pthread_mutex_lock(&s->mutex);
	while ((w = next_work(s)) != NULL) {
		bool failed = s->failure != STATUS_OK;
		enum status status;

		pthread_mutex_unlock(&s->mutex);
		status = w->run(w->arg, failed);
		free(w);
		pthread_mutex_lock(&s->mutex);
		if (!failed)
			s->failure = status;
		s->done++;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->mutex);
	return NULL;
}

struct sim_stream *sim_stream_create(void)
{
	struct sim_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->magic = SIM_STREAM_MAGIC;
	s->last = &s->first;
	pthread_mutex_init(&s->mutex, NULL);
	pthread_cond_init(&s->changed, NULL);
	if (pthread_create(&s->thread, NULL, run, s) == 0)
		return s;
	free(s);
	return NULL;
}

void sim_stream_destroy(struct sim_stream *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->mutex);
	s->ending = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mutex);
	pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->mutex);
	s->magic = 0;
	free(s);
}

enum status sim_stream_synchronize(struct sim_stream *s)
{
	enum status failure;
	uint64_t until;

	pthread_mutex_lock(&s->mutex);
	until = s->put;
	while (s->done < until)
		pthread_cond_wait(&s->changed, &s->mutex);
	failure = s->failure;
	pthread_mutex_unlock(&s->mutex);
	return failure;
}

bool sim_stream_put(struct sim_stream *s, enum status (*work)(void *arg, bool failed), void *arg)
{
	struct work *w;

	if (!s || s->magic != SIM_STREAM_MAGIC)
		return false;
	w = malloc(sizeof(*w));
	if (!w)
		return false;
	*w = (struct work){ .run = work, .arg = arg };
	pthread_mutex_lock(&s->mutex);
	*s->last = w;
	s->last = &w->next;
	s->put++;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mutex);
	return true;
}
