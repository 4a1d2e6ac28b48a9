/* Graphs in the attention tests. */
#ifndef TERRACE_TESTS_GPU_ATTEND_GRAPH_H
#define TERRACE_TESTS_GPU_ATTEND_GRAPH_H

#include <mutex>

#include "tests/gpu/gpu.h"

/* What `body` enqueues on a stream, as a graph; one thread at a time captures. */
struct captured_graph {
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	template <class Body> captured_graph(cudaStream_t stream, Body body)
	{
		static std::mutex one;
		std::lock_guard<std::mutex> lock(one);

		CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
		body();
		CUDA(cudaStreamEndCapture(stream, &graph));
		CUDA(cudaGraphInstantiate(&exec, graph, 0));
	}
	captured_graph(const captured_graph &) = delete;
	~captured_graph()
	{
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

/* Decode of 36 layers in one graph, replayed for 1,000 steps while the lengths grow: every layer's
 * outputs must be those of the same step run eagerly. */
bool run_growing_graph(enum kv_format f);

#endif
