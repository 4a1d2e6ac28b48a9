/* terrace_block_info, checked and in the wire's form. */
#ifndef TERRACE_CLIENT_CALL_BLOCK_INFO_H
#define TERRACE_CLIENT_CALL_BLOCK_INFO_H

#include "client/include/terrace.h"
#include "terrace.pb-c.h"

struct client_view;

/* The infos of a call. `pointers` is the form that a repeated field needs. NULL and 0: the call has none. */
struct client_infos {
	Terrace__V1__BlockInfo *infos;
	Terrace__V1__BlockInfo **pointers;
	uint32_t count;
};

/* Takes over `count` infos (NULL: there are none). key_bytes: the length of their parents' keys, unless an info says
 * otherwise; 0: they are infos of open blocks. The parents' keys are pointed at, not copied. TERRACE_INVALID,
 * TERRACE_EXHAUSTED. */
enum terrace_status client_infos_init(struct client_infos *infos, const struct client_view *view,
				      const struct terrace_block_info *info, uint32_t count, uint32_t key_bytes);
void client_infos_fini(struct client_infos *infos);

#endif
