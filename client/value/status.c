/* Status values and the thread's last error.
 *
 * The public enum, the wire enum and store/status.h have the same numbers; that is asserted here. The text of a failure
 * is kept in thread-local storage. An asynchronous operation copies its text there when it is finished.
 */
#include "client/value/status.h"

#include "store/status.h"
#include "terrace.pb-c.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SAME(name, value, text)                                                                                        \
	_Static_assert((int)TERRACE_##name == value && (int)TERRACE__V1__STATUS__##name == value, #name);
STATUS_MAP(SAME)
#undef SAME

static _Thread_local char last_error[CLIENT_ERROR_MAX];

const char *terrace_status_text(enum terrace_status status)
{
	switch ((enum status)status) {
#define TEXT(name, value, text)                                                                                        \
	case STATUS_##name:                                                                                            \
		return text;
		STATUS_MAP(TEXT)
#undef TEXT
	case STATUS_COUNT:
		break;
	}
	return "unknown status";
}

const char *terrace_error(void)
{
	return last_error;
}

#define TEXT_OF(x) #x
#define TEXT_OF_VALUE(x) TEXT_OF(x)

const char *terrace_version(void)
{
	return TEXT_OF_VALUE(TERRACE_VERSION_MAJOR) "." TEXT_OF_VALUE(TERRACE_VERSION_MINOR) "." TEXT_OF_VALUE(
		TERRACE_VERSION_PATCH);
}

enum terrace_status client_fail(enum terrace_status status, const char *format, ...)
{
	char text[CLIENT_ERROR_MAX]; /* the arguments may point into last_error */
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	memcpy(last_error, text, sizeof(text));
	return status;
}

enum terrace_status client_fail_in(enum terrace_status status, const char *where)
{
	return client_fail(status, "%s: %s", where, last_error[0] ? last_error : terrace_status_text(status));
}

void client_words_keep(struct client_words *words)
{
	memcpy(words->text, last_error, sizeof(words->text));
}

void client_words_back(const struct client_words *words)
{
	memcpy(last_error, words->text, sizeof(last_error));
}
