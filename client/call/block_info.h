/* terrace_block_info, checked and in the wire's form. */
#ifndef TERRACE_CLIENT_CALL_BLOCK_INFO_H
#define TERRACE_CLIENT_CALL_BLOCK_INFO_H

#include "client/include/terrace.h"
#include "terrace.pb-c.h"

struct client_view;

/* The infos of a call. pointers is what a repeated field wants; NULL and 0 for none. */
struct client_infos {
	Terrace__V1__BlockInfo *infos;
	Terrace__V1__BlockInfo **pointers;
	uint32_t count;
};

/* Takes over `count` infos (NULL: none at all), whose parents have key_bytes bytes unless they say otherwise; 0: they are of
 * open blocks. The parents are pointed at, not copied. TERRACE_INVALID, TERRACE_EXHAUSTED. */
enum terrace_status client_infos_init(struct client_infos *infos, const struct client_view *view,
				      const struct terrace_block_info *info, uint32_t count, uint32_t key_bytes);
void client_infos_fini(struct client_infos *infos);

#endif
