/* terracectl: the operator's tool. main.c, args.c and help.c are the command line, commands.c the table of
 * commands, and each command a function of a file named after it; daemon.c calls the daemon, output.c prints
 * text or JSON from one tree.
 */
#include <signal.h>

#include "client/ctl/args.h"

int main(int argc, char **argv)
{
	struct ctl_args args;
	int code;

	signal(SIGPIPE,
	       SIG_IGN); /* a reader that goes away is a write error with its message and exit code */
	code = ctl_args_parse(argc, argv, &args);
	return code >= 0 ? code : args.command->run(&args);
}
