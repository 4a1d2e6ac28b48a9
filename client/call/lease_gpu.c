/* Leases of blocks on a GPU: addresses, streams that wait for them, and the end of a lease behind a stream. */
#include "client/call/lease.h"

#include "client/session/connect.h"
#include "client/driver/gpu.h"
#include "client/gpu/progress.h"
#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "client/session/session.h"
#include "client/value/status.h"

#include <stddef.h>

static enum terrace_status check(const struct terrace_lease *lease)
{
	if (!lease)
		return client_fail(TERRACE_INVALID, "the lease is NULL");
	return client_process_check(lease->generation);
}

enum terrace_status terrace_lease_addresses(const struct terrace_lease *lease, uint32_t l, uint64_t *addresses)
{
	enum terrace_status status = check(lease);

	if (!status)
		status = client_places_addresses(&lease->places, l, addresses);
	return status ? client_fail_in(status, "lease") : TERRACE_OK;
}

/* Finds the GPU that the lease is for. */
static enum terrace_status gpu_of(const struct terrace_lease *lease, struct client_gpu **out)
{
	if (lease->places.gpu < 0)
		return client_fail(TERRACE_PRECONDITION, "the lease was not made for a GPU: set gpu in terrace_lease_options");
	return client_lent_gpu(&lease->view->attachment->memory, (uint32_t)lease->places.gpu, out);
}

static uint32_t layers_of(const struct client_view *view)
{
	uint32_t most = 0;

	for (uint32_t l = 0; l < view->layout_count; l++)
		if (view->layouts[l].geometry.steps > most)
			most = view->layouts[l].geometry.steps;
	return most;
}

static enum terrace_status wait_layer(const struct terrace_lease *lease, uint32_t layer, void *stream)
{
	const struct client_promise *p = &lease->promise;
	const char *why = "";
	struct client_gpu *gpu;
	enum terrace_status status = gpu_of(lease, &gpu);
	uint64_t sums;
	enum status s;

	if (!status && (layer >= layers_of(lease->view) || (p->layers && layer >= p->layers)))
		status = client_fail(TERRACE_INVALID, "there is no layer %u", layer);
	if (status || !p->layers)
		return status;
	if (client_progress_page_closed(&lease->view->attachment->progress_page))
		return client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	if (client_progress_page_kept(&lease->view->attachment->progress_page, p))
		return TERRACE_OK;
	s = gpu->ops->stream_wait(gpu->device, stream,
				  client_progress_page_address(&lease->view->attachment->progress_page, p,
				  (uint32_t)lease->places.gpu),
				  p->base + layer + 1, &why);
	sums = client_progress_page_sums_address(&lease->view->attachment->progress_page, p, layer,
	    (uint32_t)lease->places.gpu);
	if (s == STATUS_OK && sums)
		s = gpu->ops->stream_wait(gpu->device, stream, sums, p->base + layer + 1, &why);
	return s == STATUS_OK ? TERRACE_OK : client_gpu_fail(s, "the stream takes no wait", why);
}

enum terrace_status terrace_lease_wait_layer(struct terrace_lease *lease, uint32_t layer, void *stream)
{
	enum terrace_status status = check(lease);

	if (!status)
		status = wait_layer(lease, layer, stream);
	return status ? client_fail_in(status, "lease") : TERRACE_OK;
}

enum terrace_status terrace_lease_check(struct terrace_lease *lease)
{
	enum terrace_status status = check(lease);
	struct client_gpu *gpu;

	if (!status && lease->places.gpu >= 0)
		status = gpu_of(lease, &gpu);
	if (!status && lease->places.gpu >= 0 && client_gpu_lost(gpu))
		status = client_fail(TERRACE_UNAVAILABLE, "the GPU is lost: use host memory; a restart of the daemon takes the GPU back");
	if (!status)
		status = client_progress_page_state(lease->view->attachment, &lease->promise);
	return status ? client_fail_in(status, "lease") : TERRACE_OK;
}

/* Releases the lease: its stream has come so far, or the GPU is lost and its streams touch nothing any more. */
static void release_run(struct client_after *after, bool lost)
{
	(void)lost;
	terrace_release((struct terrace_lease *)((char *)after - offsetof(struct terrace_lease, after)));
}

enum terrace_status terrace_release_after(struct terrace_lease *lease, void *stream)
{
	enum terrace_status status = check(lease);
	struct client_gpu *gpu;

	if (!status)
		status = gpu_of(lease, &gpu);
	if (status)
		return client_fail_in(status, "release");
	lease->after = (struct client_after){.run = release_run};
	status = client_after_start(&lease->after, lease->view->attachment, gpu, stream);
	return status ? client_fail_in(status, "release") : TERRACE_OK;
}
