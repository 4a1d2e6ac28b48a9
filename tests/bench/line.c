/* Reads what print_json of report.c writes, by the names of its members: their order may be another one in another
 * build, and members that are not asked for may come or go. Names hold no quotes and no backslashes, so no text
 * needs unescaping.
 */
#include "tests/bench/line.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the value of that member begins; NULL: there is none. */
static const char *member(const char *text, const char *name)
{
	char quoted[32];
	const char *at;

	snprintf(quoted, sizeof(quoted), "\"%s\":", name);
	at = strstr(text, quoted);
	return at ? at + strlen(quoted) : NULL;
}

static bool read_text(const char *text, const char *name, char *to, size_t room)
{
	const char *at = member(text, name), *end = at && *at == '"' ? strchr(at + 1, '"') : NULL;

	if (!end || (size_t)(end - at) > room)
		return false;
	memcpy(to, at + 1, (size_t)(end - at - 1));
	to[end - at - 1] = '\0';
	return true;
}

/* `null` is NAN. */
static bool read_number(const char *text, const char *name, double *to)
{
	const char *at = member(text, name);
	char *end;

	if (!at)
		return false;
	*to = strtod(at, &end);
	if (end == at && !strncmp(at, "null", 4)) {
		*to = NAN;
		end += 4;
	}
	return end > at && (*end == ',' || *end == '}');
}

bool line_read(const char *text, struct line *out)
{
	const size_t bytes = strcspn(text, "\n");

	return bytes > 1 && text[0] == '{' && text[bytes - 1] == '}' &&
	       read_text(text, "case", out->name, sizeof(out->name)) &&
	       read_text(text, "unit", out->unit, sizeof(out->unit)) && read_number(text, "value", &out->value) &&
	       read_number(text, "ratio", &out->ratio);
}
