/* The table of an attachment's mappings. With the attachment's lock. */
#ifndef TERRACE_CLIENT_MEMORY_TABLE_H
#define TERRACE_CLIENT_MEMORY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct client_attachment;
struct client_mapping;

/* The mapping of the extent, readable or writable; NULL: there is none. */
struct client_mapping *client_fds_find(const struct client_attachment *attachment, uint32_t extent, bool writable);
/* Adds a mapping and takes over its memory. NULL: no room. */
struct client_mapping *client_fds_add(struct client_attachment *attachment, const struct client_mapping *mapping);
/* Frees the mapping's record. Its memory is unmapped already. */
void client_table_remove(struct client_attachment *attachment, struct client_mapping *mapping);
/* Tells the daemon that an extent is unmapped. False: the socket does not take it now. */
bool client_fds_tell(struct client_attachment *attachment, const struct client_mapping *mapping);
bool client_table_tell(struct client_attachment *attachment, uint32_t extent, bool writable);
/* The packet that says that the extent is unmapped. */
struct fdsock_unmapped client_unmapped_of(uint32_t extent, bool writable);
/* True if a GPU's driver has a part in the mapping. */
bool client_fds_of_driver(const struct client_mapping *mapping);

#endif
