/* Blocks moved by stream: the decoders of replies, declared here so that tests reach them. */
#ifndef TERRACE_CLIENT_CALL_STREAM_H
#define TERRACE_CLIENT_CALL_STREAM_H

#include "client/include/terrace.h"
#include "terrace.pb-c.h"

struct client_message;

enum { CLIENT_CHUNK_MAX = 256 << 10 }; /* data bytes of one chunk */

/* A block being received. */
struct client_getting {
	const struct client_view *view;
	uint64_t block_bytes;
	uint32_t block_tokens;
	uint8_t *block;   /* the place for the block */
	uint64_t got;     /* bytes so far */
	bool headed;      /* the header has come */
	uint32_t tokens, crc, want_crc;
};

/* Reads one GetChunk. */
enum terrace_status client_get_read(struct client_getting *getting, const struct client_message *message);
/* After the last chunk: TERRACE_OK if the block is whole and its checksum right. */
enum terrace_status client_get_check(const struct client_getting *getting);

/* A block being sent. */
struct client_putting {
	struct client_view *view;
	const uint8_t *block;
	uint64_t block_bytes, sent;
	Terrace__V1__PutChunk chunk;
	Terrace__V1__PutHeader header;
	Terrace__V1__BlockInfo info;
	enum terrace_status status; /* the daemon's, of the block */
};

/* Reads the PutReply. */
enum terrace_status client_put_read(struct client_putting *putting, const struct client_message *message);

/* Continues a CRC-32C: `crc` is that of the bytes before (0 for none). */
uint32_t client_crc32c(uint32_t crc, const void *bytes, size_t size);

#endif
