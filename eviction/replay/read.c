/* A trace file into memory, unpacked on the way if it begins like xz. */
#include "eviction/replay/read.h"

#include <errno.h>
#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX ((size_t)4 << 30)
#define UNPACK_MEMORY_MAX ((uint64_t)256 << 20)

struct text {
	char *bytes;
	size_t used, max;
};

/* Room for some more bytes, and for the newline that a last line may lack. */
static enum status text_grow(struct text *t)
{
	size_t max = t->max ? 2 * t->max : (size_t)1 << 20;
	char *bytes;

	if (t->used + 1 < t->max)
		return STATUS_OK;
	bytes = max <= TEXT_BYTES_MAX ? realloc(t->bytes, max) : NULL;
	if (!bytes)
		return STATUS_EXHAUSTED;
	t->bytes = bytes;
	t->max = max;
	return STATUS_OK;
}

static enum status read_plain(FILE *f, struct text *t)
{
	size_t n;

	do {
		if (text_grow(t))
			return STATUS_EXHAUSTED;
		n = fread(t->bytes + t->used, 1, t->max - 1 - t->used, f);
		t->used += n;
	} while (n > 0);
	return ferror(f) ? STATUS_IO : STATUS_OK;
}

static enum status read_xz(FILE *f, struct text *t)
{
	lzma_stream xz = LZMA_STREAM_INIT;
	enum status s = STATUS_OK;
	lzma_ret code = lzma_stream_decoder(&xz, UNPACK_MEMORY_MAX, LZMA_CONCATENATED);
	uint8_t in[1 << 16];

	while (code == LZMA_OK && !s) {
		if (xz.avail_in == 0 && !feof(f)) {
			xz.next_in = in;
			xz.avail_in = fread(in, 1, sizeof(in), f);
			if (ferror(f))
				s = STATUS_IO;
		}
		if (!s)
			s = text_grow(t);
		if (s)
			break;
		xz.next_out = (uint8_t *)t->bytes + t->used;
		xz.avail_out = t->max - 1 - t->used;
		code = lzma_code(&xz, feof(f) ? LZMA_FINISH : LZMA_RUN);
		t->used = t->max - 1 - xz.avail_out;
	}
	lzma_end(&xz);
	if (!s && code != LZMA_STREAM_END)
		s = code == LZMA_MEM_ERROR || code == LZMA_MEMLIMIT_ERROR ? STATUS_EXHAUSTED : STATUS_CORRUPT;
	return s;
}

static enum status read_any(FILE *f, struct text *t)
{
	static const char magic[6] = { '\xfd', '7', 'z', 'X', 'Z', '\0' };
	char head[sizeof(magic)];
	bool packed = fread(head, 1, sizeof(head), f) == sizeof(head) && memcmp(head, magic, sizeof(magic)) == 0;

	if (fseek(f, 0, SEEK_SET))
		return STATUS_IO;
	return packed ? read_xz(f, t) : read_plain(f, t);
}

enum status trace_read(const char *path, struct trace *out, char *why, size_t why_bytes)
{
	FILE *f = fopen(path, "rb");
	struct text t = { 0 };
	enum status s;

	if (!f) {
		snprintf(why, why_bytes, "%s", strerror(errno));
		return STATUS_IO;
	}
	s = read_any(f, &t);
	fclose(f);
	if (s) {
		snprintf(why, why_bytes, "%s", s == STATUS_CORRUPT ? "broken xz" :
						s == STATUS_IO ? "cannot be read" : "too large");
	} else {
		if (t.used && t.bytes[t.used - 1] != '\n')
			t.bytes[t.used++] = '\n';
		s = trace_parse(t.bytes, t.used, out, why, why_bytes);
	}
	free(t.bytes);
	return s;
}
