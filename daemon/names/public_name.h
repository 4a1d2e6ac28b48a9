/* The public name of a block, or of a segment's first key. All its bits are uniformly random, to those that do not have
 * the tenant's secret. Between daemons it is 16 bytes; word[0] and word[1] are their halves, little-endian. */
#ifndef TERRACE_DAEMON_NAMES_PUBLIC_NAME_H
#define TERRACE_DAEMON_NAMES_PUBLIC_NAME_H

#include <stdint.h>

struct public_name {
	union {
		uint8_t bytes[16];
		uint64_t word[2];
	};
};
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "word[] are the bytes as they stand");

#endif
