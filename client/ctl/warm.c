/* terracectl warm. With a file the session has all its layouts, and the keys are a sequence, as an engine has them.
 * Without a file each layout is asked which of the keys it has, and those blocks are loaded.
 */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/keys.h"
#include "client/ctl/output.h"
#include "client/ctl/sessions.h"

enum { OPTION_LAYOUTS };
#define WARM_TIMEOUT_US (60ull * 1000000)

struct warm {
	struct terrace_keys keys;
	uint8_t *some;         /* [keys] those of one layout, back to back */
	uint8_t *states;       /* of one session: [keys][layouts] */
	bool *found;           /* [keys] in some layout */
	struct json_t *rows;
	uint32_t short_of;     /* keys that were to be brought and were not */
	bool cells;            /* of a session where a key may have no block, and need none */
};

/* Picks the keys of which this session has a block, in their order. */
static uint32_t pick(struct warm *w, uint32_t layouts)
{
	const uint32_t n = w->keys.key_bytes;
	uint32_t count = 0;

	for (uint32_t i = 0; i < w->keys.count; i++) {
		bool there = false;

		for (uint32_t l = 0; l < layouts; l++)
			there = there || ctl_is_stored(w->states[(size_t)i * layouts + l]);
		if (!there)
			continue;
		w->found[i] = true;
		memcpy(w->some + (size_t)count++ * n, w->keys.bytes + (size_t)i * n, n);
	}
	return count;
}

static int warm_in(void *arg, struct ctl_sessions *s, struct terrace_session *session, uint64_t id)
{
	struct warm *w = arg;
	uint32_t prefix, blocks = 0, count;
	enum terrace_status status = terrace_lookup(session, &w->keys, 0, &prefix, w->states);
	struct terrace_keys some = {.bytes = w->some, .key_bytes = w->keys.key_bytes};
	struct json_t *row;

	if (status)
		return ctl_status_failed("warm", status);
	count = some.count = pick(w, terrace_session_layout_count(session));
	if (s->together)
		some = w->keys;
	if (!count && s->together && w->cells)
		w->short_of += w->keys.count;
	if (!count)
		return CTL_OK;
	status = terrace_warm(session, &some, true, s->timeout_us, &blocks);
	if (status)
		return ctl_status_failed("warm", status);
	row = out_object();
	if (id)
		out_put_id(row, "layout", id);
	out_put_uint(row, "stored", count);
	out_put_uint(row, "in_memory", blocks);
	out_append(w->rows, row);
	w->short_of += blocks < some.count ? some.count - blocks : 0;
	return CTL_OK;
}

static int print(const struct ctl_args *args, struct warm *w)
{
	struct json_t *tree = out_object();
	uint32_t stored = 0;

	for (uint32_t i = 0; i < w->keys.count; i++)
		stored += w->found[i];
	out_put_uint(tree, "keys", w->keys.count);
	out_put_uint(tree, "stored", stored);
	out_put(tree, "layouts", w->rows);
	w->rows = NULL;
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return (stored < w->keys.count && !w->cells) || w->short_of ? CTL_NO : CTL_OK;
}

int ctl_run_warm(const struct ctl_args *args)
{
	struct ctl_sessions s = {.args = args};
	struct warm w = {.short_of = 0};
	int code = keys_from_words(args, &w.keys);

	if (code)
		return code;
	code = ctl_sessions_open(args, args->value[OPTION_LAYOUTS], WARM_TIMEOUT_US, &s);
	w.cells = layouts_have_cells(&s.file);
	w.rows = out_array();
	w.some = malloc((size_t)w.keys.count * w.keys.key_bytes);
	w.states = malloc((size_t)w.keys.count * (s.together && s.layout_count ? s.layout_count : 1));
	w.found = calloc(w.keys.count, sizeof(*w.found));
	if (!code && (!w.some || !w.states || !w.found))
		code = ctl_failed("warm: no memory for %u keys", w.keys.count);
	if (!code)
		code = ctl_sessions_each(&s, warm_in, &w);
	if (!code)
		code = print(args, &w);
	out_free(w.rows);
	ctl_sessions_close(&s);
	free((void *)w.keys.bytes);
	free(w.some);
	free(w.states);
	free(w.found);
	return code;
}
