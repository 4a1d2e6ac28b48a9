/* The attention kernel, and its launch for one pair of formats (see attend.cu). */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_KERNEL_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_KERNEL_CUH

#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/attend_features.cuh"
#include "kernels/cuda/attend_feed.cuh"
#include "kernels/cuda/attend_finish.cuh"
#include "kernels/cuda/attend_query.cuh"
#include "kernels/cuda/attend_weigh.cuh"

/* Where a step is: for what it wants to know of its tokens, as that was told. */
template <class S> struct step_place {
	uint32_t told;          /* shared address */
	uint32_t token;         /* the lane's first */
	float behind[S::TILES]; /* its position less the columns', for scores on a slant */
};

/* What is to be done with a column's scores of a step, its first token + 8i at i, before they are weights. EDGE: not
 * all of the step's tokens are seen by all columns. */
template <class S, enum scoring SCORING, bool EDGE>
DEVICE auto finish_scores(const attend_args &a, const step_place<S> &place, uint32_t tokens, uint32_t n, const column &c,
			  scored (&x)[2 * S::STEP])
{
	constexpr bool FEATURES = SCORING != SCORES_AS_THEY_ARE;

	if constexpr (SCORING == SCORES_BY_EACH_FEATURE || EDGE) {
		const told_column told = told_of_column(place.told, 4 * n + threadIdx.x % 4);
		const uint32_t token = place.token;

		if constexpr (SCORING == SCORES_BY_EACH_FEATURE)
			add_features<EDGE>(a, tokens, told, token, x);
#pragma unroll
		for (uint32_t i = 0; EDGE && i < 2 * S::STEP; i++) {
			if (token + 8 * i >= told.to || (FEATURES && token + 8 * i < told.from)) {
				x[i].x = -INFINITY;
				x[i].unit = 1;
			}
			/* A scale past the end may be anything, a NaN too. */
			x[i].v_scale = token + 8 * i < tokens ? x[i].v_scale : 0;
		}
	}
	if constexpr (SCORING == SCORES_ON_A_SLANT || SCORING == CAPPED_SCORES_ON_A_SLANT) {
		static_assert(!EDGE, "a token that is not seen has a score of its own");
		return slant_of<SCORING == CAPPED_SCORES_ON_A_SLANT>(a, c, place.behind[n]);
	} else {
		return level();
	}
}

/* A lane's first token of a step. */
template <class S> DEVICE uint32_t token_of(const feed<S> &in, uint32_t step)
{
	return (in.first() + step * S::STEP) * KV_ATOM_TOKENS + in.lane / 4;
}

/* One step of a warp's run. */
template <class S, enum scoring SCORING, bool EDGE>
DEVICE void attend_step(feed<S> &in, const attend_args &args, const step_place<S> &place, uint32_t step,
			const typename S::query_type &q, column (&c)[S::TILES],
			typename S::V::sum_type (&o)[S::TILES][S::DV / 16][4])
{
	using K = typename S::K;
	using V = typename S::V;
	const uint32_t g = in.lane / 4, at = in.wait(), tokens = EDGE ? told_segment(place.told).tokens : 0;
	constexpr bool PAIRED = K::PAIRED && S::TILES == 1 && S::STEP == 2;
	scored score[S::TILES][2 * S::STEP];
	uint32_t p[S::TILES][2];
	typename K::sum_type sum[S::STEP][S::TILES][K::SUMS][4] = {};

	if constexpr (PAIRED)
		K::dot_pair(at, at + in.second, in.lane, q, sum);
#pragma unroll
	for (uint32_t a = 0; a < S::STEP; a++) {
		const uint32_t atom = at + a * in.second;

		if constexpr (!PAIRED)
			K::dot(atom, in.lane, q, sum[a]);
		const scale_pair k = K::scales(opaque(atom + g * K::SCALE_BYTES * 2) + S::K_CODES),
				 v = V::scales(opaque(atom + g * V::SCALE_BYTES * 2) + S::V_AT + S::V_CODES);
#pragma unroll
		for (uint32_t n = 0; n < S::TILES; n++)
#pragma unroll
			for (uint32_t r = 0; r < 2; r++) {
				score[n][2 * a + r] = {
					K::template score<S::TILES>(sum[a][n], r, c[n].unit, c[n].query_term, k),
					K::template IN_POWERS<S::TILES> ? k.scale[r] : k.scale[r] * c[n].unit, v.scale[r],
					v.zero[r]};
				if constexpr (SCORING == CAPPED_SCORES_ON_A_SLANT)
					cap_score(args, score[n][2 * a + r]);
			}
	}
	decltype(finish_scores<S, SCORING, EDGE>(args, place, 0, 0, c[0], score[0])) line[S::TILES];

#pragma unroll
	for (uint32_t n = 0; n < S::TILES; n++)
		line[n] = finish_scores<S, SCORING, EDGE>(args, place, tokens, n, c[n], score[n]);
	weigh<V, EDGE>(c, o, score, line, p);
	V::accumulate(at + S::V_AT, in.second, in.lane, p, o, EDGE ? tokens - (place.token - g) : 32,
		      [&] { in.release(step); });
}

