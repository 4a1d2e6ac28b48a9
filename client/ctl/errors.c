/* See errors.h. The JSON is written by hand: it has few fields, and the error may be that memory has run out. */
#include "client/ctl/errors.h"

#include "client/ctl/ctl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 2048, CODE_NONE = -1 };

static bool as_json;
static const struct ctl_command *of;

void ctl_errors_as_json(void)
{
	as_json = true;
}

void ctl_errors_of(const struct ctl_command *command)
{
	of = command;
}

/* A quoted JSON string. What is not ASCII may be no UTF-8, since it comes from anywhere: it becomes '?'. */
static void put_string(const char *text)
{
	fputc('"', stderr);
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		if (*p == '"' || *p == '\\')
			fprintf(stderr, "\\%c", *p);
		else if (*p < 0x20 || *p == 0x7f)
			fprintf(stderr, "\\u%04x", *p);
		else
			fputc(*p < 0x80 ? *p : '?', stderr);
	}
	fputc('"', stderr);
}

static const char *status_word(int status)
{
#define WORD(name) case TERRACE_##name: return #name;
	switch (status) {
	WORD(MISS) WORD(BUSY) WORD(CANCELLED) WORD(INVALID) WORD(NOT_FOUND) WORD(EXISTS) WORD(EXHAUSTED) WORD(DEADLINE) WORD(UNAVAILABLE)
	WORD(PRECONDITION) WORD(DENIED) WORD(CORRUPT) WORD(UNSUPPORTED) WORD(STALE) WORD(IO) WORD(INTERNAL)
	default: return "UNKNOWN";
	}
#undef WORD
}

static void say_json(int code, int status, const char *text)
{
	fputs("{\"error\": ", stderr);
	put_string(text);
	fprintf(stderr, ", \"exit\": %d", code);
	if (of)
		fprintf(stderr, ", \"command\": \"%s\"", of->name);
	if (of && code == CTL_USAGE)
		fprintf(stderr, ", \"usage\": \"terracectl %s%s%s\"", of->name, *of->synopsis ? " " : "", of->synopsis);
	if (status != CODE_NONE)
		fprintf(stderr, ", \"status\": \"%s\"", status_word(status));
	fputs("}\n", stderr);
}

/* Text from the daemon and from files loses its control characters: they must not reach a terminal. */
static void say_text(char *text)
{
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	fprintf(stderr, "terracectl: %s\n", text);
}

static int say(int code, int status, const char *format, va_list list)
{
	char text[TEXT_BYTES];

	vsnprintf(text, sizeof(text), format, list);
	if (as_json)
		say_json(code, status, text);
	else
		say_text(text);
	return code;
}

int ctl_usage(const struct ctl_command *command, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say(CTL_USAGE, CODE_NONE, format, list);
	va_end(list);
	if (!as_json && command)
		fprintf(stderr, "Usage: terracectl %s%s%s\n", command->name, *command->synopsis ? " " : "", command->synopsis);
	if (!as_json)
		fprintf(stderr, "Try 'terracectl %s%s--help'.\n", command ? command->name : "", command ? " " : "");
	return CTL_USAGE;
}

int ctl_failed(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say(CTL_FAILED, CODE_NONE, format, list);
	va_end(list);
	return CTL_FAILED;
}

int ctl_failed_with(int code, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say(code, CODE_NONE, format, list);
	va_end(list);
	return code;
}

int ctl_failed_status(enum terrace_status status, const char *format, ...)
{
	const int code = status == TERRACE_UNAVAILABLE || status == TERRACE_DEADLINE ? CTL_UNREACHABLE : CTL_FAILED;
	va_list list;

	va_start(list, format);
	say(code, status, format, list);
	va_end(list);
	return code;
}
