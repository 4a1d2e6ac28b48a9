/* Layouts as JSON: the fields of Layout in proto/terrace.proto under their names there, the fingerprint in
 * hex, formats by name. */
#ifndef TERRACE_CTL_LAYOUTS_H
#define TERRACE_CTL_LAYOUTS_H

#include "terrace.pb-c.h"

enum { CTL_LAYOUTS_MAX = 64 };

struct json_t;
struct terrace_layout;

struct json_t *layout_to_json(const Terrace__V1__Layout *layout);

/* Reads up to CTL_LAYOUTS_MAX layouts from a file: one object, an array of them, or what `layouts --json` and `inspect --json` print, in
 * whose rows the layout stands beside its id, which must be that layout's. Missing fields are 0 except the versions (this library's),
 * heads' total (heads) and head_dim_v (head_dim_k); unknown ones are refused. CTL_OK or CTL_FAILED; stderr says what is wrong. */
int layouts_load(const char *path, struct terrace_layout *out, uint32_t *count);

#endif
