/* The command line. getopt_long does the parsing, once for what stands before the command (global options
 * only) and once for the rest, where global and own options may stand in any order: the tables for it are
 * made from the command's row.
 */
#include "client/ctl/args.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/errors.h"
#include "client/ctl/help.h"
#include "client/include/terrace.h"

/* Beyond any character and any index into a command's options. */
enum { OPT_ADDRESS = 1000, OPT_TIMEOUT, OPT_JSON, OPT_HELP, OPT_VERSION };
enum { GLOBAL_COUNT = 5 };

static const struct option global_options[GLOBAL_COUNT] = {
	{"address", required_argument, NULL, OPT_ADDRESS},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
};

static int print_version(void)
{
	printf("terracectl %s\n", terrace_version());
	return CTL_OK;
}

/* -1: taken. */
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
	default:
		return CTL_USAGE;
	}
}

/* What getopt would have said itself. `word`: what it looked at last. */
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

/* "status, stat, config, ..." */
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

/* "help" and "help COMMAND". */
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

bool ctl_parse_uint(const char *text, uint64_t max, uint64_t *out)
{
	uint64_t v = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		unsigned digit = (unsigned char)*text - '0';

		if (digit > 9 || v > (max - digit) / 10 || digit > max)
			return false;
		v = v * 10 + digit;
	}
	*out = v;
	return true;
}

bool ctl_parse_bytes(const char *text, uint64_t *out)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	size_t n = strspn(text, "0123456789");
	char digits[24];
	uint64_t v;

	if (n >= sizeof(digits))
		return false;
	memcpy(digits, text, n);
	digits[n] = '\0';
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(text + n, units[i]))
			continue;
		if (!ctl_parse_uint(digits, UINT64_MAX >> 10 * i, &v))
			return false;
		*out = v << 10 * i;
		return true;
	}
	return false;
}

bool ctl_parse_seconds(const char *text, uint64_t *out_us)
{
	char *end;
	double s;

	if (*text < '.' || *text > '9') /* no sign, no space, no "inf", no "nan" */
		return false;
	s = strtod(text, &end);
	if (*end || !(s > 0) || s > 86400)
		return false;
	*out_us = s < 1e-6 ? 1 : (uint64_t)(s * 1e6 + 0.5);
	return true;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
		return (c | 0x20) - 'a' + 10;
	return -1;
}

_Static_assert(TERRACE_KEY_BYTES_MAX == 32, "the texts of the commands say that a key has 2 to 64 hex digits");

bool ctl_parse_key(const char *text, uint8_t key[TERRACE_KEY_BYTES_MAX], uint32_t *bytes)
{
	size_t n = strlen(text);

	if (n == 0 || n % 2 || n > 2 * TERRACE_KEY_BYTES_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if (hex_digit(text[i]) < 0)
			return false;
	for (size_t i = 0; i < n / 2; i++)
		key[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
	*bytes = (uint32_t)(n / 2);
	return true;
}

bool ctl_parse_id(const char *text, uint64_t *out)
{
	uint64_t v = 0;
	size_t n;

	if (text[0] == '0' && text[1] == 'x')
		text += 2;
	n = strlen(text);
	if (n == 0 || n > 16)
		return false;
	for (size_t i = 0; i < n; i++) {
		int digit = hex_digit(text[i]);

		if (digit < 0)
			return false;
		v = v << 4 | (unsigned)digit;
	}
	*out = v;
	return true;
}
