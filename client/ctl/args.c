/* The command line, parsed by getopt_long: once for the words before the command (global options only), and once for
 * the rest, where global options and the command's own may be in any order. The tables for it are made from the
 * command's row.
 */
#include "client/ctl/args.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/help.h"
#include "client/ctl/values.h"

/* Beyond any character and any index into a command's options. */
enum {
	OPT_ADDRESS = 1000,
	OPT_TIMEOUT,
	OPT_JSON,
	OPT_HELP,
	OPT_VERSION,
	OPT_TLS_CERT,
	OPT_TLS_KEY,
	OPT_TLS_CA,
	OPT_TLS_NAME
};
enum { GLOBAL_COUNT = 9 };

static const struct option global_options[GLOBAL_COUNT] = {
	{"address", required_argument, NULL, OPT_ADDRESS},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{"tls-cert", required_argument, NULL, OPT_TLS_CERT},
	{"tls-key", required_argument, NULL, OPT_TLS_KEY},
	{"tls-ca", required_argument, NULL, OPT_TLS_CA},
	{"tls-name", required_argument, NULL, OPT_TLS_NAME},
};

static int print_version(void)
{
	printf("terracectl %s\n", terrace_version());
	return CTL_OK;
}

/* Takes a text option. -1: it was taken; else an exit code. */
static int take_text(const char *name, const char *value, const char **to, const struct ctl_args *args)
{
	if (!*value)
		return ctl_usage(args->command, "--%s: it is empty: give a value, or leave it out", name);
	*to = value;
	return -1;
}

/* Takes an option that every command has. -1: it was taken; else an exit code. */
static int take_global(int option, const char *value, struct ctl_args *args)
{
	switch (option) {
	case OPT_ADDRESS:
		if (!*value)
			return ctl_usage(args->command, "--address: it is empty: give unix:PATH or HOST:PORT, or leave it out");
		args->address = value;
		return -1;
	case OPT_TIMEOUT:
		if (!ctl_parse_seconds(value, &args->timeout_us))
			return ctl_usage(args->command,
					 "--timeout %s: not a number of seconds above 0, at most 86400",
					 value);
		return -1;
	case OPT_JSON: /* also as --js, which the look before did not know */
		ctl_errors_as_json();
		args->json = true;
		return -1;
	case OPT_HELP:
		if (args->command)
			ctl_help_command(args->command);
		else
			ctl_help_all();
		return CTL_OK;
	case OPT_VERSION:
		return print_version();
	case OPT_TLS_CERT:
		return take_text("tls-cert", value, &args->tls_cert, args);
	case OPT_TLS_KEY:
		return take_text("tls-key", value, &args->tls_key, args);
	case OPT_TLS_CA:
		return take_text("tls-ca", value, &args->tls_ca, args);
	case OPT_TLS_NAME:
		return take_text("tls-name", value, &args->tls_name, args);
	default:
		return CTL_USAGE;
	}
}

/* Says what getopt would have said. `word`: the word that it looked at last. */
static int refuse_option(int answer, const char *word, const struct ctl_command *command)
{
	if (optopt > ' ' && optopt < 0x7f)
		return ctl_usage(command, "-%c: no such option: all but -h begin with --", optopt);
	if (answer == ':')
		return ctl_usage(command, "%s: it wants a value, and stands at the end", word);
	if (word[0] == '-' && word[1] == '-' && strchr(word, '='))
		return ctl_usage(command, "%s: no such option, or one that takes no value", word);
	return ctl_usage(command, "%s: no such option%s", word, command ? "" : " before a command");
}

/* Lists the commands: "status, stat, config, ...". */
static const char *command_list(void)
{
	static char list[256];

	list[0] = '\0';
	for (const struct ctl_command *c = ctl_commands; c->name; c++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", *list ? ", " : "", c->name);
	return list;
}

static int option_count(const struct ctl_command *command)
{
	int n = 0;

	while (n < CTL_OPTIONS_MAX && command->options[n].name)
		n++;
	return n;
}

static int parse_options(int argc, char **argv, const char *order, struct ctl_args *args)
{
	struct option options[CTL_OPTIONS_MAX + GLOBAL_COUNT + 1] = {0};
	int own = args->command ? option_count(args->command) : 0;
	int c, done;

	for (int i = 0; i < own; i++) {
		const struct ctl_option *o = &args->command->options[i];

		options[i] = (struct option){o->name, o->value ? required_argument : no_argument, NULL, i};
	}
	memcpy(options + own, global_options, sizeof(global_options));
	opterr = 0;
	while ((c = getopt_long(argc, argv, order, options, NULL)) != -1) {
		if (c == '?' || c == ':')
			return refuse_option(c, argv[optind - 1], args->command);
		if (c < own) {
			args->value[c] = optarg ? optarg : "";
			continue;
		}
		done = take_global(c == 'h' ? OPT_HELP : c, optarg, args);
		if (done >= 0)
			return done;
	}
	return -1;
}

static const struct ctl_command *find_command(const char *name)
{
	for (const struct ctl_command *c = ctl_commands; c->name; c++)
		if (!strcmp(c->name, name))
			return c;
	return NULL;
}

/* Runs "help" and "help COMMAND". */
static int run_help(int argc, char **argv)
{
	const struct ctl_command *command = argc > 1 ? find_command(argv[1]) : NULL;

	if (argc > 1 && !command)
		return ctl_usage(NULL, "help: no command '%s': there are %s", argv[1], command_list());
	if (argc > 2)
		return ctl_usage(NULL, "help: too many arguments, '%s': it takes one command", argv[2]);
	if (command)
		ctl_help_command(command);
	else
		ctl_help_all();
	return CTL_OK;
}

int ctl_args_parse(int argc, char **argv, struct ctl_args *args)
{
	int done;

	*args = (struct ctl_args){0};
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--json"))
			ctl_errors_as_json();
	done = parse_options(argc, argv, "+:h", args);
	if (done >= 0)
		return done;
	argc -= optind;
	argv += optind;
	if (argc == 0)
		return ctl_usage(NULL, "which command? There are %s", command_list());
	if (!strcmp(argv[0], "help"))
		return run_help(argc, argv);
	args->command = find_command(argv[0]);
	if (!args->command)
		return ctl_usage(NULL, "no command '%s': there are %s", argv[0], command_list());
	ctl_errors_of(args->command);
	optind = 0; /* glibc: start anew */
	done = parse_options(argc, argv, ":h", args);
	if (done >= 0)
		return done;
	args->words = argv + optind;
	args->word_count = argc - optind;
	if (args->word_count < args->command->words_min)
		return ctl_usage(args->command, "%s: an argument is missing behind it", args->command->name);
	if (args->command->words_max >= 0 && args->word_count > args->command->words_max)
		return ctl_usage(args->command, "%s: too many arguments, '%s'", args->command->name,
				 args->words[args->command->words_max]);
	return -1;
}
