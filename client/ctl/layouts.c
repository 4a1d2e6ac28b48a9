/* terracectl layouts; and conversion of layouts to and from JSON, field by field from one table: so what `layouts` and
 * `inspect` print can be read back.
 */
#include "client/ctl/layouts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon.h"
#include "client/ctl/errors.h"
#include "client/ctl/output.h"
#include "client/ctl/values.h"
#include "client/value/layout.h"
#include "kernels/format.h"

/* The number fields. at: in struct terrace_layout; NO_PLACE: a version, which the library has but does not
 * choose. */
#define NO_PLACE SIZE_MAX
static const struct {
	const char *name;
	size_t at;
	uint32_t version;
} fields[] = {
	{"first_layer", offsetof(struct terrace_layout, first_layer), 0},
	{"layers", offsetof(struct terrace_layout, layers), 0},
	{"first_head", offsetof(struct terrace_layout, first_head), 0},
	{"heads", offsetof(struct terrace_layout, heads), 0},
	{"total_heads", offsetof(struct terrace_layout, total_heads), 0},
	{"head_dim_k", offsetof(struct terrace_layout, head_dim_k), 0},
	{"head_dim_v", offsetof(struct terrace_layout, head_dim_v), 0},
	{"block_tokens", offsetof(struct terrace_layout, block_tokens), 0},
	{"window", offsetof(struct terrace_layout, window), 0},
	{"int4_rounding", offsetof(struct terrace_layout, int4_rounding), 0},
	{"rope_dim", offsetof(struct terrace_layout, rope_dim), 0},
	{"codebook_version", NO_PLACE, KV_CODEBOOK_VERSION},
	{"layout_version", NO_PLACE, KV_LAYOUT_VERSION},
};
enum { FIELD_COUNT = sizeof(fields) / sizeof(fields[0]) };

static void put_format(struct json_t *object, const char *name, Terrace__V1__Format format)
{
	const char *text = terrace_format_name((enum terrace_format)format);

	out_put_text(object, name,
		     text					  ? text
		     : format == TERRACE__V1__FORMAT__FORMAT_NONE ? "none"
								  : "unknown");
}

/* Shows an opaque layout: the fields that it has beside packed ones, without the fields of codecs. */
static struct json_t *opaque_to_json(const Terrace__V1__Layout *l)
{
	struct json_t *o = out_object();

	out_put_hex(o, "fingerprint", l->fingerprint.data, l->fingerprint.len);
	out_put_uint(o, "first_layer", l->first_layer);
	out_put_uint(o, "layers", l->layers);
	out_put_uint(o, "first_head", l->first_head);
	out_put_uint(o, "heads", l->heads);
	out_put_uint(o, "total_heads", l->total_heads);
	out_put_uint(o, "block_tokens", l->block_tokens);
	put_format(o, "k_format", l->k_format);
	out_put_text(o, "opaque_name", l->opaque_name);
	out_put_uint(o, "opaque_bytes", l->opaque_bytes);
	out_put_uint(o, "window", l->window);
	out_put_uint(o, "layout_version", l->layout_version);
	return o;
}

static struct json_t *packed_to_json(const Terrace__V1__Layout *l)
{
	struct json_t *o = out_object();

	out_put_hex(o, "fingerprint", l->fingerprint.data, l->fingerprint.len);
	out_put_uint(o, "first_layer", l->first_layer);
	out_put_uint(o, "layers", l->layers);
	out_put_uint(o, "first_head", l->first_head);
	out_put_uint(o, "heads", l->heads);
	out_put_uint(o, "total_heads", l->total_heads);
	out_put_uint(o, "head_dim_k", l->head_dim_k);
	out_put_uint(o, "head_dim_v", l->head_dim_v);
	out_put_uint(o, "block_tokens", l->block_tokens);
	put_format(o, "k_format", l->k_format);
	put_format(o, "v_format", l->v_format);
	out_put_uint(o, "window", l->window);
	out_put_uint(o, "rotation_version", l->rotation_version);
	out_put_uint(o, "codebook_version", l->codebook_version);
	out_put_uint(o, "layout_version", l->layout_version);
	out_put_uint(o, "int4_rounding", l->int4_rounding);
	out_put_uint(o, "rope_dim", l->rope_dim);
	put_format(o, "rope_format", l->rope_format);
	return o;
}

