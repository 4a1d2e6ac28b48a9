/* terracectl flush: flushes in a session for each layout, and combines their answers about a key. */
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/keys.h"
#include "client/ctl/output.h"
#include "client/ctl/sessions.h"

enum { OPTION_LAYOUTS };
enum { STATUS_UNSAID = -1 };
#define FLUSH_TIMEOUT_US (600ull * 1000000)

struct flush {
	struct terrace_keys keys;  /* count 0: everything */
	int *statuses;             /* [keys, at least 1] enum terrace_status, or STATUS_UNSAID */
	enum terrace_status *said; /* as many, of one call */
	uint32_t count;
	char why[512];             /* the words of the first call that said no */
};

/* Merges a key's status into those of other layouts. A block that is not durable counts more than a durable one, and
 * that more than no block. */
static void merge(int *status, enum terrace_status said)
{
	if (*status == STATUS_UNSAID || *status == TERRACE_MISS || (*status == TERRACE_OK && said != TERRACE_MISS))
		*status = (int)said;
}

static int flush_in(void *arg, struct ctl_sessions *s, struct terrace_session *session, uint64_t id)
{
	struct flush *f = arg;
	enum terrace_status status;

	(void)id;
	for (uint32_t i = 0; i < f->count; i++)
		f->said[i] = (enum terrace_status)STATUS_UNSAID;
	status = terrace_flush(session, f->keys.count ? &f->keys : NULL, s->timeout_us, f->said);
	if ((int)f->said[0] == STATUS_UNSAID)
		return ctl_status_failed("flush", status);
	for (uint32_t i = 0; i < f->count; i++)
		merge(&f->statuses[i], f->said[i]);
	if (status && !f->why[0])
		snprintf(f->why, sizeof(f->why), "%s", terrace_error());
	return CTL_OK;
}

static int print(const struct ctl_args *args, const struct flush *f, uint32_t layouts)
{
	struct json_t *tree = out_object(), *rows = out_array();
	int code = CTL_OK;
	uint32_t durable = 0;

	for (uint32_t i = 0; i < f->count; i++) {
		const int status = f->statuses[i] != STATUS_UNSAID ? f->statuses[i] : f->keys.count ? TERRACE_MISS : TERRACE_OK;
		struct json_t *row = out_object();

		if (f->keys.count)
			out_put_hex(row, "key", f->keys.bytes + (size_t)i * f->keys.key_bytes, f->keys.key_bytes);
		out_put_text(row, "status", terrace_status_text((enum terrace_status)status));
		out_append(rows, row);
		durable += status == TERRACE_OK;
		if (status == TERRACE_MISS && !code)
			code = CTL_NO;
		if (status != TERRACE_OK && status != TERRACE_MISS)
			code = CTL_FAILED;
	}
	out_put_uint(tree, "layouts", layouts);
	out_put_bool(tree, "durable", durable == f->count);
	if (f->keys.count)
		out_put(tree, "blocks", rows);
	else
		out_free(rows);
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return code == CTL_FAILED ? ctl_failed("%s: not all blocks are durable", *f->why ? f->why : "flush") : code;
}

static int prepare(const struct ctl_args *args, struct flush *f)
{
	int code = args->word_count ? keys_from_words(args, &f->keys) : CTL_OK;

	if (code)
		return code;
	f->count = f->keys.count ? f->keys.count : 1;
	f->statuses = malloc(f->count * sizeof(*f->statuses));
	f->said = malloc(f->count * sizeof(*f->said));
	if (!f->statuses || !f->said)
		return ctl_failed("flush: no memory for %u keys", f->count);
	for (uint32_t i = 0; i < f->count; i++)
		f->statuses[i] = STATUS_UNSAID;
	return CTL_OK;
}

int ctl_run_flush(const struct ctl_args *args)
{
	struct ctl_sessions s = {.args = args};
	struct flush f = {.count = 0};
	int code = prepare(args, &f);

	if (!code) {
		code = ctl_sessions_open(args, args->value[OPTION_LAYOUTS], FLUSH_TIMEOUT_US, &s);
		if (!code)
			code = ctl_sessions_each(&s, flush_in, &f);
		if (!code)
			code = print(args, &f, s.layout_count);
		ctl_sessions_close(&s);
	}
	free((void *)f.keys.bytes);
	free(f.statuses);
	free(f.said);
	return code;
}
