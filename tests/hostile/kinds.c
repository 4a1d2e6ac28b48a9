/* See kinds.h. */
#include "tests/hostile/kinds.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_SHOWN = 10, LINE = 512 };

static const char *const shape_names[SHAPES] = {
	[SHAPE_VALID] = "valid",           [SHAPE_BOUNDARY] = "boundary",   [SHAPE_WRONG_TYPE] = "wrong_type",
	[SHAPE_UNKNOWN] = "unknown_field", [SHAPE_OVERSIZED] = "oversized", [SHAPE_TRUNCATED] = "truncated",
	[SHAPE_GARBAGE] = "garbage",       [SHAPE_EMPTY] = "empty",         [SHAPE_WRONG] = "wrong_handle",
	[SHAPE_FOREIGN] = "foreign_handle", [SHAPE_ORDER] = "wrong_order",  [SHAPE_MANY] = "many",
	[SHAPE_HALF_OPEN] = "half_open",   [SHAPE_CANCELLED] = "cancelled", [SHAPE_DESCRIPTORS] = "descriptors",
};

const char *shape_name(enum shape s)
{
	return s < SHAPES ? shape_names[s] : "earlier";
}

uint64_t rng_next(struct rng *r) /* splitmix64 */
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
	return (uint32_t)(rng_next(r) % n);
}

bool rng_one_in(struct rng *r, uint32_t n)
{
	return rng_below(r, n) == 0;
}

/* ---- rows ---- */

static struct kind *kind_add(struct kinds *k, const char *name)
{
	struct kind *kind = &k->list[k->count];

	if (k->count == KINDS_MAX || strlen(name) >= KIND_NAME) {
		fprintf(stderr, "no room for kind %s\n", name);
		exit(1);
	}
	*kind = (struct kind){ .shapes = SHAPE_BIT(SHAPES) - 1 };
	strcpy(kind->name, name);
	k->count++;
	return kind;
}

static bool has_field_of(const ProtobufCMessageDescriptor *d, unsigned depth, bool (*is)(const ProtobufCFieldDescriptor *f))
{
	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &d->fields[i];

		if (is(f) || (f->type == PROTOBUF_C_TYPE_MESSAGE && depth && has_field_of(f->descriptor, depth - 1, is)))
			return true;
	}
	return false;
}

static bool is_handle(const ProtobufCFieldDescriptor *f)
{
	static const char *const names[] = { "session", "lease", "leases", "reservation", "reservations", "attachment", "token" };

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (!strcmp(f->name, names[i]) && f->type != PROTOBUF_C_TYPE_BOOL)
			return true;
	return false;
}

/* What a message without fields, or without handles, cannot be. */
static uint32_t shapes_of(const ProtobufCMessageDescriptor *in)
{
	uint32_t shapes = SHAPE_BIT(SHAPES) - 1;

	if (!in->n_fields)
		shapes &= ~(SHAPE_BIT(SHAPE_BOUNDARY) | SHAPE_BIT(SHAPE_WRONG_TYPE));
	if (!has_field_of(in, 4, is_handle))
		shapes &= ~(SHAPE_BIT(SHAPE_WRONG) | SHAPE_BIT(SHAPE_FOREIGN));
	return shapes;
}

void kinds_of_service(struct kinds *k, const ProtobufCServiceDescriptor *service)
{
	for (unsigned i = 0; i < service->n_methods; i++) {
		const ProtobufCMethodDescriptor *m = &service->methods[i];
		char name[KIND_NAME];
		struct kind *kind;

		snprintf(name, sizeof name, "%s.%s", service->short_name, m->name);
		kind = kind_add(k, name);
		snprintf(kind->path, sizeof kind->path, "/%s/%s", service->name, m->name);
		kind->in = m->input;
		kind->out = m->output;
		kind->shapes = shapes_of(m->input) & ~SHAPE_BIT(SHAPE_DESCRIPTORS);
	}
}

void kinds_of_enum(struct kinds *k, const char *header, const char *name)
{
	char line[LINE], begin[LINE], word[KIND_NAME];
	FILE *file = fopen(header, "r");
	const uint32_t before = k->count;
	unsigned long number = 0;
	bool inside = false;

	snprintf(begin, sizeof begin, "enum %s {", name);
	while (file && fgets(line, sizeof line, file)) {
		if (!inside) {
			inside = !strncmp(line, begin, strlen(begin));
			continue;
		}
		if (line[0] == '}')
			break;
		if (sscanf(line, " %47[A-Z0-9_] = %lu", word, &number) < 1 || strstr(word, "_END"))
			continue;
		kind_add(k, word)->number = (uint32_t)number;
	}
	if (file)
		fclose(file);
	if (k->count == before) {
		fprintf(stderr, "%s: no enum %s\n", header, name);
		exit(1);
	}
}

