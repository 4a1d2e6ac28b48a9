/* Keys from the command line, or chained from a file of token ids. */
#ifndef TERRACE_CTL_KEYS_H
#define TERRACE_CTL_KEYS_H

#include <stdint.h>

struct ctl_args;
struct terrace_keys;

/* Reads keys from the command's words, all of one length. CTL_OK and *keys, whose bytes the caller frees; or
 * CTL_USAGE. */
int keys_from_words(const struct ctl_args *args, struct terrace_keys *keys);

/* The keys of the whole blocks of the token ids in a file ("-": standard input), by terrace_chain_hash. salt may be
 * NULL. CTL_OK and *keys, whose bytes the caller frees; or CTL_FAILED. */
int keys_from_tokens(const char *path, uint32_t block_tokens, const char *salt, struct terrace_keys *keys);

#endif
