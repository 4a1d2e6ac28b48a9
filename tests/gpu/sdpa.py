"""PyTorch's scaled_dot_product_attention (cuDNN, bf16) on the shapes of bench.cu, timed the same way.

Prints one JSON object a line.
"""
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(32, 32, 8, 8192, 128), (128, 32, 8, 8192, 128), (16, 32, 8, 16384, 128), (8, 64, 8, 32768, 128),
          (64, 32, 8, 4096, 128), (32, 32, 32, 4096, 128), (32, 64, 4, 8192, 128), (1, 32, 8, 65536, 128),
          (32, 32, 8, 16384, 64), (32, 32, 8, 8192, 96), (32, 32, 8, 8192, 192), (32, 32, 8, 8192, 256)]
ROUNDS, REPLAYS = 4, 21


def time_shape(batch, q_heads, kv_heads, tokens, dim):
    sets = 2 if batch * kv_heads * tokens * dim > 1 << 29 else 3
    q = torch.randn(batch, q_heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    kv = [torch.randn(2, batch, kv_heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
          for _ in range(sets)]

    def step():
        for i in range(sets * ROUNDS):
            k, v = kv[i % sets]
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=q_heads != kv_heads)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    times = []
    for _ in range(REPLAYS + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / (sets * ROUNDS))
    return statistics.median(times[3:])


for shape in SHAPES:
    try:
        us = time_shape(*shape)
    except RuntimeError as error:  # no kernel for this head dim
        if shape[4] == 128 or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        print(json.dumps({"bench": "sdpa", "backend": "cudnn", "tokens": shape[3], "head_dim": shape[4],
                          "error": str(error).splitlines()[0]}), flush=True)
        continue
    size = 2 * shape[0] * shape[2] * shape[3] * shape[4] * 2
    print(json.dumps({"bench": "sdpa", "backend": "cudnn", "dtype": "bf16", "torch": torch.__version__,
                      "sequences": shape[0], "q_heads": shape[1], "kv_heads": shape[2], "tokens": shape[3],
                      "head_dim": shape[4], "us": round(us, 2), "gbs": round(size / us / 1e3)}), flush=True)
