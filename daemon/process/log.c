/* Builds and writes log lines. See process/log.h.
 *
 * A line is assembled in a fixed buffer through a cursor that always keeps room for the closing characters,
 * so that a line that does not fit loses fields from its end but still parses.
 */
#include "daemon/process/log.h"
#include "daemon/process/log_character.h"

#include "daemon/process/log_unwritten.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level level_least = LOG_INFO;
static enum log_format format_now = LOG_LOGFMT;
static atomic_ullong lost, lost_told; /* lines */
static atomic_bool torn;              /* the last one that was written was not written to its end */

static const char *const level_names[] = { "debug", "info", "warn", "error" };

struct cursor {
	char *at, *end; /* end: what closes the line still fits behind it */
};

static bool put(struct cursor *c, const char *bytes, size_t n)
{
	if ((size_t)(c->end - c->at) < n)
		return false;
	memcpy(c->at, bytes, n);
	c->at += n;
	return true;
}

static bool put_text(struct cursor *c, const char *text)
{
	return put(c, text, strlen(text));
}

uint32_t log_character(const unsigned char *p, size_t *length)
{
	const size_t n = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : *p >= 0xc0 ? 2 : 1;
	uint32_t code = n > 1 ? *p & (0x7fu >> n) : *p;
	size_t i = 1;

	for (; i < n && (p[i] & 0xc0) == 0x80; i++)
		code = code << 6 | (p[i] & 0x3f);
	*length = n;
	if (n == 1 || (i == n && *p < 0xf8 && code <= 0x10ffff && code >> 11 != 0x1b && code >= (uint32_t[]){ 0x80, 0x800, 0x10000 }[n - 2]))
		return code;
	*length = 1;
	return *p;
}

/* Puts a code point as \uXXXX, or as two of these. */
static bool put_code(struct cursor *c, uint32_t code)
{
	char hex[16];

	if (code < 0x10000)
		return put(c, hex, (size_t)snprintf(hex, sizeof hex, "\\u%04x", code));
	code -= 0x10000;
	return put(c, hex, (size_t)snprintf(hex, sizeof hex, "\\u%04x\\u%04x", 0xd800 | code >> 10, 0xdc00 | (code & 0x3ff)));
}

/* Puts the text with JSON's escapes, in both formats of the log. A character that is not printable ASCII becomes
 * \uXXXX, and a byte that is no UTF-8 becomes \u00xx, so that a line is valid whatever a client sent. */
static bool put_escaped(struct cursor *c, const char *text)
{
	size_t length;

	for (const unsigned char *p = (const unsigned char *)text; *p; p += length) {
		const uint32_t code = log_character(p, &length);
		bool ok;

		if (*p == '"' || *p == '\\')
			ok = put(c, (const char[]){ '\\', (char)*p }, 2);
		else if (*p == '\n')
			ok = put(c, "\\n", 2);
		else if (*p == '\t')
			ok = put(c, "\\t", 2);
		else if (*p < 0x20 || *p >= 0x7f)
			ok = put_code(c, code);
		else
			ok = put(c, (const char *)p, 1);
		if (!ok)
			return false;
	}
	return true;
}

static bool is_plain(const char *text)
{
	if (!*text)
		return false;
	for (const unsigned char *p = (const unsigned char *)text; *p; p++)
		if (*p <= 0x20 || *p >= 0x7f || *p == '"' || *p == '\\' || *p == '=')
			return false;
	return true;
}

static bool put_value(struct cursor *c, enum log_format format, const struct log_field *f)
{
	char number[24];

	if (!f->text) {
		snprintf(number, sizeof number, "%" PRId64, f->number);
		return put_text(c, number);
	}
	if (format == LOG_LOGFMT && is_plain(f->text))
		return put_text(c, f->text);
	if (!put(c, "\"", 1))
		return false;
	char *quote_room = c->end;

	c->end--; /* the closing quote always fits */
	bool whole = put_escaped(c, f->text);

	c->end = quote_room;
	return put(c, "\"", 1) && whole;
}

