/* Parses values on the command line. Each function returns false for a text of another form, and then leaves its output
 * unchanged.
 */
#ifndef TERRACE_CTL_VALUES_H
#define TERRACE_CTL_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "client/include/terrace.h"

/* A decimal number of at most `max`. */
bool ctl_parse_uint(const char *text, uint64_t max, uint64_t *out);
/* Bytes: a decimal number, then KiB, MiB, GiB, TiB or nothing. */
bool ctl_parse_bytes(const char *text, uint64_t *out);
/* Seconds, with decimals if wanted, more than 0 and at most a day: in microseconds. */
bool ctl_parse_seconds(const char *text, uint64_t *out_us);
/* 1 to TERRACE_KEY_BYTES_MAX bytes as two hex digits each. *bytes is untouched when it fails. */
bool ctl_parse_key(const char *text, uint8_t key[TERRACE_KEY_BYTES_MAX], uint32_t *bytes);
/* Up to 16 hex digits, an optional 0x before them. */
bool ctl_parse_id(const char *text, uint64_t *out);

#endif
