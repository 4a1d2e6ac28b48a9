/* tokenizer.json to struct tokenizer: every option of the file is either implemented or refused. */
#include "tokenizer.h"

#include "unicode.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

enum { VOCAB_MAX = 1 << 20, TOKEN_BYTES_MAX = 1024 };

/* The byte that a character of the byte-level alphabet stands for: printable Latin-1 stands for itself, the other 68
 * bytes for U+0100 onwards, in order. -1: not of the alphabet. */
static int alphabet_byte(uint32_t c)
{
	uint32_t next = 0x100;

	if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
		return (int)c;
	for (int b = 0; b < 256; b++) {
		if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae)
			continue;
		if (next++ == c)
			return b;
	}
	return -1;
}

/* Turns a vocabulary entry into its bytes. False if a character is not of the alphabet. */
static bool unescape(const char *entry, size_t length, uint8_t *out, uint32_t *bytes)
{
	*bytes = 0;
	for (size_t i = 0; i < length;) {
		uint32_t c;
		int byte;

		i += unicode_next((const uint8_t *)entry + i, length - i, &c);
		byte = alphabet_byte(c);
		if (byte < 0)
			return false;
		out[(*bytes)++] = (uint8_t)byte;
	}
	return true;
}

static bool absent(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	return !value || json_is_null(value) || json_is_false(value) ||
	       (json_is_string(value) && json_string_length(value) == 0);
}

static bool type_is(const json_t *object, const char *type)
{
	const char *is = json_string_value(json_object_get(object, "type"));

	return is && strcmp(is, type) == 0;
}

static bool check_options(const json_t *root, const json_t *model, struct fault *fault)
{
	static const char *const unsupported_root[] = { "truncation", "padding", "normalizer" };
	static const char *const unsupported_model[] = { "dropout",           "unk_token", "continuing_subword_prefix",
							 "end_of_word_suffix", "fuse_unk",  "byte_fallback",
							 "ignore_merges" };
	const json_t *pre = json_object_get(root, "pre_tokenizer");

	for (size_t i = 0; i < sizeof(unsupported_root) / sizeof(unsupported_root[0]); i++) {
		if (!absent(root, unsupported_root[i]))
			return fault_set(fault, "\"%s\" is set, which is not supported", unsupported_root[i]);
	}
	for (size_t i = 0; i < sizeof(unsupported_model) / sizeof(unsupported_model[0]); i++) {
		if (!absent(model, unsupported_model[i]))
			return fault_set(fault, "model: \"%s\" is set, which is not supported", unsupported_model[i]);
	}
	if (!type_is(model, "BPE"))
		return fault_set(fault, "model: the type is not \"BPE\"");
	if (!type_is(pre, "ByteLevel"))
		return fault_set(fault, "pre_tokenizer: the type is not \"ByteLevel\"");
	if (!absent(pre, "add_prefix_space") || (json_object_get(pre, "use_regex") && absent(pre, "use_regex")))
		return fault_set(fault, "pre_tokenizer: only add_prefix_space false and use_regex true are supported");
	if (!type_is(json_object_get(root, "decoder"), "ByteLevel"))
		return fault_set(fault, "decoder: the type is not \"ByteLevel\"");
	if (!absent(root, "post_processor") && !type_is(json_object_get(root, "post_processor"), "ByteLevel"))
		return fault_set(fault, "post_processor: the type is not \"ByteLevel\"");
	return true;
}

