/* What a hostile client sends, as a table: a row for each kind of message and a column for each shape.
 *
 * Rows come from the definitions: every method of every service of the .proto files by its descriptor, every packet type and every local
 * method by its name in proto/fdsock.h. A cell counts the messages that were sent. A cell without a message fails the test.
 */
#ifndef TERRACE_TESTS_HOSTILE_KINDS_H
#define TERRACE_TESTS_HOSTILE_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum shape {
	SHAPE_VALID,
	SHAPE_BOUNDARY,    /* numbers and lengths at the ends of what is allowed, and beyond */
	SHAPE_WRONG_TYPE,  /* another wire type than the field's; another magic, version or type than the packet's */
	SHAPE_UNKNOWN,     /* fields that no message has */
	SHAPE_OVERSIZED,
	SHAPE_TRUNCATED,
	SHAPE_GARBAGE,
	SHAPE_EMPTY,
	SHAPE_WRONG,       /* handles that were never granted, or are of another kind */
	SHAPE_FOREIGN,     /* handles of others */
	SHAPE_ORDER,       /* a message that does not belong there */
	SHAPE_MANY,        /* many small messages in a row */
	SHAPE_HALF_OPEN,   /* begun and left so for a while */
	SHAPE_CANCELLED,   /* ended before its answer */
	SHAPE_DESCRIPTORS, /* descriptors come with it */
	SHAPES
};

#define SHAPE_BIT(s) (1u << (s))

enum { KINDS_MAX = 128, KIND_NAME = 48 };

struct kind {
	char name[KIND_NAME];
	char path[KIND_NAME + 32];                  /* of a method: for gRPC */
	const ProtobufCMessageDescriptor *in, *out; /* of a packet without a message: NULL */
	uint32_t number;                            /* of a packet or a local method */
	uint32_t shapes;                            /* those that it has, bits */
	uint64_t sent[SHAPES];
	uint64_t answered;                          /* valid ones, with success */
};

struct kinds {
	struct kind list[KINDS_MAX];
	uint32_t count;
};

/* Numbers that a seed gives. Each message has its own, from the seed and the message's number, so that it can be made again. */
struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);
bool rng_one_in(struct rng *r, uint32_t n);

/* Every method of a service. */
void kinds_of_service(struct kinds *k, const ProtobufCServiceDescriptor *service);
/* Every name of `enum NAME` in a header, but those with _END, with its number. Exits if there is none. */
void kinds_of_enum(struct kinds *k, const char *header, const char *name);

const char *shape_name(enum shape s);

/* One after the other all cells, as often as `times` says of their shape, in an order that the seed gives; then anew. */
struct schedule {
	struct kinds *kinds;
	uint16_t *cells; /* kind * SHAPES + shape */
	uint32_t count, at;
	struct rng rng;
};
void schedule_init(struct schedule *s, struct kinds *kinds, const uint8_t times[SHAPES], uint64_t seed);
struct kind *schedule_next(struct schedule *s, enum shape *shape);
void schedule_fini(struct schedule *s);

/* One line a row: `kind NAME answered=N SHAPE=N ...`. Returns how many cells are empty that should not be. */
unsigned kinds_print(const struct kinds *k);
uint64_t kinds_sent(const struct kinds *k);

/* ---- faults: what the daemon must not do ---- */

enum { TRAIL = 24, TRAIL_BYTES = 96 };

/* The last messages of a thread, to be shown with a fault. */
struct trail {
	const char *thread;
	uint64_t seed, number; /* of the message that is being sent */
	struct {
		uint64_t number;
		const char *kind, *shape;
		uint32_t bytes, kept;
		uint8_t head[TRAIL_BYTES];
	} last[TRAIL];
};

void trail_add(struct trail *t, const struct kind *kind, enum shape shape, const void *bytes, size_t n);
void fault(const struct trail *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
unsigned faults(void);

#endif
