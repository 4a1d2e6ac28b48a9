/* As much Unicode as the tokenizer needs: UTF-8 and four classes of code points. */
#ifndef TINYLM_UNICODE_H
#define TINYLM_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum unicode_class { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

/* What unicode_next gives for a byte that is not UTF-8; its class is UNICODE_OTHER. */
#define UNICODE_BROKEN 0xffffffffu

enum unicode_class unicode_class_of(uint32_t c);

/* Reads one code point of text (bytes > 0). Returns its length in bytes; 1 and UNICODE_BROKEN for a byte that does not
 * begin a well-formed one. */
size_t unicode_next(const uint8_t *text, size_t bytes, uint32_t *c);

#endif
