/* What commands print: a tree of named values, shown as text or as JSON, so that both always have the same values.
 *
 * As text, an object is aligned "name  value" lines. An array of objects is a table with their names as its head.
 * Nested values are indented under their name. This is the only file of terracectl's output that knows jansson; struct
 * json_t is jansson's value. A function that runs out of memory ends the program, which holds nothing worth saving.
 */
#ifndef TERRACE_CTL_OUTPUT_H
#define TERRACE_CTL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

struct json_t *out_object(void);
struct json_t *out_array(void);
void out_free(struct json_t *tree);
/* Adds a child, which the parent then owns. */
void out_put(struct json_t *object, const char *name, struct json_t *child);
void out_append(struct json_t *array, struct json_t *child);

/* Adds a text. text may be NULL (printed as empty); bytes that are no UTF-8 become '?'. */
void out_put_text(struct json_t *object, const char *name, const char *text);
void out_put_uint(struct json_t *object, const char *name, uint64_t value);
void out_put_number(struct json_t *object, const char *name, double value);
void out_put_bool(struct json_t *object, const char *name, bool value);
/* Adds bytes as two hex digits each. */
void out_put_hex(struct json_t *object, const char *name, const uint8_t *bytes, size_t n);
/* A text as an element of a list; it is UTF-8. */
struct json_t *out_text(const char *text);
/* A 64-bit id as 16 hex digits. */
struct json_t *out_id(uint64_t id);
void out_put_id(struct json_t *object, const char *name, uint64_t id);

/* Prints the tree, frees it, and flushes. one_line: JSON without line breaks. False: writing failed, and stderr says
 * so. */
bool out_print(struct json_t *tree, bool json, bool one_line);

/* Flushes output that was printed in another way. False: as out_print. */
bool out_flush(void);

#endif
