/* An errand (gpu/driver_thread.h) that looks at an attachment's writable pages every half second, as long as there are
 * some. A driver's call that lasts delays it: pages then stay writable for as much longer. */
#include "client/call/write_rest.h"

#include "client/value/clock.h"
#include "client/value/status.h"

#include <stddef.h>

/* The errand has no reference: the attachment's close, which finds `tends` set, leaves it one. */
static bool tending_run(struct client_errand *errand)
{
	struct client_attachment *a = (struct client_attachment *)((char *)errand -
								   offsetof(struct client_attachment, tending));
	bool closed;

	if (client_now_us() < errand->until_us)
		return false;
	errand->fd = CLIENT_ERRAND_LATER;
	errand->until_us = client_deadline_us(CLIENT_REST_US);
	if (client_fds_tend(a, &closed))
		return false;
	if (closed)
		client_fds_drop(a);
	return true;
}

void client_write_rest(struct client_attachment *a, const struct client_places *places)
{
	struct client_words words;

	if (!places->run_writable)
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->tends && !a->closed) {
		client_words_keep(&words);
		a->tending.run = tending_run;
		a->tends = !client_errand_start(&a->tending);
		client_words_back(&words);
	}
	pthread_mutex_unlock(&a->lock);
}
