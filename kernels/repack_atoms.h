/* Moves an atom's codes of int4_pth from and to the codes of its 16 tokens in pages (repack.h), which are `offset`
 * bytes behind tokens[0 .. 15]. For head dims that are multiples of 64, on machines with AVX2 (repack_avx2.c).
 */
#ifndef TERRACE_KERNELS_REPACK_ATOMS_H
#define TERRACE_KERNELS_REPACK_ATOMS_H

#include <stddef.h>
#include <stdint.h>

struct kv_repack_atoms {
	void (*k_from)(uint32_t d, uint8_t *const tokens[16], ptrdiff_t offset, uint8_t *codes);
	void (*k_to)(uint32_t d, uint8_t *const tokens[16], ptrdiff_t offset, const uint8_t *codes);
	void (*v_from)(uint32_t d, uint8_t *const tokens[16], ptrdiff_t offset, uint8_t *codes);
	void (*v_to)(uint32_t d, uint8_t *const tokens[16], ptrdiff_t offset, const uint8_t *codes);
	/* memcpy past the caches: of multiples of 16 bytes; of any bytes, of which those of whole lines go past them.
	 * finish: before other threads may look. */
	void (*stream)(uint8_t *to, const uint8_t *from, size_t bytes);
	void (*stream_lines)(uint8_t *to, const uint8_t *from, size_t bytes);
	void (*finish)(void);
};
extern const struct kv_repack_atoms kv_repack_atoms_avx2;

#endif
