/* Checks the page structure of a catalog's file, without LMDB.
 *
 * LMDB trusts its pages. A wrong number in a page makes it read outside the map, give the same page out twice, or
 * abort. Records have checksums, pages have none. So the structure itself is checked. Both meta pages must be sound.
 * Every page that can be reached from the newest one is reached once. Its nodes lie side by side inside it. Its keys
 * rise and are within what the branches say. Counts are as noted. Big values are inside the file. No page is both in
 * use and in the list of free pages. A file that passes is safe for LMDB to read and to write. The contents of records
 * are not looked at.
 *
 * Data format 1 of LMDB (0.9.x), 64-bit little-endian.
 */
#ifndef TERRACE_STORE_CATALOG_PAGES_H
#define TERRACE_STORE_CATALOG_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* NULL: the file is sound, or of another LMDB data format, which cannot be checked here. Otherwise a fixed sentence.
 * Never reads outside the bytes, whatever they are. Takes memory for a bit a page; "no memory" is a sentence too
 * (catalog_pages_no_memory, to be compared by address). Any thread. */
const char *catalog_pages_problem(const void *file, size_t bytes);
extern const char catalog_pages_no_memory[];

#endif