struct json_t *layout_to_json(const Terrace__V1__Layout *l)
{
	return l->k_format == TERRACE__V1__FORMAT__FORMAT_OPAQUE ? opaque_to_json(l) : packed_to_json(l);
}

static bool read_format(const json_t *value, enum terrace_format *out)
{
	enum kv_format f;

	if (!json_is_string(value) || !kv_format_parse(json_string_value(value), &f))
		return false;
	*out = (enum terrace_format)f;
	return true;
}

static bool read_number(const char *name, const json_t *value, struct terrace_layout *l)
{
	for (int i = 0; i < FIELD_COUNT; i++) {
		json_int_t n = json_integer_value(value);
		uint32_t v;

		if (strcmp(fields[i].name, name))
			continue;
		if (!json_is_integer(value) || n < 0 || n > UINT32_MAX)
			return false;
		v = (uint32_t)n;
		if (fields[i].at == NO_PLACE)
			return v == fields[i].version;
		memcpy((char *)l + fields[i].at, &v, sizeof(v));
		return true;
	}
	return false;
}

/* Whether the object's rotation version, if it has one, is the one that follows from the head dims. */
static bool has_rotation_version(const json_t *object, const struct terrace_layout *l)
{
	const json_t *version = json_object_get(object, "rotation_version");

	return !version || (json_is_integer(version) &&
			    json_integer_value(version) == kv_rotation_version(l->head_dim_k, l->head_dim_v));
}

static bool read_bytes(const json_t *value, struct terrace_layout *l)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	l->opaque_bytes = (uint64_t)json_integer_value(value);
	return true;
}

/* Reads the name of an opaque layout. A name that is too long gets no end, of which terrace_layout_problem
 * complains. */
static bool read_name(const json_t *value, struct terrace_layout *l)
{
	if (!json_is_string(value))
		return false;
	memcpy(l->opaque_name, json_string_value(value), strnlen(json_string_value(value), sizeof(l->opaque_name)));
	return true;
}

static bool read_fingerprint(const json_t *value, struct terrace_layout *l)
{
	uint8_t bytes[TERRACE_KEY_BYTES_MAX];
	uint32_t n;

	if (!json_is_string(value) || !ctl_parse_key(json_string_value(value), bytes, &n) ||
	    n != sizeof(l->fingerprint))
		return false;
	memcpy(l->fingerprint, bytes, sizeof(l->fingerprint));
	return true;
}

/* "4 of F", for a message. */
struct place {
	const char *path;
	size_t index;
};

static int wrong(const struct place *at, const char *name, const char *why)
{
	return ctl_failed("%s: layout %zu%s%s%s: %s: give what 'terracectl layouts --json' prints, or layouts of that form", at->path, at->index,
			  name ? ": '" : "", name ? name : "", name ? "'" : "", why);
}

static bool read_flag(const json_t *value, bool *out)
{
	*out = json_is_true(value);
	return json_is_boolean(value);
}

/* Reads a field of the layout's rule. 1: it was read; 0: it cannot have this value; -1: it is no field of a rule. */
static int read_rule(const char *name, const json_t *value, struct terrace_layout_rule *rule)
{
	const json_int_t n = json_integer_value(value);

	if (!strcmp(name, "partial"))
		return read_flag(value, &rule->partial);
	if (!strcmp(name, "sparse"))
		return read_flag(value, &rule->sparse);
	if (strcmp(name, "keep_last"))
		return -1;
	rule->keep_last = (uint32_t)n;
	return json_is_integer(value) && n >= 0 && n <= UINT32_MAX;
}

