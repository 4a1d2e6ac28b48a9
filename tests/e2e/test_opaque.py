#!/usr/bin/python3
"""Opaque layouts, end to end: `test_opaque.py TERRACED TERRACECTL LIBTERRACE SIM_FOLDER [TEST]`.

Pages of another engine's own format are given back bit for bit, over an orderly restart and over a kill; terracectl shows them;
what makes no sense is refused with a sentence.

data/golden_deepseek_v4 has pages of the KV cache of DeepSeek-V4 in its three forms, as vLLM's published Triton kernels (fused
compress, RMSNorm, RoPE, quantise, insert) wrote them on an H200: four pages a file, of 8 entries each; an entry stands for 4
tokens, and what no kernel wrote is 0. An entry of `sparse` has 448 dims of FP8 in blocks of 64 with UE8M0 scales and 64 of rope
in bf16; of `indexer_fp8` 128 dims of FP8 and a float32 scale; of `indexer_mxfp4` 128 of E2M1 with a UE8M0 scale per 32.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import grpc

TERRACED, TERRACECTL, LIBRARY, SIM = sys.argv[1:5]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "client", "python")]
sys.dont_write_bytecode = True
import terrace  # noqa: E402
from daemon import CALL_S, key, keys, pb, running, wait_for  # noqa: E402

SMALL = ("--host-bytes", "16MiB", "--extent-bytes", "1MiB", "--slab-bytes", "2MiB")
PAGES = 4
TOKENS = 32  # of a page of 8 entries, each of 4 tokens
FORMS = {"sparse": 4672, "indexer_fp8": 1056, "indexer_mxfp4": 544}
LAYOUTS = [terrace.Layout.opaque("deepseek-v4", "vllm/deepseek_v4_%s/1" % form, size, block_tokens=TOKENS) for form, size in FORMS.items()]
KEYS = [key(n) for n in range(PAGES)]


def golden(form):
    with open(os.path.join(HERE, os.pardir, "data", "golden_deepseek_v4", form + ".bin"), "rb") as pages:
        data = pages.read()
    size = FORMS[form]
    assert len(data) == PAGES * size
    return [data[n * size:(n + 1) * size] for n in range(PAGES)]


GOLDEN = [golden(form) for form in FORMS]


def wire(**over):
    """A small sound opaque layout."""
    fields = dict(fingerprint=b"o" * 32, block_tokens=16, k_format=pb.FORMAT_OPAQUE, layout_version=1, opaque_bytes=200 * 1024 + 48,
                  opaque_name="test/pages/1")
    fields.update(over)
    return pb.Layout(**fields)


def put(session):
    with session.reserve(KEYS) as slots:
        for i in range(PAGES):
            for l in range(len(LAYOUTS)):
                slots.block(i, l)[:] = GOLDEN[l][i]
        return slots.commit()


class Opaque(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="terrace-opaque-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.flags = (*SMALL, "--disks", os.path.join(self.folder, "disk") + ":32MiB")

    def ctl(self, daemon, *args, code=0):
        done = subprocess.run([TERRACECTL, "--address", daemon.address, *args], capture_output=True, text=True, timeout=CALL_S, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout) if "--json" in args and not code else done.stdout + done.stderr

    def same(self, daemon):
        """By borrow, and by stream."""
        with terrace.connect(daemon.address) as client, client.session(LAYOUTS) as session:
            with session.lease(KEYS) as lease:
                for i in range(PAGES):
                    for l, name in enumerate(FORMS):
                        self.assertEqual(bytes(lease.block(i, l)), GOLDEN[l][i], "page %d of %s" % (i, name))
            for i in range(PAGES):
                for l, name in enumerate(FORMS):
                    self.assertEqual(session.get(KEYS[i], l), (bytearray(GOLDEN[l][i]), TOKENS), "page %d of %s" % (i, name))

    def test_golden_pages_over_restarts(self):
        with running(TERRACED, *self.flags) as daemon:
            with terrace.connect(daemon.address) as client, client.session(LAYOUTS) as session:
                put(session)
                self.assertEqual(set(session.flush(KEYS)), {terrace.Status.OK})
                self.assertTrue(session.put(key(77), GOLDEN[1][2], layout=1))
                self.assertEqual(session.get(key(77), 1)[0], GOLDEN[1][2])
                self.assertIsNone(session.get(key(77), 0))
            self.same(daemon)
            daemon.kill()
            for end in (daemon.stop, daemon.kill, daemon.stop):
                daemon.start()
                wait_for(lambda: daemon.stats()["terrace_restored"] == 1, 60, "the disks are taken up")
                self.same(daemon)
                end()

    def test_streams(self):
        """Of a size that is no multiple of the checked pieces; short and long ones are refused, and nothing is stored."""
        with running(TERRACED, *self.flags) as daemon:
            opened = daemon.open(wire())
            size = opened.layouts[0].block_bytes
            self.assertEqual(size, 200 * 1024 + 48)
            blocks = [os.urandom(size) for _ in range(3)]
            self.assertEqual(daemon.put(opened.session, list(zip(map(key, range(3)), blocks)), chunk=1 << 16), [pb.OK] * 3)
            for n, (status, data) in daemon.get(opened.session, keys(0, 1, 2)).items():
                self.assertEqual((status, data), (pb.OK, blocks[n]))
            for wrong in (blocks[0][:-16], blocks[0] + bytes(16), b""):
                with self.assertRaises(grpc.RpcError) as failed:
                    daemon.put(opened.session, [(key(9), wrong)], chunk=1 << 16)
                self.assertEqual(failed.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertRegex(failed.exception.details(), "bytes")
            self.assertEqual(daemon.get(opened.session, keys(9))[0][0], pb.MISS)

    def refused(self, daemon, says, *layouts):
        with self.assertRaises(grpc.RpcError) as failed:
            daemon.open(*layouts)
        self.assertEqual(failed.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn(says, failed.exception.details())

    def test_bad_layouts(self):
        with running(TERRACED, *SMALL) as daemon:
            for says, over in (("opaque_bytes is 0", dict(opaque_bytes=0)), ("no multiple of 16", dict(opaque_bytes=1000)),
                               ("more than 1073737728", dict(opaque_bytes=1 << 30)), ("an extent has", dict(opaque_bytes=64 << 20)),
                               ("no multiple of layers", dict(opaque_bytes=16 * 1024, layers=3)), ("empty", dict(opaque_name="")),
                               ("longer than 63", dict(opaque_name="n" * 62 + "/1")), ("none of letters", dict(opaque_name="a b/1")),
                               ("no version", dict(opaque_name="vllm")), ("must be none", dict(v_format=pb.FORMAT_FP16)),
                               ("must be none", dict(v_format=pb.FORMAT_OPAQUE)), ("of codecs", dict(head_dim_k=64)),
                               ("1 to 65535", dict(block_tokens=0)), ("fingerprint", dict(fingerprint=b""))):
                self.refused(daemon, says, wire(**over))
            self.refused(daemon, "v_format is not a format", pb.Layout(
                fingerprint=b"f" * 32, layers=2, heads=2, total_heads=2, head_dim_k=64, head_dim_v=64, block_tokens=16, k_format=pb.FORMAT_TQ4,
                v_format=pb.FORMAT_OPAQUE, rotation_version=1, codebook_version=1, layout_version=1))
            self.refused(daemon, "opaque_bytes and opaque_name are of opaque layouts", pb.Layout(
                fingerprint=b"f" * 32, layers=2, heads=2, total_heads=2, head_dim_k=64, head_dim_v=64, block_tokens=16, k_format=pb.FORMAT_TQ4,
                v_format=pb.FORMAT_TQ4, rotation_version=1, codebook_version=1, layout_version=1, opaque_name="a/1"))
            self.refused(daemon, "listed twice", wire(), wire())

    def test_versions_share_nothing(self):
        with running(TERRACED, *SMALL) as daemon:
            first, second = daemon.open(wire()), daemon.open(wire(opaque_name="test/pages/2"))
            self.assertNotEqual(first.layouts[0].layout_id, second.layouts[0].layout_id)
            data = os.urandom(first.layouts[0].block_bytes)
            self.assertEqual(daemon.put(first.session, [(key(1), data)], chunk=1 << 16), [pb.OK])
            self.assertEqual(daemon.get(second.session, keys(1))[0][0], pb.MISS)
            self.assertEqual(daemon.get(first.session, keys(1))[0], (pb.OK, data))
            self.refused(daemon, "by opaque_name's version alone", wire(), wire(opaque_name="test/pages/2"))
            self.refused(daemon, "by opaque_name's version alone", wire(), wire(opaque_name="test/pages/2", opaque_bytes=16))
            daemon.open(wire(), wire(opaque_name="test/states/2"), wire(opaque_name="test/pages/2", first_layer=1))

    def test_terracectl(self):
        with running(TERRACED, *self.flags) as daemon:
            with terrace.connect(daemon.address) as client, client.session(LAYOUTS) as session:
                put(session)
                session.flush(KEYS)
            rows = self.ctl(daemon, "layouts", "--json")["layouts"]
            by_name = {row["layout"]["opaque_name"]: row for row in rows}
            self.assertEqual({row["layout"]["opaque_name"]: row["layout"]["opaque_bytes"] for row in rows},
                             {"vllm/deepseek_v4_%s/1" % form: size for form, size in FORMS.items()})
            for row in rows:
                self.assertEqual((row["layout"]["k_format"], row["host_blocks"], row["disk_blocks"]), ("opaque", PAGES, PAGES))
                self.assertNotIn("head_dim_k", row["layout"])
            self.assertIn("vllm/deepseek_v4_sparse/1", self.ctl(daemon, "layouts"))
            self.assertEqual(len(self.ctl(daemon, "inspect", KEYS[1].hex(), "--json")["blocks"]), len(FORMS))
            path = os.path.join(self.folder, "layouts.json")
            with open(path, "w", encoding="utf-8") as out:
                json.dump(rows, out)
            found = self.ctl(daemon, "lookup", "--layouts", path, *[k.hex() for k in KEYS], "--json")
            self.assertEqual((found["prefix"], found["stored"]), (PAGES, PAGES))
            self.assertEqual(set(found["blocks"][0]["layouts"]), {row["layout_id"] for row in rows})
            self.ctl(daemon, "flush", "--layouts", path)
            by_name["vllm/deepseek_v4_sparse/1"]["layout"]["opaque_name"] = "vllm/deepseek_v4_sparse/2"
            with open(path, "w", encoding="utf-8") as out:
                json.dump(rows, out)
            self.assertIn("not the id of the layout beside it", self.ctl(daemon, "lookup", "--layouts", path, KEYS[0].hex(), code=1))
            self.assertIn("no codec here", self.ctl(daemon, "codec", "encode", "--format", "opaque", "--dim", "64", code=2))


class OnGpu(unittest.TestCase):
    """Over the simulated device; what the daemon does there is in daemon/opaque.c."""
    LAYERED = terrace.Layout.opaque("gpu", "test/pages/1", 6 * 11120, layers=6, block_tokens=TOKENS)
    WHOLE = terrace.Layout.opaque("gpu", "test/states/1", 150000, block_tokens=TOKENS)

    def setUp(self):
        terrace.cuda_load(os.path.join(SIM, "libterrace_cuda.so.0"))
        self.runtime = ctypes.CDLL(os.path.join(SIM, "libcudart.so.13"))
        self.runtime.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.runtime.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
        stream = ctypes.c_void_p()
        self.assertEqual(self.runtime.cudaStreamCreate(ctypes.byref(stream)), 0)
        self.stream = stream.value

    def read(self, address, size):
        out = ctypes.create_string_buffer(size)
        self.assertEqual(self.runtime.cudaMemcpyAsync(out, address, size, 2, self.stream), 0)
        self.assertEqual(self.runtime.cudaStreamSynchronize(self.stream), 0)
        return out.raw

    def test_up_and_down(self):
        """An engine with kernels of its own asks for no kernel of ours: its pages go up layer by layer, are written there, come down."""
        layouts = [self.LAYERED, self.WHOLE]
        data = [[os.urandom(layout.block_bytes) for layout in layouts] for _ in KEYS]
        flags = (*SMALL, "--gpus", "all", "--gpu-bytes", "16MiB")
        with running(TERRACED, *flags, env={"LD_LIBRARY_PATH": SIM}) as daemon, terrace.connect(daemon.address) as client, \
                client.session(layouts, gpu=True) as session:
            with session.reserve(KEYS) as slots:
                for i in range(PAGES):
                    for l in range(2):
                        slots.block(i, l)[:] = data[i][l]
                slots.commit()
            with session.lease(KEYS, gpu=0) as lease:
                with self.assertRaisesRegex(terrace.Error, "no layer 6"):
                    lease.wait_layer(6, self.stream)
                for layer in range(6):
                    lease.wait_layer(layer, self.stream)
                for l, layout in enumerate(layouts):
                    for i, address in enumerate(lease.addresses(l)):
                        self.assertEqual(self.read(address, layout.block_bytes), data[i][l])
                lease.check()
            other = [key(n) for n in range(10, 10 + PAGES)]
            slots = session.reserve(other, gpu=0)
            for l, layout in enumerate(layouts):
                for i, address in enumerate(slots.addresses(l)):
                    self.assertEqual(self.runtime.cudaMemcpyAsync(address, data[i][l], layout.block_bytes, 1, self.stream), 0)
            self.assertEqual(slots.commit_after(self.stream).finish(), [terrace.Status.OK] * PAGES)
            for i, one in enumerate(other):
                for l in range(2):
                    self.assertEqual(bytes(session.get(one, l)[0]), data[i][l])


class Library(unittest.TestCase):
    def test_layouts(self):
        self.assertEqual([layout.block_bytes for layout in LAYOUTS], list(FORMS.values()))
        self.assertEqual(terrace.Layout.opaque("m", "a/1", 3 * 64, layers=3, heads=1, total_heads=8, first_head=7, window=512).block_bytes, 192)
        for name, size, says in (("a/1", 24, "multiple of 16"), ("a/1", 0, "is 0"), ("a/1", 1 << 40, "more than"), ("a", 16, "no version"),
                                 ("x" * 80 + "/1", 16, "longer than 63"), ("", 16, "empty")):
            with self.assertRaisesRegex(ValueError, says):
                terrace.Layout.opaque("m", name, size)

    def test_codecs_refuse(self):
        """What knows formats says what to do, and touches nothing."""
        layout, block = LAYOUTS[0], bytearray(FORMS["sparse"] + 16)
        for call in (lambda: terrace.encode(layout, block, 0, 0, 0, 1), lambda: terrace.decode(layout, block, 0, 0, 0, 1),
                     lambda: terrace.attend(layout, queries=1, q_heads=1, q=bytes(64), out=bytearray(64), blocks=[block], kv_tokens=1)):
            with self.assertRaisesRegex(terrace.Unsupported, "opaque.*engine's own code"):
                call()
        self.assertEqual(block, bytes(len(block)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)
