/* Names and texts of the outcomes, made from the one list in status.h. */
#include "store/status.h"

const char *status_text(enum status s)
{
	switch (s) {
#define STATUS_TEXT(name, value, text)                                                             \
	case STATUS_##name:                                                                        \
		return text;
		STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
	case STATUS_COUNT:
		break;
	}
	return "unknown status";
}

const char *status_name(enum status s)
{
	switch (s) {
#define STATUS_NAME(name, value, text)                                                             \
	case STATUS_##name:                                                                        \
		return #name;
		STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
	case STATUS_COUNT:
		break;
	}
	return "UNKNOWN";
}
