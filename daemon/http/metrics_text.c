/* See http/metrics_text.h. Each metric has a text of its own, to which its samples are added as they come. */
#include "daemon/http/metrics_text.h"

#include "daemon/process/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAMILIES_FIRST = 256, TEXT_FIRST = 256, NAME_MAX_BYTES = 96 };

struct text {
	char *bytes;
	size_t used, room;
	bool failed;
};

struct metrics_family {
	char name[NAME_MAX_BYTES];
	struct text text;
};

static bool text_room(struct text *t, size_t more)
{
	size_t room = t->room ? t->room : TEXT_FIRST;
	char *bytes;

	while (room < t->used + more)
		room *= 2;
	if (room == t->room)
		return true;
	bytes = realloc(t->bytes, room);
	t->failed |= !bytes;
	if (!bytes)
		return false;
	t->bytes = bytes;
	t->room = room;
	return true;
}

static void put(struct text *t, const char *bytes, size_t n)
{
	if (!text_room(t, n))
		return;
	memcpy(t->bytes + t->used, bytes, n);
	t->used += n;
}

static void put_text(struct text *t, const char *text)
{
	put(t, text, strlen(text));
}

/* A byte of a value or a help; quote: it stands between quotes. */
static void put_escaped(struct text *t, char c, bool quote)
{
	if (c == '\n')
		put(t, "\\n", 2);
	else if (c == '\\' || (quote && c == '"'))
		put(t, (const char[]){ '\\', c }, 2);
	else
		put(t, c < ' ' || c > '~' ? "?" : &c, 1);
}

/* NAME=VALUE,...: in a value a backslash stands before a comma or a backslash that belongs to it. */
static void put_labels(struct text *t, const char *labels)
{
	put(t, "{", 1);
	for (;;) {
		const size_t n = strcspn(labels, "=");

		put(t, labels, n);
		put(t, "=\"", 2);
		for (labels += n + (labels[n] == '='); *labels && *labels != ','; labels++) {
			labels += *labels == '\\' && labels[1];
			put_escaped(t, *labels, true);
		}
		put(t, "\"", 1);
		if (!*labels)
			break;
		put(t, ",", 1);
		labels++;
	}
	put(t, "}", 1);
}

/* Puts the number with the fewest digits that read back as the same number. */
static void put_number(struct text *t, double value)
{
	char number[40];

	snprintf(number, sizeof number, " %.15g\n", value);
	if (strtod(number, NULL) != value)
		snprintf(number, sizeof number, " %.17g\n", value);
	put_text(t, number);
}

/* Rows of a histogram end in one of these, and are samples of the family without it. */
static const char *const sample_ends[] = { "_bucket", "_sum", "_count" };

/* How many bytes of a row's name are its family's. */
static size_t family_bytes(const char *name)
{
	const size_t n = strlen(name);

	for (size_t i = 0; i < sizeof sample_ends / sizeof sample_ends[0]; i++) {
		const size_t end = strlen(sample_ends[i]);

		if (n > end && !strcmp(name + n - end, sample_ends[i]))
			return n - end;
	}
	return n;
}

static void put_head(struct metrics_family *f, const char *type, const char *help)
{
	put_text(&f->text, "# HELP ");
	put_text(&f->text, f->name);
	put_text(&f->text, " ");
	for (; *help; help++)
		put_escaped(&f->text, *help, false);
	put_text(&f->text, "\n# TYPE ");
	put_text(&f->text, f->name);
	put_text(&f->text, type);
}

static struct metrics_family *family_new(struct metrics_text *t, const char *name, bool counter, const char *help)
{
	const size_t n = family_bytes(name);

	if (t->count == t->room) {
		const uint32_t room = t->room ? 2 * t->room : FAMILIES_FIRST;
		struct metrics_family *more = realloc(t->families, room * sizeof *more);

		if (!more)
			return NULL;
		t->families = more;
		t->room = room;
	}
	struct metrics_family *f = &t->families[t->count];

	*f = (struct metrics_family){ .text.used = 0 };
	if (n >= sizeof f->name)
		return NULL;
	memcpy(f->name, name, n);
	t->count++;
	put_head(f, name[n] ? " histogram\n" : counter ? " counter\n" : " gauge\n", help);
	return f;
}

static bool is_named(const struct metrics_family *f, const char *name, size_t n)
{
	return !strncmp(f->name, name, n) && !f->name[n];
}

/* Rows of one name mostly follow each other. */
static struct metrics_family *family_of(struct metrics_text *t, const char *name, bool counter, const char *help)
{
	const size_t n = family_bytes(name);

	if (t->last < t->count && is_named(&t->families[t->last], name, n))
		return &t->families[t->last];
	for (t->last = 0; t->last < t->count; t->last++)
		if (is_named(&t->families[t->last], name, n))
			return &t->families[t->last];
	return family_new(t, name, counter, help);
}

static void family_row(struct metrics_family *f, const char *name, const char *labels, double value)
{
	if (!isfinite(value))
		return;
	put_text(&f->text, name);
	if (*labels)
		put_labels(&f->text, labels);
	put_number(&f->text, value);
}

/* Names that metrics had up to 0.1: dashboards and alerts find them for one version more. */
static const struct {
	const char *name, *former;
} renamed[] = {
	{ "terrace_fd_socket_", "terrace_door_" },
	{ "terrace_local_", "terrace_near_" },
};

/* The former name of a metric; false: it has had no other. */
static bool former_of(const char *name, char former[NAME_MAX_BYTES])
{
	for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
		const size_t n = strlen(renamed[i].name);

		if (strncmp(name, renamed[i].name, n))
			continue;
		snprintf(former, NAME_MAX_BYTES, "%s%s", renamed[i].former, name + n);
		return true;
	}
	return false;
}

void metrics_text_row(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct metrics_text *t = arg;
	struct metrics_family *f = t->rows++ < STATS_MAX ? family_of(t, name, counter, help) : NULL;
	char former[NAME_MAX_BYTES], why[2 * NAME_MAX_BYTES];

	t->failed |= !f;
	if (!f)
		return;
	family_row(f, name, labels, value);
	if (!former_of(name, former))
		return;
	snprintf(why, sizeof why, "former name of %s, for this version only", name);
	f = family_of(t, former, counter, why);
	t->failed |= !f;
	if (f)
		family_row(f, former, labels, value);
}

char *metrics_text_make(const struct metrics_text *t, size_t *bytes)
{
	struct text all = { .failed = t->failed };

	for (uint32_t i = 0; i < t->count; i++) {
		all.failed |= t->families[i].text.failed;
		put(&all, t->families[i].text.bytes, all.failed ? 0 : t->families[i].text.used);
	}
	put(&all, "", 1);
	if (all.failed) {
		free(all.bytes);
		return NULL;
	}
	*bytes = all.used - 1;
	return all.bytes;
}

void metrics_text_fini(struct metrics_text *t)
{
	for (uint32_t i = 0; i < t->count; i++)
		free(t->families[i].text.bytes);
	free(t->families);
	*t = (struct metrics_text){ .count = 0 };
}