/* Notes the added tokens, whose text stands for them as it is. The vocabulary must have each of them under its id. */
static bool parse_added(const json_t *added, const json_t *vocab, struct tokenizer *t, struct fault *fault)
{
	if (!added || json_is_null(added))
		return true;
	if (!json_is_array(added) || json_array_size(added) > TOKENIZER_SPECIALS_MAX)
		return fault_set(fault, "added_tokens is not a list of at most %d", TOKENIZER_SPECIALS_MAX);
	for (size_t i = 0; i < json_array_size(added); i++) {
		const json_t *entry = json_array_get(added, i), *id = json_object_get(entry, "id");
		const char *content = json_string_value(json_object_get(entry, "content"));
		const json_t *known;

		if (!content || !content[0] || !json_is_integer(id))
			return fault_set(fault, "added_tokens[%zu] has no id or no content", i);
		if (!absent(entry, "single_word") || !absent(entry, "lstrip") || !absent(entry, "rstrip") ||
		    !absent(entry, "normalized"))
			return fault_set(fault, "added_tokens[%zu]: single_word, lstrip, rstrip and normalized are not supported",
					 i);
		known = json_object_get(vocab, content);
		if (!json_is_integer(known) || json_integer_value(known) != json_integer_value(id))
			return fault_set(fault, "added_tokens[%zu]: the vocabulary does not have it under its id", i);
		t->specials[t->special_count++] = (uint32_t)json_integer_value(id);
	}
	return true;
}

static bool is_special(const struct tokenizer *t, uint32_t id)
{
	for (uint32_t i = 0; i < t->special_count; i++) {
		if (t->specials[i] == id)
			return true;
	}
	return false;
}

/* Reads the vocabulary. Its ids must be 0 .. count - 1, each once, so that every id below count names a token. */
static bool parse_vocab(json_t *vocab, struct tokenizer *t, struct fault *fault)
{
	size_t at = 0, total = 0;
	const char *entry;
	json_t *value;

	json_object_foreach(vocab, entry, value)
		total += strlen(entry);
	t->tokens = calloc(t->count, sizeof(*t->tokens));
	t->text = malloc(total + 1);
	if (!t->tokens || !t->text)
		return fault_set(fault, "out of memory");
	json_object_foreach(vocab, entry, value) {
		size_t length = strlen(entry);
		struct tokenizer_token *token;
		uint32_t id;

		if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= t->count)
			return fault_set(fault, "vocab: \"%.40s\" has no id from 0 to %u", entry, t->count - 1);
		id = (uint32_t)json_integer_value(value);
		token = &t->tokens[id];
		if (token->bytes > 0)
			return fault_set(fault, "vocab: id %u is given twice", id);
		if (length == 0 || length > TOKEN_BYTES_MAX)
			return fault_set(fault, "vocab: id %u has %zu bytes, 1 to %d are taken", id, length, TOKEN_BYTES_MAX);
		token->at = (uint32_t)at;
		token->bytes = (uint32_t)length;
		if (is_special(t, id))
			memcpy(t->text + at, entry, length);
		else if (!unescape(entry, length, t->text + at, &token->bytes))
			return fault_set(fault, "vocab: id %u is not written in the byte-level alphabet", id);
		at += token->bytes;
	}
	return true;
}

static bool find_byte_tokens(struct tokenizer *t, struct fault *fault)
{
	memset(t->byte_token, 0xff, sizeof(t->byte_token));
	for (uint32_t id = 0; id < t->count; id++) {
		if (t->tokens[id].bytes == 1 && !is_special(t, id))
			t->byte_token[t->text[t->tokens[id].at]] = id;
	}
	for (int b = 0; b < 256; b++) {
		if (t->byte_token[b] == UINT32_MAX)
			return fault_set(fault, "vocab: no token for byte 0x%02x", b);
	}
	return true;
}

/* Splits a merge rule into its two tokens. It has the form ["a", "b"] or the older "a b". */
static bool split_rule(const json_t *rule, char left[], char right[], struct fault *fault, size_t index)
{
	const char *a, *b;
	size_t length;

	if (json_is_string(rule)) {
		a = json_string_value(rule);
		b = strchr(a, ' ');
		length = b ? (size_t)(b - a) : 0;
		b = b ? b + 1 : NULL;
	} else {
		a = json_array_size(rule) == 2 ? json_string_value(json_array_get(rule, 0)) : NULL;
		b = json_string_value(json_array_get(rule, 1));
		length = a ? strlen(a) : 0;
	}
	if (!a || !b || length == 0 || length > TOKEN_BYTES_MAX || strlen(b) == 0 || strlen(b) > TOKEN_BYTES_MAX)
		return fault_set(fault, "merges[%zu] is not a pair of tokens", index);
	memcpy(left, a, length);
	left[length] = 0;
	strcpy(right, b);
	return true;
}

