/* Any bytes as the daemon's reply to each call of the client: refused with words, or every number of it can be trusted. The first byte
 * chooses the reply, the second how long the pieces are in which gRPC would have received it. The client is disconnected, so that
 * leases are given back to nobody.
 */
#include "tests/client/view.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct view_rig rig;
	static struct view_cut cut;
	enum terrace_status status;
	size_t piece;

	if (size < 2)
		return 0;
	if (!rig.view) {
		view_open(&rig);
		client_rpc_close(rig.client->rpc);
	}
	piece = 1 + data[1] + (size - 2) / 300;
	status = view_decoders[data[0] % VIEW_DECODERS](&rig, view_cut(&cut, data + 2, size - 2, piece));
	if (status && !terrace_error()[0])
		abort();
	view_check(&rig);
	return 0;
}
