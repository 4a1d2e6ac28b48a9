/* Splits an attention step over the device (see plan.cuh and cuda_kernels.h).
 *
 * Work is counted in atoms, with a fixed cost for the begin and the end of a segment. If there are no more rows than
 * CTAs, every row is cut into equal parts: as many as let all parts run at once, if that wastes little. Otherwise rows
 * are laid end to end and cut at equal distances; a cut near a row's end is moved to that end. With equal lengths the
 * distance is a whole number of rows, if that wastes little. With split_tokens rows are cut by their own lengths alone,
 * and the line only tells which CTA does which parts. Every CTA works its own share out, by a thread of one block.
 */
#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/format.cuh"
#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/plan.cuh"

namespace
{

constexpr uint32_t THREADS = 256;
constexpr uint32_t SEGMENT_COST =
	1056; /* bytes a dim that could be read in the time that a segment costs by itself */
constexpr uint32_t PART_MIN = 32;      /* atoms of a part: four a warp */
constexpr uint32_t WASTE_DIVISOR = 16; /* of a CTA's share that a regular cut may waste */

constexpr uint32_t Q_HEADS_MAX = 65536;
constexpr uint32_t SPLIT_TOKENS_MIN = PART_MIN * KV_ATOM_TOKENS;
constexpr uint32_t PARTS_MAX = UINT16_MAX; /* a segment counts them */
constexpr uint32_t WINDOW_MAX = 1 << 30; /* so that positions less a window are within 32 bits */

struct plan_args {
	const uint32_t *kv_tokens;
	const int32_t *ranges;
	segment *segments;
	uint32_t *arrived;
	uint32_t sequences, heads, tiles, ctas;
	uint32_t queries, window, ranges_max;
	uint32_t segment_cost; /* in atoms */
	uint32_t odd; /* 1 if the two atoms of a step may be of two blocks */
	uint32_t split, parts_max; /* atoms between cuts, and the most parts of a row; 0 without split_tokens */
};

/* The lengths in atoms that some query sees, and where each sequence's rows begin on a line of cost (or
 * of parts); one entry more than sequences. */
struct batch {
	uint32_t atoms[ATTEND_SEQUENCES_MAX], begin[ATTEND_SEQUENCES_MAX + 1];
	uint32_t sums[THREADS];
	uint32_t shortest, longest, equal_part, spare;
};

/* The first atom that a query of the sequence sees; an even one, since atoms are read in pairs, where the one before it
 * is of the same block: of others there may be no address. */
__device__ uint32_t first_atom_of(const plan_args &a, uint32_t sequence, uint32_t tokens)
{
	const int32_t query = (int32_t)(tokens - a.queries); /* the earliest */
	int32_t first = query - (int32_t)a.window + 1;

	if (a.window == 0)
		return 0;
	for (uint32_t i = 0; i < a.ranges_max; i++) {
		const int32_t *range = a.ranges + 2 * ((size_t)sequence * a.ranges_max + i);

		if (range[0] <= range[1] && range[1] >= query && range[0] < (int32_t)tokens)
			first = min(first, range[0]);
	}
	return (uint32_t)max(first, 0) / KV_ATOM_TOKENS & (0xfffffffe | a.odd);
}

__device__ uint32_t atoms_of(const plan_args &a, uint32_t sequence, uint32_t tokens)
{
	return (tokens + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS - first_atom_of(a, sequence, tokens);
}

/* begin[i] <- the sum of cost(j) for j < i; all threads. Returns the whole sum. */
template <class Cost> __device__ uint32_t lay_out(batch &b, uint32_t n, Cost cost)
{
	const uint32_t each = (n + THREADS - 1) / THREADS, from = min(threadIdx.x * each, n),
		       to = min(from + each, n);
	uint32_t sum = 0, before = 0;

	for (uint32_t i = from; i < to; i++)
		sum += cost(i);
	b.sums[threadIdx.x] = sum;
	__syncthreads();
	for (uint32_t i = 0; i < threadIdx.x; i++)
		before += b.sums[i];
	for (uint32_t i = from; i < to; i++) {
		b.begin[i] = before;
		before += cost(i);
	}
	if (threadIdx.x == THREADS - 1)
		b.begin[n] = before;
	__syncthreads();
	return b.begin[n];
}

/* The sequence whose stretch of the line holds x; x is less than begin[n]. */
__device__ uint32_t find(const batch &b, uint32_t n, uint32_t x)
{
	uint32_t lo = 0, hi = n;

	while (hi - lo > 1) {
		uint32_t mid = (lo + hi) / 2;

		if (b.begin[mid] <= x)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* A row as one segment, but for its number of atoms. */
__device__ segment segment_of(const plan_args &a, uint32_t row)
{
	uint32_t in_sequence = row % (a.heads * a.tiles);
	segment s = {};

	s.sequence = row / (a.heads * a.tiles);
	s.head = in_sequence %
		 a.heads; /* tiles of one head apart, so that they run at once and meet in the L2 cache */
	s.tile = in_sequence / a.heads;
	s.tokens = a.kv_tokens[s.sequence];
	s.first_atom = first_atom_of(a, s.sequence, s.tokens);
	s.parts = 1;
	s.next = NO_SEGMENT;
	return s;
}

__device__ uint32_t parts_of(uint32_t atoms, uint32_t size)
{
	return max(1, (atoms + size - 1) / size);
}

/* The smallest size of part (to a few per cent) with which all rows are at most `ctas` parts; 0 if none
 * is below `limit`. */
__device__ uint32_t equal_part_of(const plan_args &a, batch &b, uint32_t share, uint32_t limit)
{
	uint32_t size =
		(share + (uint32_t)((uint64_t)(limit - share) * threadIdx.x / (THREADS - 1)) + 1) / 2 * 2;
	uint64_t parts = 0;

	if (threadIdx.x == 0)
		b.equal_part = 0xffffffff;
	__syncthreads();
	for (uint32_t i = 0; i < a.sequences; i++)
		parts += parts_of(b.atoms[i], size);
	if (parts * a.heads * a.tiles <= a.ctas)
		atomicMin(&b.equal_part, size);
	__syncthreads();
	return b.equal_part == 0xffffffff ? 0 : b.equal_part;
}

/* Every row in equal parts of at most `size` atoms. */
__device__ void plan_equal_parts(const plan_args &a, batch &b, uint32_t size)
{
	const uint32_t rows = a.heads * a.tiles;
	const uint32_t used =
		lay_out(b, a.sequences, [&](uint32_t i) { return rows * parts_of(b.atoms[i], size); });

	for (uint32_t cta = threadIdx.x; cta < a.ctas; cta += THREADS) {
		segment s = {};

		s.next = NO_SEGMENT;
		if (cta < used) {
			uint32_t sequence = find(b, a.sequences, cta),
				 in_sequence = cta - b.begin[sequence];
			uint32_t atoms = b.atoms[sequence], parts = parts_of(atoms, size);
			uint32_t part = in_sequence % parts, pairs = (atoms + 1) / 2;
			uint32_t from = (uint32_t)((uint64_t)pairs * part / parts) * 2,
				 to = (uint32_t)((uint64_t)pairs * (part + 1) / parts) * 2;

			s = segment_of(a, sequence * rows + in_sequence / parts);
			s.first_atom += from;
			s.atoms = min(to, atoms) - from;
			s.part = (uint16_t)part;
			s.parts = (uint16_t)parts;
		}
		a.segments[cta] = s;
	}
}

struct place {
	uint32_t row, atom;
};

__device__ bool before(place a, place b)
{
	return a.row < b.row || (a.row == b.row && a.atom < b.atom);
}

/* All rows laid end to end. */
struct line {
	const plan_args &a;
	const batch &b;
	uint32_t distance, length, rows_each;

	/* Where CTA `cta` begins. */
	__device__ place cut(uint32_t cta) const
	{
		uint64_t x = (uint64_t)cta * distance;

		if (x >= length || cta >= a.ctas)
			return {a.sequences * rows_each, 0};
		uint32_t sequence = find(b, a.sequences, (uint32_t)x),
			 atoms = b.atoms[sequence];
		uint32_t in_sequence = (uint32_t)x - b.begin[sequence],
			 in_row = in_sequence % (atoms + a.segment_cost);
		uint32_t row = sequence * rows_each + in_sequence / (atoms + a.segment_cost);
		uint32_t atom = in_row < a.segment_cost ? 0 : (in_row - a.segment_cost) / 2 * 2;
		uint32_t least = max(PART_MIN, distance / WASTE_DIVISOR);

		if (atom < least)
			return {row, 0};
		if (atoms - atom < least)
			return {row + 1, 0};
		return {row, atom};
	}

	/* The CTA that reads the atom at p. */
	__device__ uint32_t cta_at(place p) const
	{
		uint32_t sequence = p.row / rows_each, cost = b.atoms[sequence] + a.segment_cost;
		uint32_t cta = (b.begin[sequence] + p.row % rows_each * cost + p.atom) / distance;

		cta = min(cta, a.ctas - 1);
		while (before(p, cut(cta)))
			cta--;
		while (!before(p, cut(cta + 1)))
			cta++;
		return cta;
	}
};

__device__ void plan_line(const plan_args &a, batch &b, const line &l)
{
	for (uint32_t cta = threadIdx.x; cta < a.ctas; cta += THREADS) {
		const place from = l.cut(cta), to = l.cut(cta + 1);
		uint32_t index = cta;
		segment held = {}; /* written once it is known what follows it */

		held.next = NO_SEGMENT;
		for (uint32_t row = from.row; row < to.row || (row == to.row && to.atom > 0); row++) {
			segment s = segment_of(a, row);
			uint32_t atoms = b.atoms[s.sequence], skipped = row == from.row ? from.atom : 0;

			s.first_atom += skipped;
			s.atoms = (row == to.row ? to.atom : atoms) - skipped;
			if (s.atoms < atoms) {
				uint32_t first = l.cta_at({row, 0});

				s.part = (uint16_t)(cta - first);
				s.parts = (uint16_t)(l.cta_at({row, atoms - 1}) - first + 1);
			}
			if (held.parts > 0) {
				held.next = a.ctas + atomicAdd(&b.spare, 1);
				a.segments[index] = held;
				index = held.next;
			}
			held = s;
		}
		a.segments[index] = held;
	}
}

/* A sequence's rows cut at multiples of `split` atoms, counted from token 0; one atom before them if the first atom
 * is an odd one: of two atoms that are read together the second may be missing behind the sequence's end alone. */
struct cuts {
	uint32_t first, atoms, split, parts_most;

	/* Of the multiple that ends the first part. */
	__device__ uint32_t first_cut() const
	{
		return max(1, (first + split / 2 + split - 1) / split);
	}

	__device__ uint32_t parts() const
	{
		const uint32_t end = first + atoms, last = end < split / 2 ? 0 : (end - split / 2) / split;

		return last < first_cut() ? 1 : min(last - first_cut() + 2, parts_most);
	}

	/* Where a part begins, in atoms from the first; part parts() begins where the last one ends. */
	__device__ uint32_t begin(uint32_t part) const
	{
		return part == 0 ? 0 : part >= parts() ? atoms : ((first_cut() + part - 1) * split - first) / 2 * 2;
	}
};

__device__ cuts cuts_of(const plan_args &a, const batch &b, uint32_t sequence)
{
	return {first_atom_of(a, sequence, a.kv_tokens[sequence]), b.atoms[sequence], a.split, a.parts_max};
}

/* The parts of all rows on a line: what each costs is its atoms and a segment's cost. A CTA does those that begin in
 * its stretch. */
struct line_of_parts {
	const plan_args &a;
	const batch &b;
	uint32_t distance, rows_each;

	/* The first part that begins at x or behind it; its sequence is a.sequences if there is none. */
	__device__ void seek(uint64_t x, uint32_t *sequence, uint32_t *row, uint32_t *part) const
	{
		*row = *part = 0;
		*sequence = a.sequences;
		if (x >= b.begin[a.sequences])
			return;
		*sequence = find(b, a.sequences, (uint32_t)x);
		const cuts c = cuts_of(a, b, *sequence);
		const uint32_t cost = c.atoms + c.parts() * a.segment_cost,
			       in_sequence = (uint32_t)x - b.begin[*sequence];

		*row = in_sequence / cost;
		for (const uint32_t in_row = in_sequence % cost; *part < c.parts() && place_of(c, *part) < in_row;)
			++*part;
		if (*part == c.parts())
			step_row(sequence, row, part);
	}

	__device__ uint32_t place_of(const cuts &c, uint32_t part) const
	{
		return c.begin(part) + part * a.segment_cost;
	}

	__device__ void step_row(uint32_t *sequence, uint32_t *row, uint32_t *part) const
	{
		*part = 0;
		if (++*row == rows_each) {
			*row = 0;
			++*sequence;
		}
	}

	__device__ void plan(uint32_t cta, uint32_t *spare) const
	{
		const uint64_t end = (uint64_t)(cta + 1) * distance;
		uint32_t sequence, row, part, index = cta;
		segment held = {}; /* written once it is known what follows it */

		held.next = NO_SEGMENT;
		seek((uint64_t)cta * distance, &sequence, &row, &part);
		while (sequence < a.sequences) {
			const cuts c = cuts_of(a, b, sequence);

			if (b.begin[sequence] + row * (c.atoms + c.parts() * a.segment_cost) + place_of(c, part) >= end)
				break;
			if (held.parts > 0) {
				held.next = a.ctas + atomicAdd(spare, 1);
				a.segments[index] = held;
				index = held.next;
			}
			held = segment_of(a, sequence * rows_each + row);
			held.first_atom += c.begin(part);
			held.atoms = c.begin(part + 1) - c.begin(part);
			held.part = (uint16_t)part;
			held.parts = (uint16_t)c.parts();
			if (++part == c.parts())
				step_row(&sequence, &row, &part);
		}
		a.segments[index] = held;
	}
};

__device__ void plan_fixed(const plan_args &a, batch &b)
{
	const uint32_t rows_each = a.heads * a.tiles;
	const uint32_t cost = lay_out(b, a.sequences, [&](uint32_t sequence) {
		const cuts c = cuts_of(a, b, sequence);

		return rows_each * (c.atoms + c.parts() * a.segment_cost);
	});
	const line_of_parts l = {a, b, max(1, (cost + a.ctas - 1) / a.ctas), rows_each};

	for (uint32_t cta = threadIdx.x; cta < a.ctas; cta += THREADS)
		l.plan(cta, &b.spare);
}

__global__ void __launch_bounds__(THREADS) plan_kernel(const plan_args a)
{
	DYNAMIC_SHARED(uint32_t, room, 16);
	batch &b = *(batch *)room;
	const uint32_t rows_each = a.heads * a.tiles, rows = a.sequences * rows_each;

	if (threadIdx.x == 0) {
		b.shortest = 0xffffffff;
		b.longest = b.spare = 0;
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < a.sequences; i += THREADS) {
		b.atoms[i] = atoms_of(a, i, a.kv_tokens[i]);
		atomicMin(&b.shortest, b.atoms[i]);
		atomicMax(&b.longest, b.atoms[i]);
	}
	for (uint32_t i = threadIdx.x; i < rows; i += THREADS)
		a.arrived[i] = 0;
	__syncthreads();

	if (a.split) {
		plan_fixed(a, b);
		return;
	}
	const uint32_t cost = lay_out(b, a.sequences, [&](uint32_t i) {
		return rows_each * (b.atoms[i] + a.segment_cost);
	});
	const uint32_t share = max((cost + a.ctas - 1) / a.ctas, PART_MIN),
		       most = share + share / WASTE_DIVISOR + a.segment_cost;
	uint32_t part =
		rows <= a.ctas ? equal_part_of(a, b, max(share - min(share, a.segment_cost), PART_MIN), most) : 0;

	if (part) {
		plan_equal_parts(a, b, part);
		return;
	}
	uint32_t whole = (rows + a.ctas - 1) / a.ctas * (b.longest + a.segment_cost);
	bool regular = b.shortest == b.longest && whole <= most;

	plan_line(a, b, line{a, b, regular ? whole : share, cost, rows_each});
}

size_t aligned(size_t n)
{
	return (n + 255) / 256 * 256;
}

bool shape_sound(const struct kv_cuda_attend *a)
{
	return layout_sound(a->layout, a->geometry) && a->queries > 0 && a->queries <= 16 && a->q_heads > 0 &&
	       a->q_heads <= Q_HEADS_MAX && a->q_heads % a->layout->heads == 0 && a->sequences <= ATTEND_SEQUENCES_MAX &&
	       features_sound(&a->features) && (!a->split_tokens || a->split_tokens >= SPLIT_TOKENS_MIN) &&
	       a->split_tokens % (2 * KV_ATOM_TOKENS) == 0;
}

uint32_t segment_cost_of(const struct kv_cuda_attend *a)
{
	return SEGMENT_COST * (a->layout->head_dim_k + a->layout->head_dim_v) / 2 / a->geometry->atom_bytes;
}

/* Atoms of a sequence as long as the table of blocks lets it be. */
uint64_t table_atoms(const struct kv_cuda_attend *a)
{
	const uint64_t table = (uint64_t)a->blocks_stride * a->geometry->atoms, all = UINT32_MAX / KV_ATOM_TOKENS + 1;

	return table < all ? table : all;
}

/* Whether places on the line of rows, or of their parts, have 32 bits, and with parts their slots' columns. */
bool line_fits(const struct kv_cuda_attend *a, const struct attend_plan *p)
{
	const uint64_t parts = p->parts_max ? p->parts_max : 1;

	return p->rows * (table_atoms(a) + parts * segment_cost_of(a)) <= UINT32_MAX && parts <= PARTS_MAX &&
	       p->rows * parts * p->sizes.columns <= UINT32_MAX / 2;
}

} // namespace

enum status attend_plan_of(const struct kv_cuda_attend *a, struct attend_plan *plan)
{
	const struct kv_layout *l = a->layout;
	const uint32_t window = a->features.window;
	struct attend_plan p = {};
	int device, sms, shared;

	if (!shape_sound(a))
		return STATUS_INVALID;
	if (!kv_cuda_attend_supported(l->k_format, l->v_format) || !attend_dims_built({l->head_dim_k, l->head_dim_v}))
		return STATUS_UNSUPPORTED;
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
		return STATUS_INTERNAL;
	const enum status code = code_is_portable(&p.portable);

	if (code != STATUS_OK)
		return code;

	p.window = !window || (l->window && l->window < window) ? l->window : window;
	p.window = p.window < WINDOW_MAX ? p.window : WINDOW_MAX;
	p.columns = a->queries * (a->q_heads / l->heads);
	const bool integer_v = format_integer(l->v_format), integer_k = format_integer(l->k_format);

	p.sizes = attend_sizes_of(a->geometry->atom_bytes, integer_v,
				  integer_v && (format_codes(l->v_format) == KV_CODES_ZERO_POINT || !integer_k), l->head_dim_k,
				  l->head_dim_v,
				  p.columns <= 4 ? 4
				  : p.columns > 8 && wide_tiles(integer_k, integer_v, l->head_dim_k, l->head_dim_v) ? 16
												     : 8,
				  p.portable);
	if (p.sizes.bytes > (uint32_t)shared)
		return STATUS_UNSUPPORTED;
	p.tiles = (p.columns + p.sizes.columns - 1) / p.sizes.columns;
	p.ctas = (uint32_t)sms * p.sizes.ctas_per_sm;
	if ((uint64_t)a->sequences * l->heads * p.tiles > UINT32_MAX / 2)
		return STATUS_INVALID;
	p.rows = a->sequences * l->heads * p.tiles;
	if (a->split_tokens)
		p.parts_max = (uint32_t)(table_atoms(a) / (a->split_tokens / KV_ATOM_TOKENS)) + 1;
	if (!line_fits(a, &p))
		return STATUS_INVALID;

	const size_t parts = (size_t)p.rows * p.parts_max,
		     slots = (p.parts_max ? parts : 2 * (size_t)p.ctas) * p.sizes.columns;
	size_t at = 0;

	p.segments_at = at;
	at += aligned((2 * (size_t)p.ctas + p.rows + parts) * sizeof(struct segment));
	p.arrived_at = at;
	at += aligned(p.rows * sizeof(uint32_t));
	p.sums_at = at;
	at += aligned(slots * 8);
	p.partials_at = at;
	at += aligned(slots * l->head_dim_v * 4);
	p.bytes = at;
	*plan = p;
	return STATUS_OK;
}

extern "C" enum status kv_cuda_attend_workspace(const struct kv_cuda_attend *a, size_t *bytes)
{
	struct attend_plan plan;
	const enum status status = attend_plan_of(a, &plan);

	if (status == STATUS_OK)
		*bytes = plan.bytes;
	return status;
}

extern "C" enum status kv_cuda_attend_plan(const struct kv_cuda_attend *a, cudaStream_t stream)
{
	struct attend_plan plan;
	enum status status = attend_plan_of(a, &plan);

	if (status != STATUS_OK)
		return status;
	if (!a->kv_tokens || !a->workspace || !aligned_to(4, {a->kv_tokens}) || !aligned_to(256, {a->workspace}))
		return STATUS_INVALID;
	if (a->workspace_bytes < plan.bytes)
		return STATUS_EXHAUSTED;

	uint8_t *workspace = (uint8_t *)a->workspace;
	plan_args args = {};

	args.kv_tokens = a->kv_tokens;
	args.segments = (segment *)(workspace + plan.segments_at);
	args.arrived = (uint32_t *)(workspace + plan.arrived_at);
	args.sequences = a->sequences;
	args.heads = a->layout->heads;
	args.tiles = plan.tiles;
	args.ctas = plan.ctas;
	args.queries = a->queries;
	args.window = plan.window;
	args.ranges = a->features.ranges;
	args.ranges_max = a->features.ranges_max;
	args.segment_cost = segment_cost_of(a);
	args.odd = a->geometry->atoms % 2;
	args.split = a->split_tokens / KV_ATOM_TOKENS;
	args.parts_max = plan.parts_max;
	if (cudaFuncSetAttribute(plan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 sizeof(batch)) != cudaSuccess)
		return STATUS_INTERNAL;
	launch_kernel(plan_kernel, 1, THREADS, sizeof(batch), stream, args);
	return launched();
}
