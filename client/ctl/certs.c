/* terracectl certs check: shows the contents of PEM files and what is wrong with them, before a daemon or a client uses
 * them.
 */
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "proto/certificate.h"

static void put_time(struct json_t *row, const char *name, int64_t seconds)
{
	char text[TLS_TIME_MAX] = "";

	if (seconds)
		tls_time_text(seconds, text);
	out_put_text(row, name, text);
}

static void add_row(void *rows, const struct certificate *c)
{
	struct json_t *row = out_object();
	char names[512] = "";

	if (c->names.count)
		tls_names_text(&c->names, names, sizeof(names));
	out_put_text(row, "file", c->file);
	out_put_text(row, "kind", c->kind);
	out_put_text(row, "subject", c->subject);
	out_put_text(row, "names", names);
	put_time(row, "valid_from", c->begins);
	put_time(row, "valid_to", c->ends);
	out_put_text(row, "for",
		     c->names.count ? c->server && c->client ? "daemon, client, peer"
				      : c->server            ? "daemon"
				      : c->client            ? "client"
							     : ""
				    : "");
	out_put_bool(row, "wrong", c->wrong);
	out_put_text(row, "problem", c->problem);
	out_append(rows, row);
}

int ctl_run_certs(const struct ctl_args *args)
{
	struct json_t *tree, *rows;
	uint32_t wrong;

	if (strcmp(args->words[0], "check") != 0)
		return ctl_usage(args->command, "certs: '%s' is nothing that it does: it does check", args->words[0]);
	tree = out_object();
	rows = out_array();
	wrong = certificates_check((const char *const *)args->words + 1, (uint32_t)args->word_count - 1, add_row, rows);
	out_put(tree, "certificates", rows);
	out_put_uint(tree, "wrong", wrong);
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	return wrong ? CTL_NO : CTL_OK;
}
