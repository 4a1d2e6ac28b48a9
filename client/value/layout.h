/* Layouts and other stamped structs of the public header, checked and taken over into the kernels' own form. */
#ifndef TERRACE_CLIENT_VALUE_LAYOUT_H
#define TERRACE_CLIENT_VALUE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

struct kv_layout;
struct terrace_layout;

enum { CLIENT_LAYOUT_LEAST = 88 }; /* bytes of struct terrace_layout in its first version */

/* Copies a caller's struct that begins with `size`: what both sides know, the rest of `out` zero. False if the caller's
 * size is smaller than `least`, the first version of the struct. */
bool client_options_copy(void *out, size_t out_bytes, const void *in, size_t least);

/* The way back: fills a caller's struct, whose `size` says how much of it there is, from one of in_bytes bytes. False as above. */
bool client_options_give(void *out, const void *in, size_t in_bytes, size_t least);

/* What a call that repacks says to a layout with a rope part. */
#define CLIENT_ROPE_REPACK "the layout has a rope part, of which no engine keeps int4_pth pages: decode and encode"

/* Takes a public layout over. NULL, or what is wrong with it (then *out is undefined). */
const char *client_layout_read(const struct terrace_layout *in, struct kv_layout *out);
/* The way back, of a sound one. Its versions, which are this build's, the public struct does not have. */
void client_layout_write(const struct kv_layout *in, struct terrace_layout *out);

/* Whether there is a codec for the layout's bytes; else the call has failed with TERRACE_UNSUPPORTED: it is opaque. */
bool client_layout_codec(const struct kv_layout *l);

#endif
