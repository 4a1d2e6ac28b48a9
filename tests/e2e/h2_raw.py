"""HTTP/2 by hand, for clients of gRPC that no library would be: frames are made here, and sent over a plain socket."""

import struct

WINDOW_MOST = (1 << 31) - 1
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
FRAME_BYTES = 16384


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def hello():
    """The preface, with windows so large that the other side may send whatever it has."""
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW_MOST)) +
            frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_MOST - 65535)))


def _field(name, value):
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def headers(path):
    return b"".join(_field(*f) for f in ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
                                         ("te", "trailers"), ("content-type", "application/grpc")))


def call(stream, path, body, says_bytes=None):
    """A call with one message; says_bytes: so long it says that the message is, and the stream stays open for the rest."""
    message = struct.pack(">BI", 0, len(body) if says_bytes is None else says_bytes) + body
    pieces = [message[at:at + FRAME_BYTES] for at in range(0, len(message), FRAME_BYTES)]
    ends = [END_STREAM if says_bytes is None and p is pieces[-1] else 0 for p in pieces]
    return frame(HEADERS, END_HEADERS, stream, headers(path)) + b"".join(frame(DATA, e, stream, p) for e, p in zip(ends, pieces))
