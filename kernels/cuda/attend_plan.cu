/* Splitting an attention step over the device (see plan.cuh and cuda_kernels.h).
 *
 * Work is counted in atoms, with a fixed cost a segment for what its begin and end take. Where there are
 * no more rows than CTAs, every row is cut into equal parts, as many as let all parts run at once, if
 * that wastes little. Otherwise rows are laid end to end and cut at equal distances, a cut near a row's
 * end moving to it; with equal lengths the distance is a whole number of rows, if that wastes little.
 * Every CTA works its own share out, by a thread of one block.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/plan.cuh"

namespace
{

constexpr uint32_t THREADS = 256;
constexpr uint32_t SEGMENT_COST =
	64; /* atoms that could be read in the time that a segment costs by itself */
constexpr uint32_t PART_MIN = 32;      /* atoms of a part: four a warp */
constexpr uint32_t WASTE_DIVISOR = 16; /* of a CTA's share that a regular cut may waste */

struct plan_args {
	const uint32_t *kv_tokens;
	segment *segments;
	uint32_t *arrived;
	uint32_t sequences, heads, tiles, ctas;
};

/* The lengths, and where each sequence's rows begin on a line of cost (or of parts); one entry more than
 * sequences. */
struct batch {
	uint32_t tokens[ATTEND_SEQUENCES_MAX], begin[ATTEND_SEQUENCES_MAX + 1];
	uint32_t sums[THREADS];
	uint32_t shortest, longest, equal_part, spare;
};

