/* Whether the pages of a catalog's file hang together, told without LMDB.
 *
 * LMDB trusts its pages: a number in one that is wrong makes it read beside the map, give the same
 * page out twice, or abort. Records have checksums, pages have none. So the structure itself is
 * proved: both meta pages, every page that is reached from the newest one, reached once, with its
 * nodes side by side inside it, keys rising and within what the branches say, counts as noted, big
 * values inside the file, and no page that is both in use and in the list of free pages. What passes
 * is safe to read and to write for LMDB; what records say is not looked at.
 *
 * Data format 1 of LMDB (0.9.x), 64-bit little-endian. */
#ifndef TERRACE_STORE_CATALOG_PAGES_H
#define TERRACE_STORE_CATALOG_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* NULL: it is sound, or of another data format of LMDB, of which nothing can be said here. Else a
 * fixed sentence. Never reads beside the bytes, whatever they are. Takes memory for a bit a page; "no
 * memory" is a sentence too (catalog_pages_no_memory, to be compared by address). Any thread. */
const char *catalog_pages_problem(const void *file, size_t bytes);
extern const char catalog_pages_no_memory[];

#endif
