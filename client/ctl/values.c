/* Parses values on the command line. strtoull is not enough: it also takes signs, blanks and octal numbers. */
#include "client/ctl/values.h"

#include <stdlib.h>
#include <string.h>

bool ctl_parse_uint(const char *text, uint64_t max, uint64_t *out)
{
	uint64_t v = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		unsigned digit = (unsigned char)*text - '0';

		if (digit > 9 || v > (max - digit) / 10 || digit > max)
			return false;
		v = v * 10 + digit;
	}
	*out = v;
	return true;
}

bool ctl_parse_bytes(const char *text, uint64_t *out)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	size_t n = strspn(text, "0123456789");
	char digits[24];
	uint64_t v;

	if (n >= sizeof(digits))
		return false;
	memcpy(digits, text, n);
	digits[n] = '\0';
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(text + n, units[i]))
			continue;
		if (!ctl_parse_uint(digits, UINT64_MAX >> 10 * i, &v))
			return false;
		*out = v << 10 * i;
		return true;
	}
	return false;
}

bool ctl_parse_seconds(const char *text, uint64_t *out_us)
{
	char *end;
	double s;

	if (*text < '.' || *text > '9') /* no sign, no space, no "inf", no "nan" */
		return false;
	s = strtod(text, &end);
	if (*end || !(s > 0) || s > 86400)
		return false;
	*out_us = s < 1e-6 ? 1 : (uint64_t)(s * 1e6 + 0.5);
	return true;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
		return (c | 0x20) - 'a' + 10;
	return -1;
}

_Static_assert(TERRACE_KEY_BYTES_MAX == 64, "the texts of the commands say that a key has 2 to 128 hex digits");

bool ctl_parse_key(const char *text, uint8_t key[TERRACE_KEY_BYTES_MAX], uint32_t *bytes)
{
	size_t n = strlen(text);

	if (n == 0 || n % 2 || n > 2 * TERRACE_KEY_BYTES_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if (hex_digit(text[i]) < 0)
			return false;
	for (size_t i = 0; i < n / 2; i++)
		key[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
	*bytes = (uint32_t)(n / 2);
	return true;
}

bool ctl_parse_id(const char *text, uint64_t *out)
{
	uint64_t v = 0;
	size_t n;

	if (text[0] == '0' && text[1] == 'x')
		text += 2;
	n = strlen(text);
	if (n == 0 || n > 16)
		return false;
	for (size_t i = 0; i < n; i++) {
		int digit = hex_digit(text[i]);

		if (digit < 0)
			return false;
		v = v << 4 | (unsigned)digit;
	}
	*out = v;
	return true;
}
