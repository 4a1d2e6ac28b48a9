/* Graphs in the attention tests. */
#ifndef TERRACE_TESTS_GPU_ATTEND_GRAPH_H
#define TERRACE_TESTS_GPU_ATTEND_GRAPH_H

#include "tests/gpu/gpu.h"

/* What `body` enqueues on a stream, as a graph. Not to be made by a thread that holds device_use shared. */
struct captured_graph {
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	template <class Body> captured_graph(cudaStream_t stream, Body body)
	{
		const device_use use(true);

		CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
		body();
		CUDA(cudaStreamEndCapture(stream, &graph));
		CUDA(cudaGraphInstantiate(&exec, graph, 0));
	}
	captured_graph(const captured_graph &) = delete;
	~captured_graph()
	{
		const device_use use;

		cudaGraphExecDestroy(exec);
		cudaGraphDestroy(graph);
	}
	void launch(cudaStream_t stream)
	{
		CUDA(cudaGraphLaunch(exec, stream));
	}
};

static inline bool expect_ok(enum status s, const char *what)
{
	if (s != STATUS_OK)
		fprintf(stderr, "%s: status %d (%s)\n", what, s, cudaGetErrorString(cudaGetLastError()));
	return s == STATUS_OK;
}

enum { DECODE_SEQUENCES = 3 };

/* Tokens of the sequences before the first step, and what each step adds: at most `queries`. */
struct decode_growth {
	uint32_t first[DECODE_SEQUENCES], by[DECODE_SEQUENCES];
};

struct decode_case {
	enum kv_format k, v;
	uint32_t layers, steps, queries;
	decode_growth grown;
};

/* Decode of all layers in one graph, replayed for so many steps while the lengths grow, with nothing from the
 * host but the launches: every layer's outputs of every step, and the blocks, must be those of the same steps
 * run eagerly. Prints a line, and with `row` a JSON object of what a step took. */
bool run_growing_graph(const decode_case &c, bool row);

#endif
