/* What the tests of the catalog share: a folder of their own, an opened catalog in it, waiting for a
 * flush. */
#ifndef TERRACE_TESTS_STORE_CATALOG_RIG_H
#define TERRACE_TESTS_STORE_CATALOG_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/catalog/catalog.h"

struct rig {
	char folder[64];
	struct catalog_options options; /* to be changed before rig_open */
	struct catalog *c;
	enum catalog_state state;
	char why[256];
};

/* A new empty folder; options as small as a test wants them. */
void rig_init(struct rig *r);
/* Closes what is open and removes the folder with its files. */
void rig_fini(struct rig *r);
void rig_path(const struct rig *r, const char *name, char path[128]);

enum status rig_try(struct rig *r);
/* Opens, which must succeed with that state. */
void rig_open(struct rig *r, enum catalog_state expected);
void rig_close(struct rig *r);
/* Flushes, waits, returns what the callback was told. */
enum status rig_flush(struct rig *r);

void rig_put(struct rig *r, enum catalog_table t, const char *key, const char *value);
/* The text under the key, "" when it is missed; until the next call. */
const char *rig_get(struct rig *r, enum catalog_table t, const char *key);

/* A whole file: malloc'd. */
uint8_t *rig_read(const char *path, size_t *bytes);
void rig_write(const char *path, const void *data, size_t bytes);
bool rig_exists(const struct rig *r, const char *name);

uint64_t rig_rnd(uint64_t *state);

#endif
