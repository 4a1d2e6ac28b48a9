/* See trap.h. */
#include "tests/gpu/trap.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/driver_kernel.h"

static const char text[] =
	".version 7.0\n"
	".target sm_80\n"
	".address_size 64\n"
	".visible .entry spring()\n"
	"{\n"
	"	trap;\n"
	"	ret;\n"
	"}\n";

static struct driver_kernel kernel;
static char lost_file[4096]; /* of the simulated device; "": there is none */

const char *trap_ready(int ordinal)
{
	const char *lost = getenv("SIM_GPU_LOST_FILE");

	if (!lost)
		return driver_kernel_open(&kernel, ordinal, text, "spring");
	snprintf(lost_file, sizeof(lost_file), "%s.%d", lost, ordinal);
	return access(lost_file, F_OK) ? NULL : "it is lost already";
}

const char *trap_spring(void)
{
	int fd;

	if (!lost_file[0])
		return driver_kernel_launch(&kernel, 1, 1, NULL);
	fd = open(lost_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return "the file of the loss cannot be made";
	close(fd);
	return NULL;
}