/* ---- order ---- */

void schedule_init(struct schedule *s, struct kinds *kinds, const uint8_t times[SHAPES], uint64_t seed)
{
	*s = (struct schedule){ .kinds = kinds, .rng = { seed } };
	for (int pass = 0; pass < 2; pass++) {
		s->count = 0;
		for (uint32_t k = 0; k < kinds->count; k++)
			for (uint32_t shape = 0; shape < SHAPES; shape++)
				for (uint32_t n = kinds->list[k].shapes & SHAPE_BIT(shape) ? times[shape] : 0; n; n--, s->count++)
					if (pass)
						s->cells[s->count] = (uint16_t)(k * SHAPES + shape);
		if (!pass)
			s->cells = calloc(s->count, sizeof *s->cells);
		if (!s->cells)
			abort();
	}
	s->at = s->count;
}

struct kind *schedule_next(struct schedule *s, enum shape *shape)
{
	if (s->at == s->count) {
		for (uint32_t i = s->count; i > 1; i--) {
			const uint32_t j = rng_below(&s->rng, i);
			const uint16_t cell = s->cells[i - 1];

			s->cells[i - 1] = s->cells[j];
			s->cells[j] = cell;
		}
		s->at = 0;
	}
	*shape = (enum shape)(s->cells[s->at] % SHAPES);
	return &s->kinds->list[s->cells[s->at++] / SHAPES];
}

void schedule_fini(struct schedule *s)
{
	free(s->cells);
}

/* ---- the list ---- */

unsigned kinds_print(const struct kinds *k)
{
	unsigned empty = 0;

	for (uint32_t i = 0; i < k->count; i++) {
		const struct kind *kind = &k->list[i];

		printf("kind %s answered=%llu", kind->name, (unsigned long long)kind->answered);
		for (uint32_t s = 0; s < SHAPES; s++) {
			if (!(kind->shapes & SHAPE_BIT(s)))
				continue;
			printf(" %s=%llu", shape_names[s], (unsigned long long)kind->sent[s]);
			empty += !kind->sent[s];
		}
		printf("\n");
	}
	return empty;
}

uint64_t kinds_sent(const struct kinds *k)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < k->count; i++)
		for (uint32_t s = 0; s < SHAPES; s++)
			sum += k->list[i].sent[s];
	return sum;
}

/* ---- faults ---- */

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned fault_count;

unsigned faults(void)
{
	pthread_mutex_lock(&fault_lock);
	const unsigned n = fault_count;

	pthread_mutex_unlock(&fault_lock);
	return n;
}

void trail_add(struct trail *t, const struct kind *kind, enum shape shape, const void *bytes, size_t n)
{
	const uint64_t at = t->number % TRAIL;

	t->last[at].number = t->number;
	t->last[at].kind = kind->name;
	t->last[at].shape = shape_names[shape];
	t->last[at].bytes = (uint32_t)n;
	t->last[at].kept = (uint32_t)(n < TRAIL_BYTES ? n : TRAIL_BYTES);
	if (n)
		memcpy(t->last[at].head, bytes, t->last[at].kept);
}

static void trail_print(const struct trail *t)
{
	for (uint64_t i = 1; i <= TRAIL; i++) {
		const uint64_t at = (t->number + i) % TRAIL;

		if (!t->last[at].kind)
			continue;
		printf("  message %llu %s %s, %u bytes: ", (unsigned long long)t->last[at].number, t->last[at].kind, t->last[at].shape,
		       t->last[at].bytes);
		for (uint32_t b = 0; b < t->last[at].kept; b++)
			printf("%02x", t->last[at].head[b]);
		printf("\n");
	}
}

void fault(const struct trail *t, const char *format, ...)
{
	va_list args;

	pthread_mutex_lock(&fault_lock);
	if (fault_count++ < FAULTS_SHOWN) {
		printf("FAULT thread=%s seed=%llu message=%llu: ", t->thread, (unsigned long long)t->seed, (unsigned long long)t->number);
		va_start(args, format);
		vprintf(format, args);
		va_end(args);
		printf("\n");
		if (fault_count <= 2)
			trail_print(t);
		fflush(stdout);
	}
	pthread_mutex_unlock(&fault_lock);
}
