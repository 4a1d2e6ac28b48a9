/* int4_pth between packed blocks and an engine's own pages (see cuda_kernels.h, and kernels/repack.h, whose results
 * these are). A CTA takes 16 tokens of the list and eight heads, or four where eight would leave multiprocessors idle
 * or not fit. What these have in pages goes through shared memory in *pieces*: codes and scales that are neighbours in
 * the pages, as in [K | scale | V | scale], are one, which reaches from head to head where there is no gap, and moves
 * in the widest words that its addresses and strides allow. Between shared memory and blocks codes change their order
 * (repack_atom.cuh).
 *
 * pages --16, 8, 4 or 1 byte a thread--> rows in shared memory --codes in the atom's order, 16 bytes a thread--> blocks
 * and back
 */
#include "kernels/cuda/repack_atom.cuh"

namespace
{

constexpr uint32_t REPACK_THREADS = 128, HEADS_FEW = 4, HEADS_MANY = 8, PIECES_MAX = 4, SCALE_BYTES = 4, WIDEST = 16;
constexpr uint32_t CTAS_MANY = 1024;          /* enough for each multiprocessor to have as many as it holds */
constexpr uint32_t SHARED_MAX = 47 << 10;     /* of 48 KiB without asking for more; the rest is repack_tokens */
constexpr uint32_t FROM_AT_ONCE = 2, TO_AT_ONCE = 1; /* words a thread: more cost registers, and with these CTAs */

/* Neighbours in pages. */
struct repack_piece {
	uint64_t base;             /* address, of page 0, token 0, head 0 */
	int64_t page, token, head; /* strides */
	uint32_t bytes, width;     /* of a head; of a word */
	uint32_t at, step, pitch;  /* in shared memory: first byte, from head to head, from token to token */
	bool run;                  /* heads are neighbours, too */
};

/* Codes or scales of a side, in shared memory. */
struct repack_part {
	uint32_t at, step, pitch;
};

struct repack_side {
	uint32_t d, codes_at, scales_at; /* d: 0 if the side is left out. In an atom */
	repack_part codes, scales;
};

struct repack_args {
	codec_args blocks; /* the list's tokens in blocks */
	const int64_t *page_slots;
	uint64_t page_slot_count;
	uint32_t page_tokens, pieces, shared, heads; /* heads: of a CTA */
	repack_piece piece[PIECES_MAX];
	repack_side side[2];
};

/* The sixteen tokens of a CTA. An address is 0 where the token is skipped. */
struct repack_tokens {
	uint64_t pages[PIECES_MAX][KV_ATOM_TOKENS]; /* of each piece, of the CTA's first head */
	uint64_t atom[KV_ATOM_TOKENS];              /* of that head */
	uint32_t in_atom[KV_ATOM_TOKENS];
	bool whole; /* they fill an atom in order */
};

DEVICE void find_pages(const repack_args &a, int64_t page_slot, uint32_t head, uint32_t token, repack_tokens *t)
{
	const int64_t page = page_slot / a.page_tokens, in_page = page_slot % a.page_tokens;

	for (uint32_t i = 0; i < a.pieces; i++) {
		const repack_piece &p = a.piece[i];

		t->pages[i][token] =
			page_slot < 0 ? 0 : p.base + page * p.page + in_page * p.token + (int64_t)head * p.head;
	}
}

/* The first warp's. */
DEVICE void find_tokens(const repack_args &a, uint32_t head, repack_tokens *t)
{
	const uint32_t lane = threadIdx.x % 32, i = lane % KV_ATOM_TOKENS, token = blockIdx.x * KV_ATOM_TOKENS + i;
	const bool there = token < a.blocks.tokens;
	const int64_t slot = there ? a.blocks.slots[token] : -1, page_slot = there ? a.page_slots[token] : -1,
		      first = __shfl_sync(ALL_LANES, slot, 0);
	const bool placed = (uint64_t)slot < (uint64_t)a.blocks.block_count * a.blocks.block_tokens &&
			    (uint64_t)page_slot < a.page_slot_count,
		   whole = __all_sync(ALL_LANES, placed && first % KV_ATOM_TOKENS == 0 && slot == first + i);

	if (lane < KV_ATOM_TOKENS) {
		t->in_atom[i] = 0;
		t->atom[i] = placed ? (uint64_t)(uintptr_t)atom_at(a.blocks, slot, head, &t->in_atom[i]) : 0;
		find_pages(a, placed ? page_slot : -1, head, i, t);
	}
	if (lane == 0)
		t->whole = whole;
}

/* Division by what threads share: once by the slow way, then by a product. Exact while x * by < 2^32. */
struct divisor {
	uint32_t by, factor;

