"""Makes the fixture: `make.py TERRACED FOLDER`, with the terraced of the commit that blocks.py names.

Leaves two archives in FOLDER: stopped.tar.xz, of a daemon that was stopped in order, and killed.tar.xz, of one that was killed. Each holds `data`,
the daemon's data folder, and `disk`, the folder of its one disk. The archives in the repository were made once and are not to be made anew:
what later versions write is not what they have to read.
"""

import os
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "e2e"))
sys.path.insert(0, HERE)
import blocks  # noqa: E402
from daemon import CALL_S, Daemon, crc32c, pb, wait_for  # noqa: E402

FLAGS = ("--host-bytes", "8MiB", "--extent-bytes", "1MiB", "--slab-bytes", "1MiB", "--policy", "graph", "--disk-policy", "graph",
         "--graph-nodes", "512", "--advisor-every", "50ms")


def put(daemon, session, layout, size):
    def chunks():
        for n in range(blocks.CHAIN):
            data = blocks.data(layout, n, size)
            yield pb.PutChunk(header=pb.PutHeader(session=session, layout=0, key=blocks.key(layout, n), info=pb.BlockInfo(**blocks.info(layout, n)),
                                                  has_crc=True, crc32c=crc32c(data)), data=data)
    assert list(daemon.cache.Put(chunks(), timeout=CALL_S).status) == [pb.OK] * blocks.CHAIN


def keys_of(layout, numbers):
    return pb.Keys(key_bytes=20, keys=b"".join(blocks.key(layout, n) for n in numbers))


def use(daemon, session, layout):
    """So that policies and the graph learn: blocks asked for together, again and again, and the ends of turns."""
    for turn in range(6):
        some = keys_of(layout, range(3 * turn % blocks.CHAIN))
        if some.keys:
            daemon.cache.Lookup(pb.LookupRequest(session=session, keys=some), timeout=CALL_S)
            daemon.cache.Touch(pb.TouchRequest(session=session, keys=some), timeout=CALL_S)
            daemon.cache.Report(pb.ReportRequest(session=session, keys=some, event=pb.EVENT_TURN_END), timeout=CALL_S)


def fill(daemon):
    for layout, fields in enumerate(blocks.LAYOUTS):
        opened = daemon.cache.OpenSession(pb.OpenSessionRequest(layouts=[pb.Layout(**fields)], engine="fixture"), timeout=CALL_S)
        put(daemon, opened.session, layout, opened.layouts[0].block_bytes)
        use(daemon, opened.session, layout)
        every = keys_of(layout, range(blocks.CHAIN))
        assert list(daemon.cache.Flush(pb.FlushRequest(session=opened.session, keys=every), timeout=CALL_S).status) == [pb.OK] * blocks.CHAIN
        gone = daemon.cache.Delete(pb.DeleteRequest(session=opened.session, keys=keys_of(layout, blocks.DELETED)), timeout=CALL_S)
        assert list(gone.status) == [pb.OK] * len(blocks.DELETED)
        use(daemon, opened.session, layout)


def nobodys(entry):
    """An archive says nothing of the machine that it was made on."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def kept_all(stats):
    return stats["terrace_graph_kept_total"] >= stats["terrace_graph_nodes"] + stats["terrace_graph_edges"] > 3 * blocks.CHAIN


def make(terraced, archive, killed):
    daemon = Daemon(terraced, *FLAGS, start=False)
    daemon.flags = (*FLAGS, "--disks", os.path.join(daemon.folder, "disk") + ":16MiB")
    daemon.start()
    fill(daemon)
    wait_for(lambda: kept_all(daemon.stats()), 60, "the catalog is told of the whole graph")
    time.sleep(5)  # what it is told it writes within a second
    daemon.kill() if killed else daemon.stop()
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in ("data", "disk"):
            tar.add(os.path.join(daemon.folder, name), name, filter=nobodys)
    daemon.close()


if __name__ == "__main__":
    make(sys.argv[1], os.path.join(sys.argv[2], "stopped.tar.xz"), False)
    make(sys.argv[1], os.path.join(sys.argv[2], "killed.tar.xz"), True)
