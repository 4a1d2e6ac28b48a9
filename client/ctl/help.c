/* Lays the table of commands out as man pages, wrapped to the width of a terminal line. */
#include "client/ctl/help.h"

#include "client/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 88, INDENT = 4, TERM = 8 };

/* Prints text indented and filled to COLUMNS; a newline in it ends a line, and a line that begins with a
 * space is kept as it is. */
static void print_filled(const char *text, int indent)
{
	int column = 0;

	while (*text) {
		size_t word = strcspn(text, " \n");

		if (column == 0 && *text == ' ') {
			size_t line = strcspn(text, "\n");

			printf("%*s%.*s", indent, "", (int)line, text);
			text += line;
			if (*text == '\n' && *++text)
				putchar('\n');
			continue;
		}
		if (column && column + 1 + (int)word > COLUMNS - indent) {
			putchar('\n');
			column = 0;
		}
		column += printf("%*s%.*s", column ? 1 : indent, "", (int)word, text) - (column ? 0 : indent);
		text += word;
		while (*text == ' ')
			text++;
		if (*text == '\n') {
			putchar('\n');
			text++;
			column = 0;
		}
	}
	putchar('\n');
}

static void print_term(const char *dashes, const char *name, const char *value, const char *text)
{
	printf("%*s%s%s%s%s\n", INDENT, "", dashes, name, value ? " " : "", value ? value : "");
	print_filled(text, TERM);
}

static void print_globals(void)
{
	print_term("--", "address", "ADDRESS",
		   "where the daemon listens: unix:PATH or HOST:PORT. Without it $TERRACE_ADDRESS, else the "
		   "default socket.");
	print_term("--", "tls-cert", "FILE",
		   "PEM file of this client's certificate, for an address HOST:PORT; wants --tls-key and --tls-ca. "
		   "Without "
		   "it $TERRACE_TLS_CERT, else no TLS.");
	print_term("--", "tls-key", "FILE", "PEM file of its key. Without it $TERRACE_TLS_KEY.");
	print_term("--", "tls-ca", "FILE",
		   "PEM file of the CAs that the daemon's certificate may be of. Without it $TERRACE_TLS_CA.");
	print_term(
		"--", "tls-name", "NAME",
		"the name or address that the daemon's certificate must be for. Without it $TERRACE_TLS_NAME, else the "
		"host of the address.");
	print_term("--", "timeout", "SECONDS",
		   "the longest wait for the daemon's answer, with decimals if wanted, at most 86400. "
		   "Without it 5, "
		   "and for verify, flush, warm, compact and drain what their work may need.");
	print_term("--", "json", NULL,
		   "print one JSON object instead of text. 64-bit ids and keys are strings of hex digits. An error is "
		   "a JSON object too, in one line on standard error: error, a sentence; exit, the exit status; command; "
		   "usage, if the line makes no sense; and status, if a call to the daemon failed.");
	print_term("--", "help", NULL, "print help, of a command if there is one, and do nothing else.");
	print_term("--", "version", NULL, "print the version and do nothing else.");
}

static void print_exits(void)
{
	print_term("", "0", NULL, "done; the answer is yes");
	print_term("", "1", NULL, "failed: the daemon refused, or reading or writing failed");
	print_term("", "2", NULL, "the command line makes no sense; nothing was done");
	print_term("", "3", NULL,
		   "the answer is no: a block is missing, the daemon is not serving, or has not drained");
	print_term("", "4", NULL, "damaged data was found");
	print_term("", "5", NULL, "no daemon at the address, or no answer in time");
}

void ctl_help_all(void)
{
	printf("NAME\n    terracectl - look at and manage a Terrace daemon\n\n"
	       "SYNOPSIS\n    terracectl [GLOBAL OPTION]... COMMAND [OPTION]... [ARGUMENT]...\n\nCOMMANDS\n");
	for (const struct ctl_command *c = ctl_commands; c->name; c++)
		print_term("", c->name, c->synopsis, c->summary);
	printf("\nGLOBAL OPTIONS, before or behind the command\n");
	print_globals();
	printf("\nEXIT STATUS\n");
	print_exits();
	printf("\nENVIRONMENT\n");
	print_term("", "TERRACE_ADDRESS", NULL, "the address if --address is not given");
	print_term("", "TERRACE_TLS_CERT", NULL,
		   "as --tls-cert; so with TERRACE_TLS_KEY, TERRACE_TLS_CA and TERRACE_TLS_NAME");
	printf("\n'terracectl COMMAND --help' tells more about a command.\n");
}

void ctl_help_command(const struct ctl_command *command)
{
	printf("NAME\n    terracectl %s - %s\n\nSYNOPSIS\n    terracectl %s%s%s\n\nDESCRIPTION\n",
	       command->name, command->summary, command->name, *command->synopsis ? " " : "",
	       command->synopsis);
	print_filled(command->text, INDENT);
	if (command->options[0].name)
		printf("\nOPTIONS\n");
	for (int i = 0; i < CTL_OPTIONS_MAX && command->options[i].name; i++)
		print_term("--", command->options[i].name, command->options[i].value,
			   command->options[i].help);
	printf("\nGLOBAL OPTIONS\n");
	print_globals();
	printf("\nEXIT STATUS\n");
	print_filled(command->exits, INDENT);
}
