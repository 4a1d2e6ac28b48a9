/* See config_values.h. */
#include "daemon/process/config_values.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define HOUR_MS 3600000ull

const struct config_unit config_byte_units[] = { { "TiB", 1024 * GIB }, { "GiB", GIB }, { "MiB", MIB }, { "KiB", KIB },
						 { "B", 1 }, { "", 1 }, { NULL, 0 } };
/* Without a unit only 0 is a time: 30 alone could be meant as seconds or as milliseconds. */
const struct config_unit config_time_units[] = { { "h", HOUR_MS }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 }, { "", 0 }, { NULL, 0 } };
const struct config_unit config_no_units[] = { { "", 1 }, { NULL, 0 } };

bool config_number(const char *value, const struct config_unit *units, uint64_t *out)
{
	char *end;

	if (!isdigit((unsigned char)*value))
		return false;
	errno = 0;
	unsigned long long n = strtoull(value, &end, 10);

	if (errno)
		return false;
	while (*end == ' ')
		end++;
	for (; units->word; units++)
		if (!strcmp(end, units->word))
			return (units->factor || !n) && !__builtin_mul_overflow((uint64_t)n, units->factor, out);
	return false;
}

void config_number_text(char *out, size_t size, uint64_t n, const struct config_unit *units)
{
	while (units->word[0] && (n % units->factor || !n))
		units++;
	snprintf(out, size, "%" PRIu64 "%s", n ? n / units->factor : 0, units->word);
}

bool config_bytes(const char *value, uint64_t *out)
{
	return config_number(value, config_byte_units, out);
}

bool config_count(const char *value, uint64_t *out)
{
	return config_number(value, config_no_units, out);
}
