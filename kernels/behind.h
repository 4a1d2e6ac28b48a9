/* Finds and zeroes the bytes of a block that belong to no valid token. */
#ifndef TERRACE_KERNELS_BEHIND_H
#define TERRACE_KERNELS_BEHIND_H

#include <stdint.h>

#include "kernels/format.h"

/* Zeroes every byte of a block that no token before `tokens` owns: codes and scales of the tokens behind, and what the
 * atoms that hold some of them have between their parts. `block` is block_bytes of the layout, whose geometry is g.
 * Atoms of valid tokens alone are not touched. */
void kv_zero_behind(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t tokens);
/* Zeroes what no valid token owns in `count` atoms that lie side by side at `atoms`, each of which has `tokens` valid
 * tokens, fewer than all. */
void kv_zero_behind_atoms(const struct kv_layout *l, const struct kv_geometry *g, void *atoms, uint32_t count,
			  uint32_t tokens);

#endif
