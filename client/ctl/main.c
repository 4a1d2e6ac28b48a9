/* terracectl: the operator's tool. main.c, args.c and help.c are the command line, commands.c the table of
 * commands, and each command a function of a file named after it; daemon.c calls the daemon, output.c prints
 * text or JSON from one tree.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "client/ctl/args.h"
#include "client/ctl/ctl.h"
#include "client/ctl/output.h"

/* Opens standard streams that are not there, so that no file or socket gets their numbers, and with them what is
 * printed. A write to them fails. */
static void fill_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

int main(int argc, char **argv)
{
	struct ctl_args args;
	int code;

	fill_streams();
	signal(SIGPIPE, SIG_IGN); /* a reader that goes away is a write error with its message and exit code, */
	signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow */
	code = ctl_args_parse(argc, argv, &args);
	if (code == CTL_OK) /* help, or the version */
		return out_flush() ? CTL_OK : CTL_FAILED;
	return code > 0 ? code : args.command->run(&args);
}
