/* The words of a failure: one text a thread, read by terrace_error(). */
#ifndef TERRACE_CLIENT_VALUE_STATUS_H
#define TERRACE_CLIENT_VALUE_STATUS_H

#include "client/include/terrace.h"

enum { CLIENT_ERROR_MAX = 512 }; /* longer texts are cut */

/* Sets the calling thread's text from a printf format and returns `status`, so that a failure is one return statement. */
enum terrace_status client_fail(enum terrace_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts words before the calling thread's text ("lease: " + the text) and returns `status`. */
enum terrace_status client_fail_in(enum terrace_status status, const char *where);

/* Keeps the calling thread's text before work whose failures do not concern the caller, and restores it. */
struct client_words {
	char text[CLIENT_ERROR_MAX];
};
void client_words_keep(struct client_words *words);
void client_words_back(const struct client_words *words);

#endif