/* Steps that every column sees in full. */
template <class S, enum scoring SCORING>
DEVICE void attend_interior(feed<S> &in, const attend_args &args, uint32_t told, uint32_t from, uint32_t to,
			    const typename S::query_type &q, column (&c)[S::TILES],
			    typename S::V::sum_type (&o)[S::TILES][S::DV / 16][4])
{
	constexpr uint32_t STEP_TOKENS = S::STEP * KV_ATOM_TOKENS;
	step_place<S> place = {told, token_of(in, from), {}};

	if constexpr (SCORING == SCORES_ON_A_SLANT || SCORING == CAPPED_SCORES_ON_A_SLANT)
#pragma unroll
		for (uint32_t n = 0; n < S::TILES; n++)
			place.behind[n] = (float)((int32_t)place.token - told_of_column(told, 4 * n + in.lane % 4).position);
	for (uint32_t step = from; step < to; step++) {
		attend_step<S, SCORING, false>(in, args, place, step, q, c, o);
		place.token += STEP_TOKENS;
#pragma unroll
		for (uint32_t n = 0; n < S::TILES; n++)
			place.behind[n] += STEP_TOKENS;
	}
}

/* All of a warp's run: steps that every column sees in full are done without looking at positions. */
template <class S, bool FEATURES>
DEVICE void attend_run(feed<S> &in, const attend_args &args, uint32_t told, const typename S::query_type &q,
		       column (&c)[S::TILES], typename S::V::sum_type (&o)[S::TILES][S::DV / 16][4])
{
	constexpr enum scoring ALL = FEATURES ? SCORES_BY_EACH_FEATURE : SCORES_AS_THEY_ARE;
	const enum scoring scoring = FEATURES ? scoring_of(args) : ALL;
	constexpr uint32_t STEP_TOKENS = S::STEP * KV_ATOM_TOKENS;
	const uint32_t steps = (in.atoms + S::STEP - 1) / S::STEP, begin = in.first() * KV_ATOM_TOKENS,
		       tokens = told_segment(told).tokens;
	uint32_t interior_from = 0, interior_to = tokens - min(tokens, args.queries - 1), step = 0;

	if constexpr (FEATURES)
		find_interior<S>(args, told, tokens, &interior_from, &interior_to);

	const uint32_t inner_from = (max(interior_from, begin) - begin + STEP_TOKENS - 1) / STEP_TOKENS,
		       inner_to = min((max(interior_to, begin) - begin) / STEP_TOKENS, steps);

	while (step < steps) {
		if (step >= inner_from && step < inner_to) {
			const uint32_t until = min(inner_to, (step / HALVING_STEPS + 1) * HALVING_STEPS);

			if (FEATURES && scoring == SCORES_ON_A_SLANT)
				attend_interior<S, SCORES_ON_A_SLANT>(in, args, told, step, until, q, c, o);
			else if (FEATURES && scoring == CAPPED_SCORES_ON_A_SLANT)
				attend_interior<S, CAPPED_SCORES_ON_A_SLANT>(in, args, told, step, until, q, c, o);
			else
				attend_interior<S, ALL>(in, args, told, step, until, q, c, o);
			step = until;
		} else {
			const step_place<S> place = {told, token_of(in, step), {}};

			attend_step<S, ALL, true>(in, args, place, step++, q, c, o);
		}
		if constexpr (S::V::INTEGER)
			if (step % HALVING_STEPS == 0)
#pragma unroll
				for (uint32_t n = 0; n < S::TILES; n++)
					set_unit<S::V::template OFFSET<S::TILES>>(c[n], o[n], c[n].max + 1);
	}
}

/* Begins to load a segment: this warp's queries and run of atoms. */
template <class S, bool FEATURES>
DEVICE void begin_segment(feed<S> &in, const attend_args &a, const segment &s, query_bits<S, FEATURES> &q,
			  bool *waited)
{
	const uint32_t warp = threadIdx.x / 32, pairs = (s.atoms + 1) / 2;
	const uint32_t from = pairs * warp / S::WARPS * 2,
		       to = min(pairs * (warp + 1) / S::WARPS * 2, s.atoms);
	const uint32_t newest = (s.tokens - min(s.tokens, a.queries)) / KV_ATOM_TOKENS;
	const bool early = !*waited && s.first_atom + min(to, from + S::STEP) <= newest;

	if (!*waited && !early)
		wait_for_previous_kernel(); /* the first stage takes in the newest tokens */
	if (!early)
		q.fetch(a, s);
	in.begin(a, s, s.first_atom + from, to > from ? to - from : 0);
	if (early) {
		wait_for_previous_kernel();
		q.fetch(a, s);
	}
	in.fill();
	*waited = true;
}