__device__ uint32_t atoms_of(uint32_t tokens)
{
	return (tokens + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS;
}

/* begin[i] <- the sum of cost(tokens[j]) for j < i; all threads. Returns the whole sum. */
template <class Cost> __device__ uint32_t lay_out(batch &b, uint32_t n, Cost cost)
{
	const uint32_t each = (n + THREADS - 1) / THREADS, from = min(threadIdx.x * each, n),
		       to = min(from + each, n);
	uint32_t sum = 0, before = 0;

	for (uint32_t i = from; i < to; i++)
		sum += cost(b.tokens[i]);
	b.sums[threadIdx.x] = sum;
	__syncthreads();
	for (uint32_t i = 0; i < threadIdx.x; i++)
		before += b.sums[i];
	for (uint32_t i = from; i < to; i++) {
		b.begin[i] = before;
		before += cost(b.tokens[i]);
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

__device__ segment segment_of(const plan_args &a, const batch &b, uint32_t row)
{
	uint32_t in_sequence = row % (a.heads * a.tiles);
	segment s = {};

	s.sequence = row / (a.heads * a.tiles);
	s.head = in_sequence %
		 a.heads; /* tiles of one head apart, so that they run at once and meet in the L2 cache */
	s.tile = in_sequence / a.heads;
	s.tokens = b.tokens[s.sequence];
	s.parts = 1;
	s.next = NO_SEGMENT;
	return s;
}

__device__ uint32_t parts_of(uint32_t tokens, uint32_t size)
{
	return max(1, (atoms_of(tokens) + size - 1) / size);
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
		parts += parts_of(b.tokens[i], size);
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
		lay_out(b, a.sequences, [=](uint32_t tokens) { return rows * parts_of(tokens, size); });

	for (uint32_t cta = threadIdx.x; cta < a.ctas; cta += THREADS) {
		segment s = {};

		s.next = NO_SEGMENT;
		if (cta < used) {
			uint32_t sequence = find(b, a.sequences, cta),
				 in_sequence = cta - b.begin[sequence];
			uint32_t atoms = atoms_of(b.tokens[sequence]),
				 parts = parts_of(b.tokens[sequence], size);
			uint32_t part = in_sequence % parts, pairs = (atoms + 1) / 2;

			s = segment_of(a, b, sequence * rows + in_sequence / parts);
			s.first_atom = (uint32_t)((uint64_t)pairs * part / parts) * 2;
			s.atoms = min((uint32_t)((uint64_t)pairs * (part + 1) / parts) * 2, atoms) -
				  s.first_atom;
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
			 atoms = atoms_of(b.tokens[sequence]);
		uint32_t in_sequence = (uint32_t)x - b.begin[sequence],
			 in_row = in_sequence % (atoms + SEGMENT_COST);
		uint32_t row = sequence * rows_each + in_sequence / (atoms + SEGMENT_COST);
		uint32_t atom = in_row < SEGMENT_COST ? 0 : (in_row - SEGMENT_COST) / 2 * 2;
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
		uint32_t sequence = p.row / rows_each, cost = atoms_of(b.tokens[sequence]) + SEGMENT_COST;
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
			segment s = segment_of(a, b, row);
			uint32_t atoms = atoms_of(s.tokens);

			s.first_atom = row == from.row ? from.atom : 0;
			s.atoms = (row == to.row ? to.atom : atoms) - s.first_atom;
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

__global__ void __launch_bounds__(THREADS) plan_kernel(const plan_args a)
{
	extern __shared__ uint32_t room[];
	batch &b = *(batch *)room;
	const uint32_t rows_each = a.heads * a.tiles, rows = a.sequences * rows_each;

	if (threadIdx.x == 0) {
		b.shortest = 0xffffffff;
		b.longest = b.spare = 0;
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < a.sequences; i += THREADS) {
		b.tokens[i] = a.kv_tokens[i];
		atomicMin(&b.shortest, atoms_of(b.tokens[i]));
		atomicMax(&b.longest, atoms_of(b.tokens[i]));
	}
	for (uint32_t i = threadIdx.x; i < rows; i += THREADS)
		a.arrived[i] = 0;
	__syncthreads();

	const uint32_t cost = lay_out(b, a.sequences, [=](uint32_t tokens) {
		return rows_each * (atoms_of(tokens) + SEGMENT_COST);
	});
	const uint32_t share = max((cost + a.ctas - 1) / a.ctas, PART_MIN),
		       most = share + share / WASTE_DIVISOR + SEGMENT_COST;
	uint32_t part =
		rows <= a.ctas ? equal_part_of(a, b, max(share - SEGMENT_COST, PART_MIN), most) : 0;

	if (part) {
		plan_equal_parts(a, b, part);
		return;
	}
	uint32_t whole = (rows + a.ctas - 1) / a.ctas * (b.longest + SEGMENT_COST);
	bool regular = b.shortest == b.longest && whole <= most;

	plan_line(a, b, line{a, b, regular ? whole : share, cost, rows_each});
}

size_t aligned(size_t n)
{
	return (n + 255) / 256 * 256;
}

bool head_dim_built(uint32_t d)
{
#ifdef TERRACE_CUDA_ALL
	return d == 64 || d == 96 || d == 128 || d == 192 || d == 256;
#else
	return d == 128;
#endif
}

} // namespace

enum status attend_plan_of(const struct kv_cuda_attend *a, struct attend_plan *plan)
{
	const struct kv_layout *l = a->layout;
	int device, sms, major;

	if (!l || !a->geometry || a->queries == 0 || a->queries > 16 || a->q_heads == 0 ||
	    a->q_heads % l->heads || a->sequences > ATTEND_SEQUENCES_MAX)
		return STATUS_INVALID;
	if (l->k_format != l->v_format || (l->k_format != KV_TQ4 && l->k_format != KV_INT4_PTH) ||
	    l->window || l->head_dim_k != l->head_dim_v || !head_dim_built(l->head_dim_k))
		return STATUS_UNSUPPORTED;
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
		return STATUS_INTERNAL;
	if (major < 9) /* bulk copies and transaction barriers */
		return STATUS_UNSUPPORTED;

	struct attend_plan p = {};
	size_t at = 0;

	p.columns = a->queries * (a->q_heads / l->heads);
	p.tile_columns = tile_columns_of(p.columns);
	p.tiles = (p.columns + p.tile_columns - 1) / p.tile_columns;
	p.ctas = (uint32_t)sms * ctas_per_sm(l->head_dim_k, p.tile_columns);
	if ((uint64_t)a->sequences * l->heads * p.tiles > UINT32_MAX / 2)
		return STATUS_INVALID;
	p.rows = a->sequences * l->heads * p.tiles;
	p.segments_at = at;
	at += aligned((2 * (size_t)p.ctas + p.rows) * sizeof(struct segment));
	p.arrived_at = at;
	at += aligned(p.rows * sizeof(uint32_t));
	p.sums_at = at;
	at += aligned(2 * (size_t)p.ctas * p.tile_columns * 8);
	p.partials_at = at;
	at += aligned(2 * (size_t)p.ctas * p.tile_columns * l->head_dim_k * 4);
	p.bytes = at;
	*plan = p;
	return STATUS_OK;
}

extern "C" size_t kv_cuda_attend_workspace(const struct kv_cuda_attend *a)
{
	struct attend_plan plan;

	return attend_plan_of(a, &plan) == STATUS_OK ? plan.bytes : 0;
}

extern "C" enum status kv_cuda_attend_plan(const struct kv_cuda_attend *a, cudaStream_t stream)
{
	struct attend_plan plan;
	enum status status = attend_plan_of(a, &plan);

	if (status != STATUS_OK)
		return status;
	if (!a->kv_tokens || !a->workspace)
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
	if (cudaFuncSetAttribute(plan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
				 sizeof(batch)) != cudaSuccess)
		return STATUS_INTERNAL;
	plan_kernel<<<1, THREADS, sizeof(batch), stream>>>(args);
	return cudaGetLastError() == cudaSuccess ? STATUS_OK : STATUS_INTERNAL;
}
