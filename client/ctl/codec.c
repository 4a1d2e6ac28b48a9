/* terracectl codec: passes vectors through the CPU codec, a batch at a time, so that a stream of any length needs the
 * same memory.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/values.h"
#include "kernels/codec.h"

#include <errno.h>
#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


enum { OPTION_FORMAT, OPTION_DIM, OPTION_ROTATED, OPTION_DTYPE, OPTION_ROPE };
enum { BATCH_VECTORS = 256 };

struct codec {
	enum kv_format format, rope; /* rope: KV_NONE without a rope part, which follows on both sides */
	uint32_t dim;
	bool rotated, decode, bf16; /* bf16: numbers of the unpacked side are, and not fp16 */
	size_t in_bytes, out_bytes; /* of one vector */
};

static void encode_part(const struct codec *c, enum kv_format format, uint32_t dim, const uint8_t *in, uint8_t *out)
{
	float x[KV_HEAD_DIM_MAX];

	for (uint32_t i = 0; i < dim; i++)
		x[i] = (c->bf16 ? kv_bf16_to : kv_half_to)((uint16_t)(in[2 * i] | in[2 * i + 1] << 8));
	kv_linear_encode(format, c->bf16 ? KV_ROUND_BF16 : KV_ROUND_F16, dim, c->rotated, x, out);
}

static void encode_vector(const struct codec *c, const uint8_t *in, uint8_t *out)
{
	encode_part(c, c->format, c->dim, in, out);
	if (c->rope != KV_NONE)
		encode_part(c, c->rope, KV_ROPE_DIM, in + 2 * (size_t)c->dim, out + kv_linear_bytes(c->format, c->dim));
}

/* Rounds to the dtype. A number beyond its largest, as after a scale that was rounded up, becomes the largest. */
static uint16_t number_of(const struct codec *c, float x)
{
	float limit = c->bf16 ? KV_BF16_MAX : KV_FINITE_MAX;

	x = fminf(fmaxf(x, -limit), limit);
	return c->bf16 ? kv_bf16_from(x) : kv_half_from(x);
}

static void decode_part(const struct codec *c, enum kv_format format, uint32_t dim, const uint8_t *in, uint8_t *out)
{
	float x[KV_HEAD_DIM_MAX];

	kv_linear_decode(format, dim, c->rotated, in, x);
	for (uint32_t i = 0; i < dim; i++) {
		uint16_t h = number_of(c, x[i]);

		out[2 * i] = (uint8_t)h;
		out[2 * i + 1] = (uint8_t)(h >> 8);
	}
}

static void decode_vector(const struct codec *c, const uint8_t *in, uint8_t *out)
{
	decode_part(c, c->format, c->dim, in, out);
	if (c->rope != KV_NONE)
		decode_part(c, c->rope, KV_ROPE_DIM, in + kv_linear_bytes(c->format, c->dim), out + 2 * (size_t)c->dim);
}

/* Reads until `bytes` or the end; false on an error. */
static bool read_full(int fd, uint8_t *to, size_t bytes, size_t *got)
{
	*got = 0;
	while (*got < bytes) {
		ssize_t n = read(fd, to + *got, bytes - *got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		if (n == 0)
			break;
		*got += (size_t)n;
	}
	return true;
}

static bool write_full(int fd, const uint8_t *from, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, from, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		from += n;
		bytes -= (size_t)n;
	}
	return true;
}

static int convert(const struct codec *c, uint8_t *in, uint8_t *out)
{
	uint64_t vectors = 0;
	size_t got, n;

	do {
		if (!read_full(STDIN_FILENO, in, BATCH_VECTORS * c->in_bytes, &got))
			return ctl_failed("codec: standard input: %s", strerror(errno));
		n = got / c->in_bytes;
		for (size_t i = 0; i < n; i++)
			(c->decode ? decode_vector : encode_vector)(c, in + i * c->in_bytes,
								    out + i * c->out_bytes);
		if (!write_full(STDOUT_FILENO, out, n * c->out_bytes))
			return ctl_failed("codec: standard output: %s", strerror(errno));
		vectors += n;
	} while (n == BATCH_VECTORS);
	if (got % c->in_bytes)
		return ctl_failed("codec: the input ends inside a vector: %zu of %zu bytes after %" PRIu64
				  " whole ones: is --dim that of the input?",
				  got % c->in_bytes, c->in_bytes, vectors);
	if (close(STDOUT_FILENO))
		return ctl_failed("codec: standard output: %s", strerror(errno));
	return CTL_OK;
}

