/* Structured logs on stderr: one event a line, `key=value` or JSON.
 *
 * Only daemon/ logs, and logs a thing once, where it is handled. Prompt contents and keys never appear above debug. Any
 * thread: a line is built on the stack and written with one write(2). A line longer than LOG_LINE_MAX is cut and stays
 * well formed. A line that cannot be written is counted (process/log_unwritten.h).
 */
#ifndef TERRACE_DAEMON_PROCESS_LOG_H
#define TERRACE_DAEMON_PROCESS_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_LOGFMT, LOG_JSON };
enum { LOG_LINE_MAX = 4096 };

/* One field. text NULL: the field is the number. name NULL: the end of a list. */
struct log_field {
	const char *name; /* plain: letters, digits, underscores */
	const char *text; /* any bytes up to the NUL; escaped */
	int64_t number;
};

static inline struct log_field log_text(const char *name, const char *text)
{
	return (struct log_field){ .name = name, .text = text ? text : "" };
}
#define LOG_TEXT(key, value) log_text(key, value)
#define LOG_NUM(key, value) ((struct log_field){ .name = (key), .number = (int64_t)(value) })

/* Called before other threads start. */
void log_setup(enum log_level least, enum log_format format);
bool log_on(enum log_level level);

/* Writes an event. The list of fields ends with a field without a name. */
void log_write(enum log_level level, const char *event, const struct log_field *fields);

#define LOG_AT(level, event, ...)                                                                  \
	do {                                                                                       \
		if (log_on(level))                                                                 \
			log_write(level, event, (struct log_field[]){ __VA_ARGS__ __VA_OPT__(, ) { 0 } });     \
	} while (0)
#define log_debug(...) LOG_AT(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) LOG_AT(LOG_INFO, __VA_ARGS__)
#define log_warn(...) LOG_AT(LOG_WARN, __VA_ARGS__)
#define log_error(...) LOG_AT(LOG_ERROR, __VA_ARGS__)

/* Builds a line, newline and NUL included, in out[size] (size >= 256). Returns its length without the NUL. unix_us: the
 * time in the line. */
size_t log_line(char *out, size_t size, enum log_format format, uint64_t unix_us, enum log_level level,
		const char *event, const struct log_field *fields);

#endif
