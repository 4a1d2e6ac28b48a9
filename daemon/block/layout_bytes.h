/* A layout as bytes, for the catalog and the headers of slots. */
#ifndef TERRACE_DAEMON_BLOCK_LAYOUT_BYTES_H
#define TERRACE_DAEMON_BLOCK_LAYOUT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_layout;

/* The bytes by which a layout is known again, at most SLOT_LAYOUT_MAX: of most layouts; of those with a rope part. */
enum { LAYOUT_BYTES = 96, LAYOUT_BYTES_MAX = 104 };

/* Returns how many. */
uint32_t layout_pack(const struct kv_layout *l, uint8_t out[LAYOUT_BYTES_MAX]);
/* False: not the bytes of a sound layout. */
bool layout_unpack(const uint8_t *bytes, size_t n, struct kv_layout *out);

#endif
