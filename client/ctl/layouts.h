/* Layouts as JSON: the fields of Layout in proto/terrace.proto under their names there, the fingerprint in
 * hex, formats by name. */
#ifndef TERRACE_CTL_LAYOUTS_H
#define TERRACE_CTL_LAYOUTS_H

#include <stdbool.h>

#include "client/include/terrace.h"
#include "terrace.pb-c.h"

enum { CTL_LAYOUTS_MAX = 64 };

struct json_t;

/* The description of a session in a file. */
struct ctl_layouts {
	struct terrace_layout layout[CTL_LAYOUTS_MAX];
	struct terrace_layout_rule rule[CTL_LAYOUTS_MAX];
	uint32_t count;
	uint32_t unit_tokens; /* 0: the file does not state it */
	bool ruled;           /* some layout has a rule */
};

struct json_t *layout_to_json(const Terrace__V1__Layout *layout);

/* Reads up to CTL_LAYOUTS_MAX layouts from a file. The file has one object, an array of them, or the output of `layouts
 * --json` or `inspect --json`; in the rows of that output an id is beside the layout, and must be that layout's. A
 * missing field is 0, except the versions (this library's), the heads' total (heads) and head_dim_v (head_dim_k). An
 * unknown field is refused. A layout may have the fields of its rule (keep_last, partial, sparse), and the object with
 * the array may have unit_tokens. CTL_OK or CTL_FAILED; stderr says what is wrong. */
int layouts_load(const char *path, struct ctl_layouts *out);

/* Opens the session that the file describes. */
enum terrace_status layouts_session(struct terrace_client *client, const struct ctl_layouts *l,
				    struct terrace_session **session);
/* The tokens that a key has in that session. */
uint32_t layouts_unit(const struct ctl_layouts *l);
/* Whether a key may have no cell in some layout: then the length of the prefix says more than the number of stored
 * keys. */
bool layouts_have_cells(const struct ctl_layouts *l);

#endif
