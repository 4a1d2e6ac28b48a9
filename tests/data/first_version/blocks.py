"""The blocks of the fixture: every key, its bytes and its place in a sequence can be computed, so that nothing of them is stored twice.

make.py puts these blocks; tests/e2e/test_old_data.py reads them back. A change here makes the fixture unreadable for the test.
"""

import hashlib

COMMIT = "43e25fa"
CHAIN = 20         # blocks of one layout, one sequence
DELETED = range(4, CHAIN, 5)

# Fields of terrace.v1.Layout that differ from one another; the rest is `layout()` of tests/e2e/daemon.py, written out here so that the fixture
# does not depend on that function's defaults.
COMMON = dict(fingerprint=b"first version of the data folder", first_layer=0, first_head=0, heads=1, total_heads=1,
              rotation_version=1, codebook_version=1, layout_version=1)
LAYOUTS = (
    dict(COMMON, layers=1, head_dim_k=64, head_dim_v=64, block_tokens=16, window=0, k_format=5, v_format=7),   # tq4, tq2
    dict(COMMON, layers=2, head_dim_k=128, head_dim_v=64, block_tokens=16, window=32, k_format=3, v_format=4), # fp8, int4_pth
    dict(COMMON, layers=2, head_dim_k=64, head_dim_v=64, block_tokens=16, window=0, k_format=2, v_format=0),   # bf16, none
)


def key(layout, number):
    """20 bytes, another length than most tests have."""
    return hashlib.sha256(b"key %d %d" % (layout, number)).digest()[:20]


def data(layout, number, size):
    """Pieces of 64 bytes: each has its own number, and 60 bytes that all of the block's have. They pack well, and none can take another's place."""
    rest = hashlib.shake_256(b"block %d %d" % (layout, number)).digest(60)
    return b"".join(piece.to_bytes(4, "little") + rest for piece in range(size // 64 + 1))[:size]


def info(layout, number):
    """Fields of terrace.v1.BlockInfo."""
    return dict(parent=key(layout, number - 1) if number else b"", position=16 * number, tokens=16 if number < CHAIN - 1 else 9,
                role=1 + number % 4, turn=number // 6)