template <class K, class V, int TILES, bool FEATURES>
__global__ void __launch_bounds__(32 * shape<K, V, TILES>::WARPS, shape<K, V, TILES>::CTAS)
	attend_kernel(const __grid_constant__ attend_args a)
{
	using S = shape<K, V, TILES>;
	DYNAMIC_SHARED(uint8_t, shared, 128);
	bool waited = !a.settled;
	typename S::query_type q;
	column c[TILES];
	feed<S> in;
	const uint32_t told = shared_address(shared) + S::TOLD_AT;

	in.init(shared);
	if (!a.settled)
		wait_for_previous_kernel();

	segment s = a.segments[blockIdx.x];

	/* If queries come in registers, the first segment's by themselves: those of the others are on their way while
	 * a segment ends, which leaves few registers, and what is then put elsewhere is waited for at once. */
	constexpr bool APART = !query_bits<S, FEATURES>::STAGED;
	query_bits<S, FEATURES> staged(shared);

	if (s.parts > 0) {
		query_bits<S, FEATURES> first(shared);

		begin_segment(in, a, s, APART ? first : staged, &waited);
		if (APART)
			load_query<S, FEATURES>(a, s, first, shared, q, c);
	}
	while (s.parts > 0) {
		segment next = {};
		query_bits<S, FEATURES> registers(shared), &bits = APART ? registers : staged;
		typename V::sum_type o[TILES][S::DV / 16][4] = {};

		if (!APART)
			load_query<S, FEATURES>(a, s, bits, shared, q, c);
		attend_run<S, FEATURES>(in, a, told, q, c, o);
		s = told_segment(told);
		if (s.next == NO_SEGMENT) {
			let_next_kernel_start();
		} else {
			next = a.segments[s.next];
			begin_segment(in, a, next, bits, &waited);
		}
		finish_segment<S>(a, s, c, o, shared);
		__syncthreads();
		s = next;
		if (APART && s.parts > 0)
			load_query<S, FEATURES>(a, s, bits, shared, q, c);
	}
	if (!waited)
		wait_for_previous_kernel();
}

template <class K, class V, int TILES, bool FEATURES>
enum status launch_kernel(const attend_args &args, const attend_plan &plan, cudaStream_t stream)
{
	cudaLaunchAttribute overlap = {};
	cudaLaunchConfig_t config = {};

	overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	overlap.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = dim3(plan.ctas);
	config.blockDim = dim3(32 * plan.sizes.warps);
	config.dynamicSmemBytes = plan.sizes.bytes;
	config.stream = stream;
	config.attrs = &overlap;
	config.numAttrs = plan.portable ? 0 : 1;
	if (cudaFuncSetAttribute(attend_kernel<K, V, TILES, FEATURES>,
				 cudaFuncAttributeMaxDynamicSharedMemorySize,
				 (int)plan.sizes.bytes) != cudaSuccess)
		return shared_memory_refused();
	return cudaLaunchKernelEx(&config, attend_kernel<K, V, TILES, FEATURES>, args) == cudaSuccess ? STATUS_OK : launched();
}

template <class K, class V>
enum status launch_dims(const attend_args &args, const attend_plan &plan, cudaStream_t stream)
{
	const struct kv_attend_features &f = args.features;
	const bool features = f.window || f.softcap > 0 || f.alibi || f.tree_bias || f.ranges_max;

	if constexpr (wide_tiles(K::ELEMENTS == 4, V::INTEGER, K::D, V::D))
		if (plan.sizes.columns == 16)
			return features ? launch_kernel<K, V, 4, true>(args, plan, stream)
					: launch_kernel<K, V, 4, false>(args, plan, stream);
	if (plan.sizes.columns == 4)
		return features ? launch_kernel<K, V, 1, true>(args, plan, stream)
				: launch_kernel<K, V, 1, false>(args, plan, stream);
	return features ? launch_kernel<K, V, 2, true>(args, plan, stream)
			: launch_kernel<K, V, 2, false>(args, plan, stream);
}

template <template <int> class K, template <int> class V>
enum status attend_launch(const attend_args &args, const attend_plan &plan, head_dims d, cudaStream_t stream)
{
#define ATTEND_LAUNCH(DK, DV) \
	if (d.k == DK && d.v == DV) \
		return launch_dims<K<DK>, V<DV>>(args, plan, stream);
	ATTEND_DIMS(ATTEND_LAUNCH)
#undef ATTEND_LAUNCH
	return STATUS_UNSUPPORTED;
}

#endif
