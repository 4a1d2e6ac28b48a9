/* terracectl config: prints the daemon's options, the values in force, and where each came from. */
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "terrace.pb-c.h"

static bool is_asked_for(const struct ctl_args *args, const char *name)
{
	for (int i = 0; i < args->word_count; i++)
		if (strstr(name, args->words[i]))
			return true;
	return args->word_count == 0;
}

static int print_rows(const struct ctl_args *args, const Terrace__V1__ConfigReply *reply)
{
	struct json_t *rows = out_array(), *tree = rows;
	bool any = false;

	for (size_t i = 0; i < reply->n_rows; i++) {
		const Terrace__V1__ConfigRow *r = reply->rows[i];
		struct json_t *row;

		if (!is_asked_for(args, r->name))
			continue;
		row = out_object();
		out_put_text(row, "name", r->name);
		out_put_text(row, "value", r->value);
		out_put_text(row, "origin", r->origin);
		out_append(rows, row);
		any = true;
	}
	if (args->json) {
		tree = out_object();
		out_put(tree, "options", rows);
	}
	if (!out_print(tree, args->json, false))
		return CTL_FAILED;
	if (any)
		return CTL_OK;
	return ctl_failed_with(CTL_NO, "config: no option has '%s' in its name: 'terracectl config' prints all", args->words[0]);
}

int ctl_run_config(const struct ctl_args *args)
{
	Terrace__V1__ConfigRequest request = TERRACE__V1__CONFIG_REQUEST__INIT;
	Terrace__V1__ConfigReply *reply;
	struct ctl_daemon d;
	int code = ctl_daemon_open(args, &d);

	if (!code)
		code = ctl_daemon_call(&d, CLIENT_ADMIN_CONFIG, &request.base, &terrace__v1__config_reply__descriptor,
				       args->timeout_us, &reply);
	if (!code)
		code = print_rows(args, reply);
	ctl_daemon_close(&d);
	return code;
}
