/* Packets that the daemon sends on the fd socket without having been asked. Whichever thread reads the socket handles
 * them.
 */
#include "client/memory/hear.h"

#include "client/memory/attachment.h"
#include "client/memory/table.h"
#include "client/transport/packet.h"
#include "client/value/status.h"

enum { LISTEN_PACKETS_MAX = 256 }; /* at a time, whatever the daemon goes on saying */

/* Takes a packet that answers no request: an OFFER, RETIRE, or the late answer to a MAP that was given up. */
void client_fds_take(struct client_attachment *a, struct client_packet *p)
{
	if (p->body.head.type == FDSOCK_OFFER) {
		if (a->premap.offered)
			a->premap.offered(a, &p->body.offer);
	} else if (p->body.head.type == FDSOCK_RETIRE) {
		if (a->premap.asked_back)
			a->premap.asked_back(a, p->body.retire.extent);
	} else if (p->body.head.type == FDSOCK_EXTENT && p->descriptors[0] >= 0) {
		client_packet_fini(p);
		if (!client_fds_find(a, p->body.extent.extent, p->body.extent.write))
			client_table_tell(a, p->body.extent.extent, p->body.extent.write);
	}
	client_packet_fini(p);
}

void client_fds_hear(struct client_attachment *a)
{
	struct client_packet packet;
	enum terrace_status status = TERRACE_OK;
	struct client_words words;

	client_words_keep(&words); /* no call asks here */
	for (int i = 0; !status && i < LISTEN_PACKETS_MAX; i++) {
		status = client_packet_receive(a->socket, 0, &packet);
		if (!status)
			client_fds_take(a, &packet);
	}
	if (status && status != TERRACE_DEADLINE) {
		client_words_back(&words);
		a->broken = true;
	}
}

void client_fds_hear_out(struct client_attachment *a)
{
	struct client_packet packet;
	struct client_words words;

	client_words_keep(&words); /* the caller may be about to report a failure of its own */
	while (a->socket >= 0 && !client_packet_receive(a->socket, 0, &packet))
		client_fds_take(a, &packet);
	client_words_back(&words);
}

enum terrace_status client_fds_hear_one(struct client_attachment *a, uint64_t deadline_us)
{
	struct client_packet packet;
	enum terrace_status status = client_packet_receive(a->socket, deadline_us, &packet);

	if (status)
		return status;
	pthread_mutex_lock(&a->lock);
	client_fds_take(a, &packet);
	pthread_mutex_unlock(&a->lock);
	return TERRACE_OK;
}
