/* See process/config_retired.h. */
#include "daemon/process/config_retired.h"

#include "daemon/process/config.h"

#include <string.h>

enum { WHY_MAX = 128 + CONFIG_TEXT_MAX };

/* Yardsticks for the other policies, which terrace-replay still has. */
const char *config_retired_policy(const char *value)
{
	static const char *const words[] = { "fifo", "arc", "gdsf" };

	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		if (!strcmp(value, words[i]))
			return words[i];
	return NULL;
}

/* The next row from *i on; false: there are no more. why: what the warning says. */
static bool next(const struct config *c, uint32_t *i, struct config_row *row, char why[WHY_MAX])
{
	while (config_row(c, (*i)++, row)) {
		if (!row->retired)
			continue;
		snprintf(why, WHY_MAX,
			 "the daemon has no %s \"%s\" any more and goes by %s: name one that --help lists", row->name,
			 row->retired, row->value);
		return true;
	}
	return false;
}

void config_retired_print(const struct config *c, FILE *to)
{
	struct config_row row;
	char why[WHY_MAX];

	for (uint32_t i = 0; next(c, &i, &row, why);)
		fprintf(to, "terraced: warning: %s\n", why);
}

void config_retired_tell(const struct config *c, config_retired_fn *tell)
{
	struct config_row row;
	char why[WHY_MAX];

	for (uint32_t i = 0; next(c, &i, &row, why);)
		tell(row.name, row.retired, row.value, why);
}
