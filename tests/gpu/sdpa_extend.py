"""PyTorch's scaled_dot_product_attention over bf16 K and V on the shapes of bench_extend.cu, timed the same way.

New tokens at the end of a sequence: causal, aligned to the lower right. cuDNN is given the prefix and the new tokens' own
square as two calls, as engines do (in one call it wants the mask as a tensor, which takes twice as long): "cudnn" is these
two alone, "cudnn_merged" what a user of the result waits for, with their log-sum-exps and a merge by four small kernels.
Flash attention takes both at once. Prints one JSON object a line.
"""
import json
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

SHAPES = [(1, 32, 8, 32768, 512), (1, 32, 8, 32768, 2048), (8, 32, 8, 8192, 256), (1, 32, 8, 8192, 2048)]
DIM, SETS, ROUNDS, REPLAYS = 128, 2, 2, 21
REST = 0.2  # seconds: what ran right before costs several percent


def attend(q, k, v, **more):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **more)


def attend_merged(q, k, v, prefix):
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, lse = cudnn(q, k[:, :, :prefix], v[:, :, :prefix], None, True)[:2]
    own, own_lse = cudnn(q, k[:, :, prefix:], v[:, :, prefix:], None, True, 0.0, True)[:2]
    weight = torch.sigmoid(lse - own_lse).to(own.dtype)
    return torch.lerp(own, out, weight.reshape(own.shape[:-1] + (1,)))


def time_graph(step):
    step()
    torch.cuda.synchronize()
    time.sleep(REST)
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
        times.append(begin.elapsed_time(end) * 1000 / (SETS * ROUNDS))
    return statistics.median(times[3:])


def run(backend, name, batch, q_heads, kv_heads, prefix, new, dtype):
    q = torch.randn(batch, q_heads, new, DIM, device="cuda", dtype=dtype)
    kv = [torch.randn(2, batch, kv_heads, prefix + new, DIM, device="cuda", dtype=dtype) for _ in range(SETS)]

    def both():
        for i in range(SETS * ROUNDS):
            k, v = kv[i % SETS]
            if name == "cudnn":
                attend(q, k[:, :, :prefix], v[:, :, :prefix])
                attend(q, k[:, :, prefix:], v[:, :, prefix:], is_causal=True)
            elif name == "cudnn_merged":
                attend_merged(q, k, v, prefix)
            else:
                attend(q, k, v, attn_mask=causal_lower_right(new, prefix + new))

    try:
        with sdpa_kernel(backend):
            us = time_graph(both)
    except RuntimeError as error:
        print(json.dumps({"bench": "sdpa_extend", "backend": name, "prefix": prefix, "new": new,
                          "error": str(error).splitlines()[0]}), flush=True)
        return
    seen = new * prefix + new * (new + 1) / 2
    print(json.dumps({"bench": "sdpa_extend", "backend": name, "dtype": str(dtype).split(".")[1],
                      "torch": torch.__version__, "sequences": batch, "q_heads": q_heads, "kv_heads": kv_heads,
                      "head_dim": DIM, "prefix": prefix, "new": new, "us": round(us, 1),
                      "tflops": round(4 * seen * DIM * q_heads * batch / us / 1e6, 1)}), flush=True)


for shape in SHAPES:
    run(SDPBackend.CUDNN_ATTENTION, "cudnn", *shape, torch.bfloat16)
for shape in SHAPES[:2]:
    run(SDPBackend.CUDNN_ATTENTION, "cudnn_merged", *shape, torch.bfloat16)
    run(SDPBackend.FLASH_ATTENTION, "flash", *shape, torch.bfloat16)