/* Reads the format of a rope part, if one is asked for. CTL_OK or CTL_USAGE. */
static int parse_rope(const struct ctl_args *args, struct codec *c)
{
	const char *rope = args->value[OPTION_ROPE];

	if (!rope)
		return CTL_OK;
	if (!kv_format_parse(rope, &c->rope) || (c->rope != KV_F16 && c->rope != KV_BF16 && c->rope != KV_FP8))
		return ctl_usage(args->command, "codec: --rope %s: not a format of a rope part: fp16, bf16 or fp8",
				 rope);
	if (c->dim != KV_LATENT_DIM)
		return ctl_usage(args->command, "codec: --rope goes with a latent, of --dim %d: not %u", KV_LATENT_DIM,
				 c->dim);
	return CTL_OK;
}

/* Reads the options. CTL_OK or CTL_USAGE. */
static int parse(const struct ctl_args *args, struct codec *c)
{
	const char *format = args->value[OPTION_FORMAT], *dim = args->value[OPTION_DIM],
		*dtype = args->value[OPTION_DTYPE],
		   *verb = args->words[0];
	uint64_t d = 0;

	if (strcmp(verb, "encode") && strcmp(verb, "decode"))
		return ctl_usage(args->command, "codec: encode or decode, not '%s'", verb);
	if (!format)
		return ctl_usage(args->command, "codec: --format is missing: one of %s", KV_FORMAT_NAMES);
	if (strcmp(format, kv_format_info(KV_OPAQUE)->name) == 0)
		return ctl_usage(args->command,
				 "codec: --format opaque: the bytes of opaque layouts have no codec here: convert them "
				 "with the engine's own code, or give one of %s", KV_FORMAT_NAMES);
	if (!kv_format_parse(format, &c->format) || c->format == KV_NONE)
		return ctl_usage(args->command, "codec: no format '%s': one of %s", format, KV_FORMAT_NAMES);
	if (!dim)
		return ctl_usage(args->command, "codec: --dim is missing: " KV_HEAD_DIM_NAMES);
	if (!ctl_parse_uint(dim, KV_HEAD_DIM_MAX, &d) || !kv_head_dim_ok((uint32_t)d))
		return ctl_usage(args->command, "codec: --dim %s: not a head dim: " KV_HEAD_DIM_NAMES, dim);
	if (dtype && strcmp(dtype, "fp16") && strcmp(dtype, "bf16"))
		return ctl_usage(args->command, "codec: --dtype %s: not a dtype of unpacked numbers: fp16 or bf16",
			dtype);
	c->dim = (uint32_t)d;
	c->bf16 = dtype && strcmp(dtype, "bf16") == 0;
	c->rotated = args->value[OPTION_ROTATED] != NULL;
	c->decode = verb[0] == 'd';
	return parse_rope(args, c);
}

/* Computes the bytes of one vector, packed and not. */
static void measure(struct codec *c)
{
	const bool rope = c->rope != KV_NONE;
	const size_t unpacked = 2 * ((size_t)c->dim + (rope ? KV_ROPE_DIM : 0)),
		     packed = kv_linear_bytes(c->format, c->dim) + (rope ? kv_linear_bytes(c->rope, KV_ROPE_DIM) : 0);

	c->in_bytes = c->decode ? packed : unpacked;
	c->out_bytes = c->decode ? unpacked : packed;
}

int ctl_run_codec(const struct ctl_args *args)
{
	struct codec c = {0};
	uint8_t *in, *out;
	int code = parse(args, &c);

	if (code)
		return code;
	if (isatty(STDOUT_FILENO))
		return ctl_usage(args->command, "codec: standard output is a terminal, and the result is binary: send it to a file or a pipe");
	measure(&c);
	in = malloc(BATCH_VECTORS * c.in_bytes);
	out = malloc(BATCH_VECTORS * c.out_bytes);
	code = in && out ? convert(&c, in, out) : ctl_failed("codec: no memory for a batch");
	free(in);
	free(out);
	return code;
}