static bool parse_rule(const json_t *rule, size_t index, const json_t *vocab, struct tokenizer *t, struct fault *fault)
{
	char left[2 * TOKEN_BYTES_MAX + 1], right[TOKEN_BYTES_MAX + 1];
	const json_t *a, *b, *both;
	struct tokenizer_merge merge;
	uint32_t slot;

	if (!split_rule(rule, left, right, fault, index))
		return false;
	a = json_object_get(vocab, left);
	b = json_object_get(vocab, right);
	strcat(left, right);
	both = json_object_get(vocab, left);
	if (!a || !b || !both)
		return fault_set(fault, "merges[%zu]: a part or the whole of it is not in the vocabulary", index);
	merge.left = (uint32_t)json_integer_value(a);
	merge.right = (uint32_t)json_integer_value(b);
	merge.result = (uint32_t)json_integer_value(both);
	merge.rank = (uint32_t)index;
	if (is_special(t, merge.left) || is_special(t, merge.right) || is_special(t, merge.result))
		return fault_set(fault, "merges[%zu] has to do with a special token", index);
	for (slot = tokenizer_merge_slot(merge.left, merge.right, t->merge_slots); t->merges[slot].rank != UINT32_MAX;
	     slot = (slot + 1) & (t->merge_slots - 1)) {
		if (t->merges[slot].left == merge.left && t->merges[slot].right == merge.right)
			return fault_set(fault, "merges[%zu] is there twice", index);
	}
	t->merges[slot] = merge;
	return true;
}

static bool parse_merges(const json_t *merges, const json_t *vocab, struct tokenizer *t, struct fault *fault)
{
	size_t rules = json_array_size(merges);

	if (!json_is_array(merges) || rules > VOCAB_MAX)
		return fault_set(fault, "merges is not a list of at most %d", VOCAB_MAX);
	for (t->merge_slots = 16; t->merge_slots < 2 * rules; t->merge_slots *= 2)
		;
	t->merges = malloc(t->merge_slots * sizeof(*t->merges));
	if (!t->merges)
		return fault_set(fault, "out of memory");
	memset(t->merges, 0xff, t->merge_slots * sizeof(*t->merges));
	for (size_t i = 0; i < rules; i++) {
		if (!parse_rule(json_array_get(merges, i), i, vocab, t, fault))
			return false;
	}
	return true;
}

static bool parse_root(const json_t *root, struct tokenizer *t, struct fault *fault)
{
	const json_t *model = json_object_get(root, "model");
	json_t *vocab = json_object_get(model, "vocab");

	if (!json_is_object(root) || !json_is_object(model))
		return fault_set(fault, "no model in it");
	if (!check_options(root, model, fault))
		return false;
	if (!json_is_object(vocab) || json_object_size(vocab) == 0 || json_object_size(vocab) > VOCAB_MAX)
		return fault_set(fault, "model: vocab is not an object of 1 to %d tokens", VOCAB_MAX);
	t->count = (uint32_t)json_object_size(vocab);
	return parse_added(json_object_get(root, "added_tokens"), vocab, t, fault) && parse_vocab(vocab, t, fault) &&
	       find_byte_tokens(t, fault) && parse_merges(json_object_get(model, "merges"), vocab, t, fault);
}

bool tokenizer_parse(const char *json, size_t size, struct tokenizer *out, struct fault *fault)
{
	json_error_t error;
	json_t *root;
	bool ok;

	memset(out, 0, sizeof(*out));
	root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		return fault_set(fault, "not valid JSON: line %d: %s", error.line, error.text);
	ok = parse_root(root, out, fault);
	json_decref(root);
	if (!ok)
		tokenizer_free(out);
	return ok;
}

void tokenizer_free(struct tokenizer *t)
{
	free(t->tokens);
	free(t->text);
	free(t->merges);
	memset(t, 0, sizeof(*t));
}
