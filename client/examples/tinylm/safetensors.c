/* The safetensors reader. The JSON is jansson's work; this file checks what the JSON claims against the bytes there
 * are. */
#include "safetensors.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

enum { TENSORS_MAX = 65536, NAME_MAX_BYTES = 256 };

static const size_t header_max = 100u << 20; /* the format's own limit */

static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[] = {
	[SAFETENSORS_BOOL] = { "BOOL", 1 },       [SAFETENSORS_U8] = { "U8", 1 },
	[SAFETENSORS_I8] = { "I8", 1 },           [SAFETENSORS_F8_E5M2] = { "F8_E5M2", 1 },
	[SAFETENSORS_F8_E4M3] = { "F8_E4M3", 1 }, [SAFETENSORS_U16] = { "U16", 2 },
	[SAFETENSORS_I16] = { "I16", 2 },         [SAFETENSORS_F16] = { "F16", 2 },
	[SAFETENSORS_BF16] = { "BF16", 2 },       [SAFETENSORS_U32] = { "U32", 4 },
	[SAFETENSORS_I32] = { "I32", 4 },         [SAFETENSORS_F32] = { "F32", 4 },
	[SAFETENSORS_U64] = { "U64", 8 },         [SAFETENSORS_I64] = { "I64", 8 },
	[SAFETENSORS_F64] = { "F64", 8 },
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
	return dtypes[dtype].name;
}

static bool parse_dtype(const char *name, enum safetensors_dtype *dtype)
{
	for (size_t i = 0; name && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (strcmp(dtypes[i].name, name) == 0) {
			*dtype = (enum safetensors_dtype)i;
			return true;
		}
	}
	return false;
}

/* Reads a JSON integer that is not negative. */
static bool parse_count(const json_t *value, uint64_t *out)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*out = (uint64_t)json_integer_value(value);
	return true;
}

static bool parse_shape(const json_t *shape, struct safetensors_tensor *t, uint64_t *bytes, struct fault *fault)
{
	uint64_t product = dtypes[t->dtype].bytes;

	if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_DIMS_MAX)
		return fault_set(fault, "tensor \"%s\": shape is not a list of at most %d numbers", t->name,
				 SAFETENSORS_DIMS_MAX);
	t->dims = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < t->dims; i++) {
		if (!parse_count(json_array_get(shape, i), &t->shape[i]))
			return fault_set(fault, "tensor \"%s\": shape[%u] is not a count", t->name, i);
		if (__builtin_mul_overflow(product, t->shape[i], &product))
			return fault_set(fault, "tensor \"%s\": the shape's size overflows", t->name);
	}
	*bytes = product;
	return true;
}

/* Checks that an entry has the three fields of the format only, so that a misspelt one is not taken for an absent
 * one. */
static bool check_fields(const json_t *object, const char *name, struct fault *fault)
{
	const char *field;
	json_t *value;

	if (!json_is_object(object))
		return fault_set(fault, "tensor \"%s\": not an object", name);
	json_object_foreach((json_t *)object, field, value) {
		if (strcmp(field, "dtype") != 0 && strcmp(field, "shape") != 0 && strcmp(field, "data_offsets") != 0)
			return fault_set(fault, "tensor \"%s\": unknown field \"%.40s\"", name, field);
	}
	return true;
}

static bool parse_tensor(const json_t *object, struct safetensors_tensor *t, const uint8_t *data, uint64_t data_bytes,
			 struct fault *fault)
{
	const json_t *offsets;
	uint64_t end, bytes;

	if (!check_fields(object, t->name, fault))
		return false;
	if (!parse_dtype(json_string_value(json_object_get(object, "dtype")), &t->dtype))
		return fault_set(fault, "tensor \"%s\": unknown or missing dtype", t->name);
	if (!parse_shape(json_object_get(object, "shape"), t, &bytes, fault))
		return false;
	offsets = json_object_get(object, "data_offsets");
	if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
	    !parse_count(json_array_get(offsets, 0), &t->begin) || !parse_count(json_array_get(offsets, 1), &end))
		return fault_set(fault, "tensor \"%s\": data_offsets is not [begin, end]", t->name);
	if (t->begin > end || end > data_bytes)
		return fault_set(fault, "tensor \"%s\": data_offsets [%llu, %llu] do not lie in the file's %llu data bytes",
				 t->name, (unsigned long long)t->begin, (unsigned long long)end,
				 (unsigned long long)data_bytes);
	if (end - t->begin != bytes)
		return fault_set(fault, "tensor \"%s\": shape and dtype need %llu bytes, data_offsets give %llu", t->name,
				 (unsigned long long)bytes, (unsigned long long)(end - t->begin));
	t->bytes = bytes;
	t->data = data + t->begin;
	return true;
}

