/* What the kernels of encode_atom.cu and decode_atom.cu share: a warp takes an atom's 16 tokens of one head at a time.
 * One CTA a multiprocessor; its warps take their next work from a counter in shared memory. */
#ifndef TERRACE_KERNELS_CUDA_CODEC_ATOM_CUH
#define TERRACE_KERNELS_CUDA_CODEC_ATOM_CUH

#include "kernels/cuda/codec_tile.cuh"

/* Divides by a number that the host knows. */
struct divider {
	uint32_t by, magic;

	DEVICE uint32_t operator()(uint32_t x, uint32_t *rest) const
	{
		uint32_t q = __umulhi(x, magic), r = x - q * by; /* at most one too small */

		if (r >= by) {
			q++;
			r -= by;
		}
		*rest = r;
		return q;
	}
};

static inline divider divider_of(uint32_t by)
{
	return {by, UINT32_MAX / by};
}

/* Units of work: `heads_a_unit` heads of 16 tokens, of one side. */
struct atom_launch {
	codec_args args;
	codec_side sides[2];
	uint32_t units, first, all;  /* of a side; first side; of all sides */
	divider groups, block_atoms; /* groups of heads; atoms of a block */
};

struct atom_unit {
	uint32_t side, atom, head; /* of its first head */
};

template <uint32_t HEADS> static inline atom_launch atom_launch_of(const codec_work &w)
{
	const uint32_t groups = (w.args.heads + HEADS - 1) / HEADS,
		       units = ((w.args.tokens - 1) / KV_ATOM_TOKENS + 1) * groups;

	return {w.args,
		{w.sides[0], w.sides[1]},
		units,
		w.first,
		units * w.count,
		divider_of(groups),
		divider_of(w.args.block_tokens / KV_ATOM_TOKENS)};
}

/* Units of this CTA: i of them is number i * gridDim.x + blockIdx.x. */
DEVICE uint32_t units_here(const atom_launch &l)
{
	return (l.all - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

template <uint32_t HEADS> DEVICE atom_unit unit_of(const atom_launch &l, uint32_t i)
{
	const uint32_t number = i * gridDim.x + blockIdx.x, second = number >= l.units;
	atom_unit u;

	u.side = l.first + second;
	u.atom = l.groups(number - (second ? l.units : 0), &u.head);
	u.head *= HEADS;
	return u;
}

/* The warp's next: the counter's number, to all lanes. */
DEVICE uint32_t take_unit(uint32_t counter, uint32_t lane)
{
	uint32_t i = 0;

	if (lane == 0)
		i = count_shared(counter);
	return same_in_all(i);
}

/* Slot of token lane % 16 of the unit. */
DEVICE int64_t unit_slot(const atom_launch &l, const atom_unit &u, uint32_t lane)
{
	const uint32_t token = u.atom * KV_ATOM_TOKENS + lane % KV_ATOM_TOKENS;

	return token < l.args.tokens ? l.args.slots[token] : -1;
}

/* Where the tokens of a unit have their atoms. */
struct atom_place {
	uint64_t atom;	  /* of token lane % 16 and head 0: address */
	uint32_t in_atom; /* of that token */
	uint32_t placed;  /* bits 0 .. 15: tokens that have a place; bit 16: they fill an atom in order */

	DEVICE bool whole() const
	{
		return placed >> 16;
	}
};

/* What becomes an atom_place when the table of blocks has answered. */
struct atom_looked_up {
	uint64_t block, at;
	uint32_t in_atom, placed;

	DEVICE atom_place place() const
	{
		return {block + at, in_atom, placed};
	}
};

DEVICE atom_looked_up look_up(const atom_launch &l, int64_t slot, uint32_t lane)
{
	const codec_args &a = l.args;
	const bool placed = (uint64_t)slot < (uint64_t)a.block_count * a.block_tokens;
	const uint32_t atom = (uint32_t)(slot >> 4), in_atom = (uint32_t)slot % KV_ATOM_TOKENS;
	const bool same = atom == same_in_all(atom),
		   whole = __all_sync(ALL_LANES, placed && same && in_atom == lane % KV_ATOM_TOKENS);
	atom_looked_up p = {0, 0, 0, (__ballot_sync(ALL_LANES, placed) & 0xffff) | (whole ? 1u << 16 : 0)};

	if (placed) {
		uint32_t in_block;
		const uint32_t block = l.block_atoms(atom, &in_block);

		p.block = a.blocks[block];
		p.in_atom = in_atom;
		p.at = a.layer_at + (uint64_t)in_block * a.atom_bytes;
	}
	return p;
}

#endif