static bool put_field(struct cursor *c, enum log_format format, const struct log_field *f)
{
	char *start = c->at;
	bool named = format == LOG_JSON ?
			     put(c, ",\"", 2) && put_text(c, f->name) && put(c, "\":", 2) :
			     put(c, " ", 1) && put_text(c, f->name) && put(c, "=", 1);

	/* A text that is cut still makes a value; a name or number that does not fit takes the field with it. */
	if (!named || (c->end - c->at) < 4 || (!put_value(c, format, f) && !f->text)) {
		c->at = start;
		return false;
	}
	return true;
}

size_t log_line(char *out, size_t size, enum log_format format, uint64_t unix_us, enum log_level level,
		const char *event, const struct log_field *fields)
{
	char when[40];
	struct tm tm;
	time_t seconds = (time_t)(unix_us / 1000000);
	struct cursor c = { out, out + size - 3 }; /* } \n NUL */

	gmtime_r(&seconds, &tm);
	size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);

	snprintf(when + n, sizeof when - n, ".%06uZ", (unsigned)(unix_us % 1000000));
	if (format == LOG_JSON) {
		put(&c, "{\"time\":\"", 9);
		put_text(&c, when);
		put(&c, "\"", 1);
	} else {
		put(&c, "time=", 5);
		put_text(&c, when);
	}
	put_field(&c, format, (struct log_field[]){ LOG_TEXT("level", level_names[level]) });
	bool room = put_field(&c, format, (struct log_field[]){ LOG_TEXT("event", event) });

	for (; room && fields && fields->name; fields++)
		room = put_field(&c, format, fields);
	if (format == LOG_JSON)
		*c.at++ = '}';
	*c.at++ = '\n';
	*c.at = 0;
	return (size_t)(c.at - out);
}

void log_setup(enum log_level least, enum log_format format)
{
	level_least = least;
	format_now = format;
}

bool log_on(enum log_level level)
{
	return level >= level_least;
}

bool log_again(struct log_again *a, uint64_t now_us, uint64_t *held)
{
	if (a->last_us && now_us - a->last_us < LOG_AGAIN_US) {
		a->held++;
		return false;
	}
	*held = a->held;
	*a = (struct log_again){ .last_us = now_us };
	return true;
}

/* Writes a line. True: all of it was written. A line of which only the beginning was written is ended before the next
 * one. */
static bool write_whole(const char *bytes, size_t n)
{
	size_t done = 0;

	while (done < n) {
		const ssize_t put = write(STDERR_FILENO, bytes + done, n - done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			break;
		done += (size_t)put;
	}
	if (done > 0 && done < n)
		atomic_store(&torn, true);
	return done == n;
}

static uint64_t unix_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Logs how many lines were lost since the last such report, now that the log can be written. */
static void tell_lost(void)
{
	const uint64_t count = atomic_load(&lost) - atomic_load(&lost_told);
	const struct log_field fields[] = { LOG_NUM("lines", count), LOG_TEXT("reason", "they could not be written"), { 0 } };
	char line[256];

	if (!count)
		return;
	atomic_fetch_add(&lost_told, count);
	if (!write_whole(line, log_line(line, sizeof line, format_now, unix_us(), LOG_WARN, "log_lost", fields)))
		atomic_fetch_sub(&lost_told, count);
}

uint64_t log_lost(void)
{
	return atomic_load(&lost);
}

void log_write(enum log_level level, const char *event, const struct log_field *fields)
{
	char line[LOG_LINE_MAX];
	int saved = errno;
	size_t n = log_line(line, sizeof line, format_now, unix_us(), level, event, fields);

	if (atomic_exchange(&torn, false) && !write_whole("\n", 1))
		atomic_store(&torn, true);
	if (write_whole(line, n))
		tell_lost();
	else
		atomic_fetch_add(&lost, 1);
	errno = saved;
}
