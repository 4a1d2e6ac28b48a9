/* Error text of the example; see fault.h. */
#include "fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void fault_write(struct fault *fault, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(fault->text, sizeof(fault->text), format, args);
	va_end(args);
}

bool fault_prefix(struct fault *fault, const char *prefix)
{
	char old[sizeof(fault->text)];

	memcpy(old, fault->text, sizeof(old));
	return fault_set(fault, "%.150s: %.240s", prefix, old);
}