static int compare_begin(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty tensors before the one that begins there */
}

/* Checks that every data byte belongs to exactly one tensor, as the format wants. */
static bool check_cover(const struct safetensors *st, uint64_t data_bytes, struct fault *fault)
{
	uint64_t at = 0;

	for (size_t i = 0; i < st->count; i++) {
		const struct safetensors_tensor *t = &st->tensors[i];

		if (t->begin < at)
			return fault_set(fault, "tensors \"%s\" and \"%s\" overlap", st->tensors[i - 1].name, t->name);
		if (t->begin > at)
			return fault_set(fault, "%llu bytes before tensor \"%s\" belong to no tensor",
					 (unsigned long long)(t->begin - at), t->name);
		at = t->begin + t->bytes;
	}
	if (at != data_bytes)
		return fault_set(fault, "%llu bytes at the end belong to no tensor", (unsigned long long)(data_bytes - at));
	return true;
}

static bool check_metadata(const json_t *metadata, struct fault *fault)
{
	const char *key;
	json_t *value;

	if (!json_is_object(metadata))
		return fault_set(fault, "__metadata__ is not an object");
	json_object_foreach((json_t *)metadata, key, value) {
		if (!json_is_string(value))
			return fault_set(fault, "__metadata__: \"%.40s\" is not a string", key);
	}
	return true;
}

static bool parse_header(const json_t *root, const uint8_t *data, uint64_t data_bytes, struct safetensors *out,
			 struct fault *fault)
{
	const char *name;
	json_t *value;

	if (!json_is_object(root))
		return fault_set(fault, "the header is not a JSON object");
	if (json_object_size(root) > TENSORS_MAX)
		return fault_set(fault, "more than %d tensors", TENSORS_MAX);
	out->tensors = calloc(json_object_size(root) + 1, sizeof(*out->tensors));
	if (!out->tensors)
		return fault_set(fault, "out of memory");
	json_object_foreach((json_t *)root, name, value) {
		struct safetensors_tensor *t = &out->tensors[out->count];

		if (strcmp(name, "__metadata__") == 0) {
			if (!check_metadata(value, fault))
				return false;
			continue;
		}
		if (strlen(name) > NAME_MAX_BYTES)
			return fault_set(fault, "a tensor's name has more than %d bytes", NAME_MAX_BYTES);
		t->name = strdup(name);
		if (!t->name)
			return fault_set(fault, "out of memory");
		out->count++;
		if (!parse_tensor(value, t, data, data_bytes, fault))
			return false;
	}
	qsort(out->tensors, out->count, sizeof(*out->tensors), compare_begin);
	return check_cover(out, data_bytes, fault);
}

bool safetensors_parse(const void *data, size_t size, struct safetensors *out, struct fault *fault)
{
	const uint8_t *bytes = data;
	uint64_t header = 0;
	json_error_t error;
	json_t *root;
	bool ok;

	memset(out, 0, sizeof(*out));
	if (size < 8)
		return fault_set(fault, "%zu bytes are too few for a safetensors file", size);
	for (int i = 7; i >= 0; i--)
		header = header << 8 | bytes[i];
	if (header > size - 8)
		return fault_set(fault, "a header of %llu bytes does not fit in a file of %zu", (unsigned long long)header,
				 size);
	if (header > header_max)
		return fault_set(fault, "a header of %llu bytes is over the format's limit", (unsigned long long)header);
	if (header == 0 || bytes[8] != '{')
		return fault_set(fault, "the header does not begin with '{'");
	root = json_loadb((const char *)bytes + 8, (size_t)header, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		return fault_set(fault, "the header is not valid JSON: %s", error.text);
	ok = parse_header(root, bytes + 8 + header, size - 8 - header, out, fault);
	json_decref(root);
	if (!ok)
		safetensors_free(out);
	return ok;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
	for (size_t i = 0; i < st->count; i++) {
		if (strcmp(st->tensors[i].name, name) == 0)
			return &st->tensors[i];
	}
	return NULL;
}

void safetensors_free(struct safetensors *st)
{
	for (size_t i = 0; i < st->count; i++)
		free(st->tensors[i].name);
	free(st->tensors);
	memset(st, 0, sizeof(*st));
}
