/* Values of options that earlier versions had: a configuration that names one starts, with a warning and the
 * default. */
#ifndef TERRACE_DAEMON_PROCESS_CONFIG_RETIRED_H
#define TERRACE_DAEMON_PROCESS_CONFIG_RETIRED_H

#include <stdio.h>

struct config;

/* Returns the policy's name, a fixed word, if earlier versions had that policy and this one has not; else NULL. */
const char *config_retired_policy(const char *value);
/* Prints a line, or calls tell, for each option whose value is not the one that was given. */
void config_retired_print(const struct config *c, FILE *to);
typedef void config_retired_fn(const char *option, const char *value, const char *used, const char *why);
void config_retired_tell(const struct config *c, config_retired_fn *tell);

#endif
