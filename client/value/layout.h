/* Layouts and other structs of the public header that begin with their size: checked and turned into the kernels' own
 * form.
 */
#ifndef TERRACE_CLIENT_VALUE_LAYOUT_H
#define TERRACE_CLIENT_VALUE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

struct kv_layout;
struct terrace_layout;

enum { CLIENT_LAYOUT_LEAST = 88 }; /* bytes of struct terrace_layout in its first version */

/* Copies a caller's struct that begins with `size`: the fields that both sides know; the rest of `out` is zero. False:
 * the caller's size is smaller than `least`, the first version of the struct. */
bool client_options_copy(void *out, size_t out_bytes, const void *in, size_t least);

/* The reverse of client_options_copy: fills a caller's struct, whose `size` says how large it is, from a struct of
 * in_bytes bytes. False: as above. */
bool client_options_give(void *out, const void *in, size_t in_bytes, size_t least);

/* The words with which a call that repacks refuses a layout with a rope part. */
#define CLIENT_ROPE_REPACK "the layout has a rope part, of which no engine keeps int4_pth pages: decode and encode"

/* Turns a public layout into the kernels' form. NULL; or what is wrong with it, and then *out is undefined. */
const char *client_layout_read(const struct terrace_layout *in, struct kv_layout *out);
/* The reverse of client_layout_read, for a sound layout. The public struct does not have its versions, which are this
 * build's. */
void client_layout_write(const struct kv_layout *in, struct terrace_layout *out);

/* Whether there is a codec for the layout's bytes. False, with the error text set: the layout is opaque, and the call
 * must return TERRACE_UNSUPPORTED. */
bool client_layout_codec(const struct kv_layout *l);

#endif