	DEVICE explicit divisor(uint32_t d) : by(d), factor(UINT32_MAX / d + 1) {}
	DEVICE uint32_t divide(uint32_t x) const { return by == 1 ? x : __umulhi(x, factor); }
};

/* Word i of a piece: where in pages (0: nowhere), where in shared memory. */
struct repack_word {
	uint64_t page;
	uint32_t row;
};

template <class T>
DEVICE repack_word word_of(const repack_piece &p, const uint64_t *pages, uint32_t heads, divisor each, uint32_t i)
{
	const uint32_t row = each.divide(i), at = (i - row * each.by) * sizeof(T), token = p.run ? row : row / heads,
		       head = p.run ? 0 : row - token * heads;

	if (!pages[token])
		return {0, 0};
	return {pages[token] + (int64_t)head * p.head + at, p.at + token * p.pitch + head * p.step + at};
}

template <bool TO_PAGES, class T>
DEVICE void move_words_of(const repack_piece &p, const uint64_t *pages, uint32_t heads, uint8_t *rows)
{
	constexpr uint32_t AT_ONCE = TO_PAGES ? TO_AT_ONCE : FROM_AT_ONCE;
	const uint32_t count = KV_ATOM_TOKENS * heads * p.bytes / sizeof(T);
	const divisor each((p.run ? heads * p.bytes : p.bytes) / sizeof(T));

	for (uint32_t i = threadIdx.x; i < count; i += AT_ONCE * REPACK_THREADS) {
		repack_word w[AT_ONCE];
		T held[AT_ONCE];

#pragma unroll
		for (uint32_t j = 0; j < AT_ONCE; j++) {
			const uint32_t at = i + j * REPACK_THREADS;

			w[j] = at < count ? word_of<T>(p, pages, heads, each, at) : repack_word{0, 0};
			if (w[j].page)
				held[j] = TO_PAGES ? *(const T *)(rows + w[j].row) : *(const T *)w[j].page;
		}
#pragma unroll
		for (uint32_t j = 0; j < AT_ONCE; j++)
			if (w[j].page)
				*(TO_PAGES ? (T *)w[j].page : (T *)(rows + w[j].row)) = held[j];
	}
}

template <bool TO_PAGES>
DEVICE void move_pieces(const repack_args &a, const repack_tokens &t, uint32_t heads, uint8_t *rows)
{
	for (uint32_t i = 0; i < a.pieces; i++)
		switch (a.piece[i].width) {
		case 16:
			move_words_of<TO_PAGES, uint4>(a.piece[i], t.pages[i], heads, rows);
			break;
		case 8:
			move_words_of<TO_PAGES, uint2>(a.piece[i], t.pages[i], heads, rows);
			break;
		case 4:
			move_words_of<TO_PAGES, uint32_t>(a.piece[i], t.pages[i], heads, rows);
			break;
		default:
			move_words_of<TO_PAGES, uint8_t>(a.piece[i], t.pages[i], heads, rows);
		}
}

template <bool TO_PAGES>
DEVICE void move_scales(const repack_args &a, const repack_side &s, const repack_tokens &t, uint32_t heads,
			uint8_t *rows)
{
	for (uint32_t i = threadIdx.x; i < KV_ATOM_TOKENS * heads; i += REPACK_THREADS) {
		const uint32_t token = i % KV_ATOM_TOKENS, head = i / KV_ATOM_TOKENS;
		uint32_t *ours = (uint32_t *)(t.atom[token] + (uint64_t)head * a.blocks.chunk_bytes + s.scales_at) +
				 scale_entry(t.in_atom[token]),
			 *theirs = (uint32_t *)(rows + s.scales.at + token * s.scales.pitch + head * s.scales.step);

		if (t.atom[token])
			*(TO_PAGES ? theirs : ours) = TO_PAGES ? *ours : *theirs;
	}
}

/* A whole atom's codes: K by vectors, V by two of them. */
template <bool TO_PAGES, enum kv_side SIDE>
DEVICE void move_atom(const repack_args &a, const repack_side &s, const repack_tokens &t, uint32_t heads, uint8_t *rows)
{
	const divisor each(SIDE == KV_SIDE_K ? s.d / 2 : s.d / 4);
	const uint32_t pitch = s.codes.pitch;

	for (uint32_t i = threadIdx.x; i < heads * each.by; i += REPACK_THREADS) {
		const uint32_t head = each.divide(i), v = i - head * each.by;
		uint8_t *plane = (uint8_t *)(t.atom[0] + (uint64_t)head * a.blocks.chunk_bytes + s.codes_at),
			*codes = rows + s.codes.at + head * s.codes.step;

		if (TO_PAGES && SIDE == KV_SIDE_K)
			k_to_pages(plane, v, codes, pitch);
		else if (TO_PAGES)
			v_to_pages(plane, v, codes, pitch);
		else if (SIDE == KV_SIDE_K)
			k_from_pages(codes, pitch, v, plane);
		else
			v_from_pages(codes, pitch, v, plane);
	}
}

/* The codes of tokens, each by itself. */
template <bool TO_PAGES, enum kv_side SIDE>
DEVICE void move_loose(const repack_args &a, const repack_side &s, const repack_tokens &t, uint32_t heads,
		       uint8_t *rows)
{
	const uint32_t each = TO_PAGES ? s.d / 2 : s.d;

	for (uint32_t i = threadIdx.x; i < KV_ATOM_TOKENS * heads * each; i += REPACK_THREADS) {
		const uint32_t row = i / each, token = row / heads, head = row % heads;
		uint8_t *plane = (uint8_t *)(t.atom[token] + (uint64_t)head * a.blocks.chunk_bytes + s.codes_at),
			*codes = rows + s.codes.at + token * s.codes.pitch + head * s.codes.step;

		if (!t.atom[token])
			continue;
		if (TO_PAGES)
			dims_to_page(plane, SIDE, s.d, t.in_atom[token], 2 * (i % each), codes);
		else
			dim_from_page(codes, SIDE, s.d, t.in_atom[token], i % each, plane);
	}
}

template <bool TO_PAGES, enum kv_side SIDE>
DEVICE void move_side(const repack_args &a, const repack_tokens &t, uint32_t heads, uint8_t *rows)
{
	const repack_side &s = a.side[SIDE];

	if (!s.d)
		return;
	move_scales<TO_PAGES>(a, s, t, heads, rows);
	if (t.whole && s.d % 64 == 0)
		move_atom<TO_PAGES, SIDE>(a, s, t, heads, rows);
	else
		move_loose<TO_PAGES, SIDE>(a, s, t, heads, rows);
}

template <bool TO_PAGES> __global__ void __launch_bounds__(REPACK_THREADS) repack_kernel(const repack_args a)
{
	DYNAMIC_SHARED(uint8_t, rows, 16);
	__shared__ repack_tokens tokens;
	const uint32_t head = blockIdx.y * a.heads, heads = min(a.blocks.heads - head, a.heads);

	begin_after_previous();
	if (threadIdx.x < 32)
		find_tokens(a, head, &tokens);
	__syncthreads();
	if (!TO_PAGES) {
		move_pieces<false>(a, tokens, heads, rows);
		__syncthreads();
	}
	move_side<TO_PAGES, KV_SIDE_K>(a, tokens, heads, rows);
	move_side<TO_PAGES, KV_SIDE_V>(a, tokens, heads, rows);
	if (TO_PAGES) {
		__syncthreads();
		move_pieces<true>(a, tokens, heads, rows);
	}
}

/* ---- the host's ---- */

/* Codes or scales of a side in pages, and where their place in shared memory is to be noted. */
struct pages_part {
	uint64_t at;
	uint32_t bytes;
	int64_t page, token, head;
	repack_part *noted;
};

uint32_t parts_of(const struct kv_cuda_repack *r, repack_args *a, pages_part *parts)
{
	uint32_t n = 0;

	for (uint32_t side = KV_SIDE_K; side <= KV_SIDE_V; side++) {
		const struct kv_pages_side *p = &r->side[side];
		repack_side *s = &a->side[side];

		if (!p->codes)
			continue;
		parts[n++] = {
			(uint64_t)(uintptr_t)p->codes, s->d / 2, p->code_page, p->code_token, p->code_head, &s->codes};
		parts[n++] = {(uint64_t)(uintptr_t)p->scales,
			      SCALE_BYTES,
			      p->scale_page,
			      p->scale_token,
			      p->scale_head,
			      &s->scales};
	}
	for (uint32_t i = 1; i < n; i++) /* by address */
		for (uint32_t j = i; j > 0 && parts[j].at < parts[j - 1].at; j--) {
			const pages_part other = parts[j];

			parts[j] = parts[j - 1];
			parts[j - 1] = other;
		}
	return n;
}

bool joins(const pages_part &part, const repack_piece &p)
{
	return part.at == p.base + p.bytes && part.page == p.page && part.token == p.token && part.head == p.head;
}

uint32_t padded(uint32_t bytes)
{
	return (bytes + WIDEST - 1) / WIDEST * WIDEST;
}

/* The widest word of which everything is a multiple. */
uint32_t width_of(const repack_piece &p, uint32_t heads, uint32_t each)
{
	const uint64_t rows = p.run ? (heads >= each ? each * p.bytes : 0) | heads % each * p.bytes
				    : p.bytes | (uint64_t)p.head,
		       all = p.base | (uint64_t)p.page | (uint64_t)p.token | rows;

	return all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : 1;
}

/* A place in shared memory for a piece, of whose rows two in a row begin at other banks. */
void place_piece(repack_args *a, repack_piece *p)
{
	const uint32_t heads = a->blocks.heads < a->heads ? a->blocks.heads : a->heads;

	p->run = p->head == (int64_t)p->bytes;
	p->width = width_of(*p, a->blocks.heads, a->heads);
	p->step = p->run ? p->bytes : padded(p->bytes);
	p->pitch = padded(heads * p->step) + WIDEST;
	p->at = a->shared;
	a->shared += KV_ATOM_TOKENS * p->pitch;
}

/* Parts to pieces, and these to their places. */
void make_pieces(const struct kv_cuda_repack *r, repack_args *a)
{
	pages_part parts[PIECES_MAX];
	uint32_t n = parts_of(r, a, parts), in_piece[PIECES_MAX], piece_of[PIECES_MAX];

	for (uint32_t i = 0; i < n; i++) {
		if (i == 0 || !joins(parts[i], a->piece[a->pieces - 1]))
			a->piece[a->pieces++] = {parts[i].at, parts[i].page, parts[i].token, parts[i].head, 0, 0, 0, 0,
						 0,           false};
		repack_piece *p = &a->piece[a->pieces - 1];

		piece_of[i] = a->pieces - 1;
		in_piece[i] = p->bytes;
		p->bytes += parts[i].bytes;
	}
	for (uint32_t i = 0; i < a->pieces; i++)
		place_piece(a, &a->piece[i]);
	for (uint32_t i = 0; i < n; i++) {
		const repack_piece &p = a->piece[piece_of[i]];

		*parts[i].noted = {p.at + in_piece[i], p.step, p.pitch};
	}
}

bool side_sound(const struct kv_pages_side *p)
{
	return !p->codes || p->scales;
}

bool repack_sound(const struct kv_cuda_repack *r)
{
	const struct kv_layout *l = r->layout;

	if (!layout_sound(l, r->geometry) || r->layer >= l->layers || (uint64_t)r->tokens * l->heads > UINT32_MAX ||
	    (uint64_t)r->block_count * (l->block_tokens / KV_ATOM_TOKENS) > UINT32_MAX)
		return false;
	return (r->side[KV_SIDE_K].codes || r->side[KV_SIDE_V].codes) && side_sound(&r->side[KV_SIDE_K]) &&
	       side_sound(&r->side[KV_SIDE_V]) && aligned_to(8, {r->slots, r->page_slots, r->blocks}) &&
	       (r->tokens == 0 || (r->slots && r->page_slots && r->blocks && r->page_tokens));
}

bool side_is_int4(const struct kv_pages_side *p, enum kv_format f)
{
	return !p->codes || f == KV_INT4_PTH;
}

repack_args args_of(const struct kv_cuda_repack *r, uint32_t heads)
{
	const struct kv_layout *l = r->layout;
	const struct kv_geometry *g = r->geometry;
	repack_args a = {};

	a.heads = heads;
	a.blocks.slots = r->slots;
	a.blocks.blocks = r->blocks;
	a.blocks.layer_at = r->layer * g->layer_bytes;
	a.blocks.tokens = r->tokens;
	a.blocks.heads = l->heads;
	a.blocks.block_count = r->block_count;
	a.blocks.block_tokens = l->block_tokens;
	a.blocks.chunk_bytes = g->chunk_bytes;
	a.blocks.atom_bytes = g->atom_bytes;
	a.page_slots = r->page_slots;
	a.page_tokens = r->page_tokens;
	a.page_slot_count = r->page_count > INT64_MAX / r->page_tokens ? INT64_MAX : r->page_count * r->page_tokens;
	a.side[KV_SIDE_K] = {r->side[KV_SIDE_K].codes ? l->head_dim_k : 0, g->k_codes_at, g->k_scales_at, {}, {}};
	a.side[KV_SIDE_V] = {r->side[KV_SIDE_V].codes ? l->head_dim_v : 0, g->v_codes_at, g->v_scales_at, {}, {}};
	make_pieces(r, &a);
	return a;
}

uint32_t parts_in(uint32_t n, uint32_t each)
{
	return (n - 1) / each + 1;
}

/* Of a list that is not empty. */
repack_args args_fitting(const struct kv_cuda_repack *r)
{
	const uint64_t ctas = (uint64_t)parts_in(r->tokens, KV_ATOM_TOKENS) * parts_in(r->layout->heads, HEADS_MANY);
	const repack_args a = args_of(r, HEADS_MANY);

	return ctas >= CTAS_MANY && a.shared <= SHARED_MAX ? a : args_of(r, HEADS_FEW);
}

template <bool TO_PAGES> enum status repack(const struct kv_cuda_repack *r, cudaStream_t stream)
{
	if (!repack_sound(r))
		return STATUS_INVALID;
	if (!side_is_int4(&r->side[KV_SIDE_K], r->layout->k_format) ||
	    !side_is_int4(&r->side[KV_SIDE_V], r->layout->v_format))
		return STATUS_UNSUPPORTED;
	if (r->tokens == 0)
		return STATUS_OK;
	const repack_args a = args_fitting(r);
	const dim3 grid(parts_in(r->tokens, KV_ATOM_TOKENS), parts_in(r->layout->heads, a.heads));

	launch_early(repack_kernel<TO_PAGES>, grid, REPACK_THREADS, a.shared, stream, a);
	return launched();
}

} // namespace

extern "C" enum status kv_cuda_repack_from_pages(const struct kv_cuda_repack *r, cudaStream_t stream)
{
	return repack<false>(r, stream);
}

extern "C" enum status kv_cuda_repack_to_pages(const struct kv_cuda_repack *r, cudaStream_t stream)
{
	return repack<true>(r, stream);
}
