/* Values of options: numbers with units, from text and to text. Knows no option. And forms of texts that others than
 * the configuration have, too. */
#ifndef TERRACE_DAEMON_PROCESS_CONFIG_VALUES_H
#define TERRACE_DAEMON_PROCESS_CONFIG_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A unit of a number's text. A list ends with a NULL word. A unit of factor 0 is for the number 0 alone. */
struct config_unit {
	const char *word;
	uint64_t factor;
};
extern const struct config_unit config_byte_units[], config_time_units[], config_no_units[];

/* Parses "64MiB". False for anything but digits and a known unit, or an overflow. */
bool config_number(const char *value, const struct config_unit *units, uint64_t *out);
/* Writes a number with the largest unit that divides it. */
void config_number_text(char *out, size_t size, uint64_t n, const struct config_unit *units);

/* Parses a size such as 512GiB, a whole number. False for anything else, or an overflow. */
bool config_bytes(const char *value, uint64_t *out);
bool config_count(const char *value, uint64_t *out);

/* What is wrong with the place of a secret, which is a path or credential:NAME; with a name of a certificate, as
 * dns:HOST; and with a list of such names. NULL: nothing. process/config_lists.c */
const char *config_secret_problem(const char *value);
const char *config_san_problem(const char *value);
const char *config_sans_problem(const char *value);
/* Whether such a list has this name. */
bool config_sans_have(const char *list, const char *name);

/* What is wrong with a name of a cluster or a node, with an address at which other members reach this one, and with a
 * list of etcd's endpoints; NULL: nothing. process/config_cluster.c */
const char *config_name_problem(const char *value);
const char *config_peer_problem(const char *value);
const char *config_endpoints_problem(const char *value);

#endif