static bool is_opaque_version(const json_t *object, const char *name)
{
	const char *format = json_string_value(json_object_get(object, "k_format"));

	return !strcmp(name, "codebook_version") && format && !strcmp(format, "opaque");
}

static int read_fields(const struct place *at, json_t *object, struct terrace_layout *l,
		       struct terrace_layout_rule *rule)
{
	const char *name, *problem;
	json_t *value;
	bool good;
	int ruled;

	*l = (struct terrace_layout)TERRACE_LAYOUT_INIT;
	*rule = (struct terrace_layout_rule)TERRACE_LAYOUT_RULE_INIT;
	json_object_foreach(object, name, value)
	{
		if (!strcmp(name, "fingerprint"))
			good = read_fingerprint(value, l);
		else if (!strcmp(name, "k_format"))
			good = read_format(value, &l->k_format);
		else if (!strcmp(name, "v_format"))
			good = read_format(value, &l->v_format);
		else if (!strcmp(name, "opaque_bytes"))
			good = read_bytes(value, l);
		else if (!strcmp(name, "opaque_name"))
			good = read_name(value, l);
		else if (!strcmp(name, "rope_format"))
			good = read_format(value, &l->rope_format);
		else if (!strcmp(name, "rotation_version"))
			continue; /* below */
		else if ((ruled = read_rule(name, value, rule)) >= 0)
			good = ruled;
		else
			good = !is_opaque_version(object, name) && read_number(name, value, l);
		if (!good)
			return wrong(at, name, "no field of a layout, or not a value that it can have in this version");
	}
	if (!json_object_get(object, "total_heads"))
		l->total_heads = l->heads;
	if (!json_object_get(object, "head_dim_v"))
		l->head_dim_v = l->head_dim_k;
	if (!has_rotation_version(object, l))
		return wrong(at, "rotation_version", "not the one of these head dims in this version");
	problem = terrace_layout_problem(l);
	return problem ? wrong(at, NULL, problem) : CTL_OK;
}

/* A row of 'layouts' or 'inspect' says which id the layout has: a layout that this library reads differently is not the
 * daemon's. */
static bool has_id(const json_t *row, const struct terrace_layout *l)
{
	const json_t *id = json_object_get(row, "layout_id");
	struct kv_layout kv;
	uint64_t wanted;

	if (!id)
		return true;
	return json_is_string(id) && ctl_parse_id(json_string_value(id), &wanted) && !client_layout_read(l, &kv) && kv_layout_id(&kv) == wanted;
}

/* A layout, or a row that has one in its field "layout". */
static int read_layout(const struct place *at, json_t *object, struct terrace_layout *l,
		       struct terrace_layout_rule *rule)
{
	json_t *inner = json_object_get(object, "layout");
	int code;

	if (!json_is_object(object) || (inner && !json_is_object(inner)))
		return wrong(at, inner ? "layout" : NULL, "not an object");
	code = read_fields(at, inner ? inner : object, l, rule);
	if (!code && inner && !has_id(object, l))
		return wrong(at, "layout_id", "not the id of the layout beside it");
	return code;
}

/* The layouts of a document: it is one, or an array of them, or an object with such an array, as 'layouts' and
 * 'inspect' print it. */
static json_t *rows_of(json_t *root)
{
	json_t *rows = json_object_get(root, "layouts");

	if (!rows)
		rows = json_object_get(root, "blocks");
	return json_is_array(rows) ? rows : root;
}

static int read_rows(const char *path, json_t *rows, struct ctl_layouts *out)
{
	const size_t n = json_is_array(rows) ? json_array_size(rows) : 1;
	int code = CTL_OK;

	if (n == 0)
		return ctl_failed("%s: it has no layouts: the daemon knew none when it was written, or the file is another one", path);
	if (n > CTL_LAYOUTS_MAX)
		return ctl_failed("%s: %zu layouts are too many for one session, which has %d at most: leave in the file those of one model", path, n,
				  CTL_LAYOUTS_MAX);
	for (size_t i = 0; i < n && !code; i++) {
		json_t *row = json_is_array(rows) ? json_array_get(rows, i) : rows;
		struct terrace_layout_rule *rule = &out->rule[i];

		code = read_layout(&(struct place){path, i}, row, &out->layout[i], rule);
		out->ruled = out->ruled || rule->keep_last || rule->partial || rule->sparse;
	}
	if (!code)
		out->count = (uint32_t)n;
	return code;
}

