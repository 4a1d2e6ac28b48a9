/* How the user names the form of K and V: "fp32" (plain floats), "tq4" (both), "fp8/tq4" (K/V). */
#ifndef TINYLM_KVSPEC_H
#define TINYLM_KVSPEC_H

#include "fault.h"

#include "terrace.h"

enum { KVSPEC_LIST_MAX = 32 };

struct kvspec {
	char name[24]; /* as it is shown */
	bool packed;   /* false: fp32 */
	enum terrace_format k, v;
};

bool kvspec_parse(const char *text, struct kvspec *spec, struct fault *fault);

/* A comma-separated list of 1 to KVSPEC_LIST_MAX. */
bool kvspec_parse_list(const char *text, struct kvspec specs[KVSPEC_LIST_MAX], uint32_t *count, struct fault *fault);

#endif
