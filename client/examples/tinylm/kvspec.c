/* Names of KV forms; see kvspec.h. */
#include "kvspec.h"

#include <stdio.h>
#include <string.h>

static bool parse_format(const char *name, enum terrace_format *format)
{
	return terrace_format_parse(name, format) == TERRACE_OK && *format != TERRACE_FORMAT_NONE &&
	       *format != TERRACE_FORMAT_OPAQUE;
}

bool kvspec_parse(const char *text, struct kvspec *spec, struct fault *fault)
{
	struct kvspec out = { 0 };
	char first[sizeof(out.name)];
	char *slash;

	if (strlen(text) >= sizeof(out.name))
		return fault_set(fault, "unknown format \"%.40s\"", text);
	strcpy(out.name, text);
	strcpy(first, text);
	slash = strchr(first, '/');
	if (slash)
		*slash = 0;
	out.packed = strcmp(text, "fp32") != 0;
	if (out.packed && (!parse_format(first, &out.k) || !parse_format(slash ? slash + 1 : first, &out.v)))
		return fault_set(fault, "unknown format \"%s\": fp32, fp16, bf16, fp8, int4_pth, tq4, tq3, tq2, or two as K/V",
				 text);
	*spec = out;
	return true;
}

bool kvspec_parse_list(const char *text, struct kvspec specs[KVSPEC_LIST_MAX], uint32_t *count, struct fault *fault)
{
	uint32_t n = 0;

	for (;;) {
		size_t length = strcspn(text, ",");
		char item[64];

		if (n == KVSPEC_LIST_MAX)
			return fault_set(fault, "more than %d formats", KVSPEC_LIST_MAX);
		snprintf(item, sizeof(item), "%.*s", (int)(length < sizeof(item) ? length : sizeof(item) - 1), text);
		if (!kvspec_parse(item, &specs[n], fault))
			return false;
		n++;
		if (text[length] == 0)
			break;
		text += length + 1;
	}
	*count = n;
	return true;
}
