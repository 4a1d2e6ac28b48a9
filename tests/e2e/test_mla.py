"""A layout of multi-head latent attention through a real daemon: `test_mla.py TERRACED LIBTERRACE TERRACECTL`.

A prefix is encoded into reserved slots, committed, leased, attended, flushed, and leased and attended again from the
disk by another daemon of the same folder.
"""

import array
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest

import grpc

TERRACED, LIBRARY, TERRACECTL = sys.argv[1:4]
os.environ["LIBTERRACE"] = LIBRARY
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "client", "python")]
sys.dont_write_bytecode = True
import terrace  # noqa: E402
from daemon import CALL_S, layout as wire_layout, pb, running, wait_for  # noqa: E402

LATENT, KEY = 512, 576
LAYERS, BLOCK, TOKENS, HEADS = 3, 32, 81, 4
SCALE = 1 / math.sqrt(192)
KEYS = terrace.chain(list(range(TOKENS // BLOCK * BLOCK + BLOCK)), BLOCK)


def layout(latent, rope, **over):
    options = dict(layers=LAYERS, heads=1, head_dim=LATENT, block_tokens=BLOCK, k_format=latent, v_format="none", rope_format=rope)
    return terrace.Layout("test_mla", **{**options, **over})


def vectors(seed, n, size=KEY):
    rng = random.Random(seed)
    return array.array("f", [rng.gauss(0, 1) for _ in range(n * size)])


def valid(block):
    """Tokens of a block of the prefix."""
    return min(BLOCK, TOKENS - block * BLOCK)


def store(session, one):
    """Encodes the prefix into slots whose bytes were 0xff before."""
    infos = [terrace.BlockInfo(parent=KEYS[i - 1] if i else b"", position=i * BLOCK, tokens=valid(i))
             for i in range(len(KEYS))]
    with session.reserve(KEYS, infos) as slots:
        for i in range(len(KEYS)):
            slots.block(i)[:] = b"\xff" * one.block_bytes
            for layer in range(LAYERS):
                terrace.encode(one, slots.block(i), layer, 0, 0, valid(i), vectors((layer, i).__hash__(), valid(i)))
        return slots.commit()


def attended(one, lease, layer):
    """Output and LSE of one query of each head that sees the whole prefix."""
    out, lse = array.array("f", bytes(4 * HEADS * LATENT)), array.array("f", bytes(4 * HEADS))
    terrace.attend(one, layer=layer, queries=1, q_heads=HEADS, q=vectors(99 + layer, HEADS), scale=SCALE,
                   kv_tokens=TOKENS, blocks=[lease.block(i) for i in range(len(KEYS))], out=out, lse=lse)
    return out, lse


def decoded(one, lease, layer):
    """All tokens' keys of 576 elements and values of 512."""
    keys, values = array.array("f"), array.array("f")
    for i in range(len(KEYS)):
        k, v = array.array("f", bytes(4 * valid(i) * KEY)), array.array("f", bytes(4 * valid(i) * LATENT))
        terrace.decode(one, lease.block(i), layer, 0, 0, valid(i), k, v)
        keys.extend(k)
        values.extend(v)
    return keys, values


def attention(keys, values, layer):
    """The same as attended, in float64."""
    q, out, lse = vectors(99 + layer, HEADS), [], []
    for h in range(HEADS):
        scores = [SCALE * sum(q[h * KEY + i] * keys[t * KEY + i] for i in range(KEY)) for t in range(TOKENS)]
        most = max(scores)
        weights = [math.exp(s - most) for s in scores]
        total = sum(weights)
        lse.append(most + math.log(total))
        out.extend(sum(w * values[t * LATENT + i] for t, w in enumerate(weights)) / total for i in range(LATENT))
    return out, lse


class Mla(unittest.TestCase):
    def check_attention(self, one, lease, loss):
        """Against float64 on the decoded values, which are within `loss` of those that were encoded."""
        results = []
        for layer in range(LAYERS):
            (out, lse), (keys, values) = attended(one, lease, layer), decoded(one, lease, layer)
            results.append((bytes(out), bytes(lse)))
            for t in range(TOKENS):
                self.assertEqual(keys[t * KEY:t * KEY + LATENT], values[t * LATENT:(t + 1) * LATENT])
            if layer:
                continue
            want, want_lse = attention(keys, values, layer)
            for h in range(HEADS):
                rows = range(h * LATENT, (h + 1) * LATENT)
                error = math.sqrt(sum((out[i] - want[i]) ** 2 for i in rows) / sum(want[i] ** 2 for i in rows))
                self.assertLess(error, 2e-3)
                self.assertAlmostEqual(lse[h], want_lse[h], delta=2e-3)
            first = vectors((layer, 0).__hash__(), valid(0))
            near = math.sqrt(sum((a - b) ** 2 for a, b in zip(first, keys)) / sum(a * a for a in first))
            self.assertLess(near, loss)
        return results

    def test_through_memory_and_disk(self):
        for latent, rope, token, loss in (("tq4", "bf16", 386, .1), ("int4_pth", "fp16", 388, .12),
                                          ("tq2", "fp8", 196, .34)):
            one = layout(latent, rope)
            self.assertEqual(one.block_bytes, token * LAYERS * BLOCK)
            disk = tempfile.TemporaryDirectory(prefix="terrace-mla-")
            with self.subTest(latent + "/" + rope), disk, running(
                    TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "1MiB", "--slab-bytes", "2MiB",
                    "--disks", os.path.join(disk.name, "a") + ":64MiB") as daemon:
                with terrace.connect(daemon.address) as client, client.session([one]) as session:
                    self.assertEqual(store(session, one), [terrace.Status.OK] * len(KEYS))
                    with session.lease(KEYS, all=True) as lease:
                        before = self.check_attention(one, lease, loss)
                        self.assertEqual(lease.tokens(len(KEYS) - 1), valid(len(KEYS) - 1))
                    session.flush(KEYS)
                self.check_layouts(daemon, one, latent, rope)
                daemon.kill()
                daemon.start()
                with terrace.connect(daemon.address) as client, client.session([one]) as session:
                    wait_for(lambda: session.lookup(KEYS) == len(KEYS), CALL_S, "the blocks of the disk are known")
                    with session.lease(KEYS, all=True, timeout=CALL_S) as lease:
                        self.assertEqual(self.check_attention(one, lease, loss), before)

    def check_layouts(self, daemon, one, latent, rope):
        """What terracectl prints of it, which it takes back; its id is that of the session's layout."""
        text = subprocess.run([TERRACECTL, "layouts", "--json", "--address", daemon.address], capture_output=True,
                              text=True, check=True).stdout
        row = json.loads(text)["layouts"][0]
        wanted = dict(k_format=latent, v_format="none", rope_format=rope, rope_dim=64, head_dim_k=LATENT)
        self.assertEqual({name: row["layout"][name] for name in wanted}, wanted)
        self.assertEqual(row["block_bytes"], one.block_bytes)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            found = subprocess.run([TERRACECTL, "lookup", "--json", "--address", daemon.address, "--layouts", file.name,
                                    *[key.hex() for key in KEYS]], capture_output=True, text=True, check=True).stdout
        self.assertIn('"%s"' % KEYS[0].hex(), found)
        self.assertNotIn("absent", found)

    def test_what_is_refused(self):
        for says, over in (("rope_format must be fp16, bf16 or fp8", dict(rope_format="tq4")),
                           ("head_dim_k must be 512", dict(head_dim=256)),
                           ("head_dim_k must be 512", dict(head_dim=128, v_format="tq4")),
                           ("v_format must be none", dict(v_format="tq4")),
                           ("head_dim_v must be 512", dict(head_dim_v=128)),
                           ("heads and total_heads must be 1", dict(heads=2))):
            with self.subTest(says), self.assertRaisesRegex(ValueError, says):
                layout("tq4", "bf16", **over)
        one = layout("tq4", "bf16")
        block, q, out = bytearray(one.block_bytes + 16), vectors(1, 1), array.array("f", bytes(4 * LATENT))
        with self.assertRaisesRegex(ValueError, "k: 2048 bytes, of the 2304"):
            terrace.encode(one, block, 0, 0, 0, 1, vectors(1, 1, LATENT))
        with self.assertRaisesRegex(terrace.Error, "scale is 0, and the layout has a rope part"):
            terrace.attend(one, layer=0, queries=1, q_heads=1, q=q, kv_tokens=0, blocks=[], out=out)

    def test_what_the_daemon_refuses(self):
        """Of clients that check nothing."""
        mla = dict(heads=1, total_heads=1, head_dim_k=LATENT, head_dim_v=LATENT, v_format=pb.FORMAT_NONE,
                   rotation_version=2, rope_dim=64, rope_format=pb.FORMAT_BF16)
        with running(TERRACED, "--host-bytes", "16MiB", "--extent-bytes", "1MiB") as daemon:
            daemon.open(wire_layout(**mla))
            for says, over in (("rope_dim must be 64", dict(rope_dim=32)),
                               ("rope_format must be none", dict(rope_dim=0)),
                               ("rope_format must be fp16, bf16 or fp8", dict(rope_format=pb.FORMAT_NONE)),
                               ("v_format must be none", dict(v_format=pb.FORMAT_TQ4)),
                               ("heads and total_heads must be 1", dict(total_heads=2))):
                with self.subTest(says), self.assertRaises(grpc.RpcError) as caught:
                    daemon.open(wire_layout(**{**mla, **over}))
                self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertIn(says, caught.exception.details())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
