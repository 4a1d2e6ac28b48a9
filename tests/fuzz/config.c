/* A configuration file of any bytes: parsed or refused with a message, and what was accepted prints and parses again to the same. */
#include <stdlib.h>
#include <string.h>

#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config config, again;
	struct config_errors errors = { 0 };
	struct config_row row;

	config_defaults(&config);
	if (config_parse(&config, "fuzz", (const char *)data, size, &errors) != STATUS_OK) {
		if (errors.count == 0 || errors.text[0] == 0)
			abort();
		return 0;
	}
	config_defaults(&again);
	for (uint32_t i = 0; config_row(&config, i, &row); i++) {
		char line[CONFIG_TEXT_MAX + 64];
		size_t n = (size_t)snprintf(line, sizeof(line), "%s = %s\n", row.name, row.value);
		struct config_row same;

		if (row.value[0] == 0 || strcmp(row.origin, "file") != 0)
			continue;
		errors = (struct config_errors){ 0 };
		if (config_parse(&again, "again", line, n, &errors) != STATUS_OK || !config_row(&again, i, &same) ||
		    strcmp(same.value, row.value) != 0)
			abort();
	}
	return 0;
}
