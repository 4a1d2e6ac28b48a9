/* A layout as bytes, for the catalog and the headers of slots. */
#ifndef TERRACE_DAEMON_BLOCK_LAYOUT_BYTES_H
#define TERRACE_DAEMON_BLOCK_LAYOUT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_layout;

/* The length of the bytes that identify a layout: of packed formats, and the longest. */
enum { LAYOUT_BYTES = 96, LAYOUT_BYTES_MAX = 164 };

/* Returns the length. */
uint32_t layout_pack(const struct kv_layout *l, uint8_t out[LAYOUT_BYTES_MAX]);
/* False: the bytes are no valid layout. */
bool layout_unpack(const uint8_t *bytes, size_t n, struct kv_layout *out);

#endif
