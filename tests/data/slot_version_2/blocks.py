"""The blocks of the fixture: keys of every length that version 2 of a slot's header had room for, and what their bytes are.

make.py puts these blocks; tests/e2e/test_old_data.py reads them back. A change here makes the fixture unreadable for the test.
"""

import hashlib

LENGTHS = (1, 8, 20, 31, 32)
DELETED = (3, 8)   # numbers of keys

LAYOUT = dict(fingerprint=b"version 2 of a slot's header, 32", first_layer=0, layers=1, first_head=0, heads=1, total_heads=1, head_dim_k=64,
              head_dim_v=64, block_tokens=16, window=0, k_format=5, v_format=7, rotation_version=1, codebook_version=1, layout_version=1)


def family(length):
    """Three keys of a length that differ in their last byte; one ends with zeroes."""
    common = (b"\x5a" * 8 + bytes(64))[:length - 1] if length > 1 else b""
    return [common + bytes([last]) for last in (0, 1, 2)]


KEYS = [key for length in LENGTHS for key in family(length)]


def data(number, size):
    """Pieces of 64 bytes: each has its own number, and 60 bytes that all of the block's have."""
    rest = hashlib.shake_256(b"block %d" % number).digest(60)
    return b"".join(piece.to_bytes(4, "little") + rest for piece in range(size // 64 + 1))[:size]


def info(number):
    """Fields of terrace.v1.BlockInfo."""
    return dict(parent=KEYS[number - 1] if number else b"", position=16 * number, tokens=16, role=1, turn=number)
