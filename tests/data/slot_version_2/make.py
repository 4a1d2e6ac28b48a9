"""Made the fixture: `/usr/bin/python3 make.py TERRACED FOLDER`, with the terraced of commit 8037e95, the last one whose slots have headers of
version 2. It is not made anew: a later version would write its own form.

Leaves stopped.tar.xz in FOLDER: `data`, the data folder of a daemon that was stopped in order, and `disk`, the folder of its one disk.
"""

import os
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "e2e"))
sys.path.insert(0, HERE)
import blocks  # noqa: E402
from daemon import CALL_S, Daemon, crc32c, pb  # noqa: E402

FLAGS = ("--host-bytes", "8MiB", "--extent-bytes", "1MiB", "--slab-bytes", "1MiB")


def one(number):
    return pb.Keys(key_bytes=len(blocks.KEYS[number]), keys=blocks.KEYS[number])


def fill(daemon):
    opened = daemon.open(pb.Layout(**blocks.LAYOUT))
    size = opened.layouts[0].block_bytes

    def chunks():
        for n, key in enumerate(blocks.KEYS):
            data = blocks.data(n, size)
            yield pb.PutChunk(header=pb.PutHeader(session=opened.session, layout=0, key=key, info=pb.BlockInfo(**blocks.info(n)), has_crc=True,
                                                  crc32c=crc32c(data)), data=data)
    assert list(daemon.cache.Put(chunks(), timeout=CALL_S).status) == [pb.OK] * len(blocks.KEYS)
    for n in range(len(blocks.KEYS)):
        assert list(daemon.cache.Flush(pb.FlushRequest(session=opened.session, keys=one(n)), timeout=CALL_S).status) == [pb.OK]
    for n in blocks.DELETED:
        assert list(daemon.cache.Delete(pb.DeleteRequest(session=opened.session, keys=one(n)), timeout=CALL_S).status) == [pb.OK]


def plain(entry):
    """An archive says nothing of the machine that it was made on."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def make(terraced, archive):
    daemon = Daemon(terraced, *FLAGS, start=False)
    daemon.flags = (*FLAGS, "--disks", os.path.join(daemon.folder, "disk") + ":4MiB")
    daemon.start()
    fill(daemon)
    daemon.stop()
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in ("data", "disk"):
            tar.add(os.path.join(daemon.folder, name), name, filter=plain)
    daemon.close()


if __name__ == "__main__":
    make(sys.argv[1], os.path.join(sys.argv[2], "stopped.tar.xz"))