/* Reads unit_tokens, which stands beside the array of layouts. */
static int read_unit(const char *path, const json_t *root, struct ctl_layouts *out)
{
	const json_t *unit = json_object_get(root, "unit_tokens");

	if (!unit)
		return CTL_OK;
	if (!json_is_integer(unit) || json_integer_value(unit) < 1 || json_integer_value(unit) > UINT16_MAX)
		return ctl_failed("%s: unit_tokens: it is a number of 1 to 65535: the tokens of one key", path);
	out->unit_tokens = (uint32_t)json_integer_value(unit);
	return CTL_OK;
}

enum terrace_status layouts_session(struct terrace_client *client, const struct ctl_layouts *l,
				    struct terrace_session **session)
{
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;

	options.engine = "terracectl";
	options.unit_tokens = l->unit_tokens;
	options.rules = l->ruled ? l->rule : NULL;
	return terrace_session_open(client, l->layout, l->count, &options, session);
}

uint32_t layouts_unit(const struct ctl_layouts *l)
{
	return l->unit_tokens ? l->unit_tokens : l->layout[0].block_tokens;
}

bool layouts_have_cells(const struct ctl_layouts *l)
{
	return l->unit_tokens || l->ruled;
}

int layouts_load(const char *path, struct ctl_layouts *out)
{
	json_error_t error;
	FILE *file = fopen(path, "re");
	json_t *root = file ? json_loadf(file, JSON_REJECT_DUPLICATES, &error) : NULL;
	const int number = errno;
	int code = CTL_OK;

	*out = (struct ctl_layouts){.count = 0};
	if (!file || (!root && ferror(file)))
		code = ctl_failed("%s: %s: --layouts wants a JSON file, such as 'terracectl layouts --json' prints", path, strerror(number));
	else if (!root)
		code = ctl_failed("%s: line %d: %s: --layouts wants a JSON file, such as 'terracectl layouts --json' prints", path, error.line, error.text);
	else
		code = rows_of(root) == root ? CTL_OK : read_unit(path, root, out);
	if (!code)
		code = read_rows(path, rows_of(root), out);
	if (file)
		fclose(file);
	json_decref(root);
	return code;
}

static struct json_t *row_of(const Terrace__V1__LayoutRow *r)
{
	struct json_t *row = out_object();

	out_put_id(row, "layout_id", r->layout_id);
	out_put_uint(row, "block_bytes", r->block_bytes);
	out_put_uint(row, "host_blocks", r->host_blocks);
	out_put_uint(row, "disk_blocks", r->disk_blocks);
	out_put_uint(row, "dirty_blocks", r->dirty_blocks);
	if (r->layout)
		out_put(row, "layout", layout_to_json(r->layout));
	return row;
}

int ctl_run_layouts(const struct ctl_args *args)
{
	Terrace__V1__LayoutsRequest request = TERRACE__V1__LAYOUTS_REQUEST__INIT;
	Terrace__V1__LayoutsReply *reply;
	struct json_t *rows, *tree;
	struct ctl_daemon d;
	int code = ctl_daemon_open(args, &d);

	if (!code)
		code = ctl_daemon_call(&d, CLIENT_ADMIN_LAYOUTS, &request.base, &terrace__v1__layouts_reply__descriptor,
				       args->timeout_us, &reply);
	if (!code) {
		tree = out_object();
		rows = out_array();
		for (size_t i = 0; i < reply->n_rows; i++)
			out_append(rows, row_of(reply->rows[i]));
		out_put(tree, "layouts", rows);
		code = out_print(tree, args->json, false) ? CTL_OK : CTL_FAILED;
	}
	ctl_daemon_close(&d);
	return code;
}
