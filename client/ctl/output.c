/* One tree of values for both forms: printed as JSON, or walked and aligned as text. */
#include "client/ctl/output.h"

#include "client/ctl/errors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 16, VALUE_MAX = 768 };

static struct json_t *need(struct json_t *v)
{
	if (!v) {
		exit(ctl_failed("what is to be printed: no memory for it"));
	}
	return v;
}

struct json_t *out_object(void)
{
	return need(json_object());
}

struct json_t *out_array(void)
{
	return need(json_array());
}

void out_free(struct json_t *tree)
{
	json_decref(tree);
}

void out_put(struct json_t *object, const char *name, struct json_t *child)
{
	if (json_object_set_new(object, name, child))
		need(NULL);
}

void out_append(struct json_t *array, struct json_t *child)
{
	if (json_array_append_new(array, child))
		need(NULL);
}

void out_put_text(struct json_t *object, const char *name, const char *text)
{
	struct json_t *v = json_string(text ? text : "");
	char *plain;

	if (!v) { /* no memory, or no UTF-8 */
		plain = strdup(text);
		if (!plain)
			need(NULL);
		for (char *p = plain; *p; p++)
			if ((unsigned char)*p >= 0x80)
				*p = '?';
		v = json_string(plain);
		free(plain);
	}
	out_put(object, name, need(v));
}

void out_put_uint(struct json_t *object, const char *name, uint64_t value)
{
	out_put(object, name, need(json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value)));
}

void out_put_number(struct json_t *object, const char *name, double value)
{
	if (fabs(value) < 0x1p53 && value == floor(value))
		out_put(object, name, need(json_integer((json_int_t)value)));
	else
		out_put(object, name, need(isfinite(value) ? json_real(value) : json_null()));
}

void out_put_bool(struct json_t *object, const char *name, bool value)
{
	out_put(object, name, need(json_boolean(value)));
}

void out_put_hex(struct json_t *object, const char *name, const uint8_t *bytes, size_t n)
{
	char *text = malloc(2 * n + 1);

	if (!text)
		need(NULL);
	text[0] = '\0';
	for (size_t i = 0; i < n; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	out_put_text(object, name, text);
	free(text);
}

struct json_t *out_text(const char *text)
{
	return need(json_string(text));
}

struct json_t *out_id(uint64_t id)
{
	char text[17];

	snprintf(text, sizeof(text), "%016" PRIx64, id);
	return need(json_string(text));
}

void out_put_id(struct json_t *object, const char *name, uint64_t id)
{
	out_put(object, name, out_id(id));
}

/* A scalar as people read it. Text from the daemon loses its control characters: they must not reach a
 * terminal. */
static const char *scalar(const struct json_t *v, char text[VALUE_MAX])
{
	switch (json_typeof(v)) {
	case JSON_STRING:
		snprintf(text, VALUE_MAX, "%s", json_string_value(v));
		for (char *p = text; *p; p++)
			if ((unsigned char)*p < 0x20 || *p == 0x7f)
				*p = '?';
		break;
	case JSON_INTEGER:
		snprintf(text, VALUE_MAX, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		break;
	case JSON_REAL:
		snprintf(text, VALUE_MAX, "%.6g", json_real_value(v));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		snprintf(text, VALUE_MAX, "%s", json_is_true(v) ? "yes" : "no");
		break;
	default:
		snprintf(text, VALUE_MAX, "-");
	}
	return text;
}

static bool nested(const struct json_t *v)
{
	return json_is_object(v) || json_is_array(v);
}

static void print_row(struct json_t *row, const char *const *names, const int *width, int columns, int indent)
{
	char text[VALUE_MAX];

	printf("%*s", indent, "");
	for (int i = 0; i < columns; i++) {
		const struct json_t *v = row ? json_object_get(row, names[i]) : NULL;
		const char *s = !row ? names[i] : v ? scalar(v, text) : "";
		bool right = row && json_is_number(v);

		if (i + 1 == columns && !right)
			printf("%s", s);
		else
			printf(right ? "%*s" : "%-*s", width[i], s);
		if (i + 1 < columns)
			printf("  ");
	}
	putchar('\n');
}

/* The head of a table is the scalars of its first row. */
static void print_table(struct json_t *array, int indent)
{
	const char *names[COLUMNS_MAX];
	int width[COLUMNS_MAX], columns = 0;
	char text[VALUE_MAX];
	const char *name;
	struct json_t *v, *row;
	size_t i;

	json_object_foreach(json_array_get(array, 0), name, v)
	{
		if (nested(v) || columns == COLUMNS_MAX)
			continue;
		names[columns] = name;
		width[columns] = (int)strlen(name);
		json_array_foreach(array, i, row)
		{
			const struct json_t *cell = json_object_get(row, name);
			int w = cell ? (int)strlen(scalar(cell, text)) : 0;

			width[columns] = w > width[columns] ? w : width[columns];
		}
		columns++;
	}
	print_row(NULL, names, width, columns, indent);
	json_array_foreach(array, i, row) print_row(row, names, width, columns, indent);
}

static bool table(const struct json_t *array)
{
	const char *name;
	struct json_t *v;

	json_object_foreach(json_array_get(array, 0), name, v) if (nested(v)) return false;
	return json_is_object(json_array_get(array, 0));
}

static void print_object(struct json_t *object, int indent);

static void print_array(struct json_t *array, int indent)
{
	char text[VALUE_MAX];
	struct json_t *v;
	size_t i;

	if (table(array)) {
		print_table(array, indent);
		return;
	}
	json_array_foreach(array, i, v)
	{
		if (i && nested(v))
			putchar('\n');
		if (json_is_object(v))
			print_object(v, indent);
		else
			printf("%*s%s\n", indent, "", scalar(v, text));
	}
}

static void print_object(struct json_t *object, int indent)
{
	char text[VALUE_MAX];
	const char *name;
	struct json_t *v;
	int width = 0;

	json_object_foreach(object, name, v) if (!nested(v) && (int)strlen(name) > width) width =
		(int)strlen(name);
	json_object_foreach(object, name, v)
	{
		if (!nested(v)) {
			printf("%*s%-*s  %s\n", indent, "", width, name, scalar(v, text));
			continue;
		}
		printf("%*s%s\n", indent, "", name);
		if (json_is_object(v))
			print_object(v, indent + 2);
		else
			print_array(v, indent + 2);
	}
}

bool out_print(struct json_t *tree, bool json, bool one_line)
{
	if (json) {
		json_dumpf(tree, stdout, JSON_REAL_PRECISION(12) | (one_line ? JSON_COMPACT : JSON_INDENT(2)));
		putchar('\n');
	} else if (json_is_array(tree)) {
		print_array(tree, 0);
	} else {
		print_object(tree, 0);
	}
	json_decref(tree);
	return out_flush();
}

bool out_flush(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return true;
	ctl_failed("standard output: %s: what was printed is not complete", strerror(errno));
	return false;
}
