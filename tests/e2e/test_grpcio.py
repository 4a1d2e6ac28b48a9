"""A stock Python grpcio client against a real terraced: `test_grpcio.py TERRACED`."""

import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import CALL_S, crc32c, health_pb2, key, keys, layout, pb, running, terrace_pb2_grpc, wait_for  # noqa: E402

TERRACED = os.environ.get("TERRACED", "terraced")
SMALL = ("--host-bytes", "64MiB", "--extent-bytes", "4MiB")


def block(seed, size):
    return random.Random(seed).randbytes(size)


class Grpcio(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.running = running(TERRACED, *SMALL)
        cls.daemon = cls.running.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.running.__exit__(None, None, None)

    def fails(self, code, call, *arguments, word="", **over):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*arguments, timeout=CALL_S, **over)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertTrue(caught.exception.details(), "a failure without a message")
        self.assertIn(word, caught.exception.details())

    def test_crc_check_value(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)

    def test_put_lookup_get(self):
        opened = self.daemon.open(layout(fingerprint=b"a" * 32))
        size = opened.layouts[0].block_bytes
        data = {n: block(n, size) for n in range(5)}
        self.assertEqual(self.daemon.put(opened.session, [(key(n), data[n]) for n in (0, 1, 2, 4)]), [pb.OK] * 4)
        reply = self.daemon.cache.Lookup(pb.LookupRequest(session=opened.session, keys=keys(0, 1, 2, 3, 4), states=True),
                                         timeout=CALL_S)
        self.assertEqual((reply.prefix, reply.states, reply.epoch), (3, b"\1\1\1\0\1", opened.epoch))
        for chunk in (0, 1, 777, 1 << 20):
            got = self.daemon.get(opened.session, keys(2, 3, 0), chunk=chunk)
            self.assertEqual(got, {0: (pb.OK, data[2]), 1: (pb.MISS, b""), 2: (pb.OK, data[0])})
        self.assertEqual(self.daemon.put(opened.session, [(key(1), block(99, size))]), [pb.EXISTS])
        self.assertEqual(self.daemon.get(opened.session, keys(1))[0][1], data[1])

    def test_layouts_do_not_see_each_other(self):
        first, second = layout(fingerprint=b"b" * 32), layout(fingerprint=b"b" * 32, k_format=pb.FORMAT_FP8)
        one, two, both = self.daemon.open(first), self.daemon.open(second), self.daemon.open(first, second)
        self.daemon.put(one.session, [(key(7), block(7, one.layouts[0].block_bytes))])
        look = lambda s: self.daemon.cache.Lookup(pb.LookupRequest(session=s.session, keys=keys(7)), timeout=CALL_S).prefix
        self.assertEqual((look(one), look(two), look(both)), (1, 0, 0))
        self.daemon.put(both.session, [(key(7), block(8, two.layouts[0].block_bytes))], layout_index=1)
        self.assertEqual((look(one), look(two), look(both)), (1, 1, 1))

    def test_delete_and_watch(self):
        opened = self.daemon.open(layout(fingerprint=b"c" * 32))
        size = opened.layouts[0].block_bytes
        self.daemon.put(opened.session, [(key(1), block(1, size))])
        watch = self.daemon.cache.Watch(pb.WatchRequest(session=opened.session), timeout=CALL_S)
        events = [next(watch), next(watch)]
        self.daemon.put(opened.session, [(key(2), block(2, size))])
        reply = self.daemon.cache.Delete(pb.DeleteRequest(session=opened.session, keys=keys(1, 9)), timeout=CALL_S)
        self.assertEqual(list(reply.status), [pb.OK, pb.MISS])
        events += [next(watch), next(watch)]
        watch.cancel()
        self.assertEqual([(e.kind, e.key) for e in events],
                         [(pb.WATCH_STORED, key(1)), (pb.WATCH_SYNCED, b""), (pb.WATCH_STORED, key(2)),
                          (pb.WATCH_REMOVED, key(1))])
        self.assertEqual([e.sequence - events[0].sequence for e in events], [0, 1, 2, 3])
        self.assertEqual(events[3].reason, "deleted")
        self.assertEqual(self.daemon.get(opened.session, keys(1)), {0: (pb.MISS, b"")})

    def test_wrong_checksum_and_wrong_size_store_nothing(self):
        opened = self.daemon.open(layout(fingerprint=b"d" * 32))
        size = opened.layouts[0].block_bytes
        self.assertEqual(self.daemon.put(opened.session, [(key(1), block(1, size))], wrong_crc=True), [pb.CORRUPT])
        for wrong in (size - 1, size + 1):
            with self.assertRaises(grpc.RpcError) as caught:
                self.daemon.put(opened.session, [(key(1), block(1, wrong))])
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        reply = self.daemon.cache.Lookup(pb.LookupRequest(session=opened.session, keys=keys(1)), timeout=CALL_S)
        self.assertEqual(reply.prefix, 0)
        self.assertEqual(self.daemon.put(opened.session, [(key(1), block(1, size))]), [pb.OK])

    def test_a_cancelled_put_leaves_nothing(self):
        opened = self.daemon.open(layout(fingerprint=b"e" * 32))
        size = opened.layouts[0].block_bytes
        hold = threading.Event()

        def chunks():
            yield pb.PutChunk(header=pb.PutHeader(session=opened.session, key=key(1)), data=block(1, size // 2))
            hold.wait(CALL_S)
        call = self.daemon.cache.Put.future(chunks(), timeout=CALL_S)
        name = "terrace_reservations"
        wait_for(lambda: self.daemon.stats().get(name, 0) >= 1, 60, "the put's reservation shows in the stats")
        call.cancel()
        hold.set()
        wait_for(lambda: self.daemon.stats().get(name, 0) == 0, 60, "a cancelled put's reservation is gone")
        self.assertEqual(self.daemon.put(opened.session, [(key(1), block(1, size))]), [pb.OK])

    def test_two_puts_of_one_key_end_as_one_block(self):
        opened = self.daemon.open(layout(fingerprint=b"g" * 32))
        size = opened.layouts[0].block_bytes
        for n in range(20):
            results, data = [], [block(2 * n + side, size) for side in range(2)]
            threads = [threading.Thread(target=lambda d=d: results.extend(self.daemon.put(opened.session, [(key(n), d)])))
                       for d in data]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(results.count(pb.OK), 1, results)
            self.assertIn([r for r in results if r != pb.OK][0], (pb.EXISTS, pb.BUSY))
            self.assertIn(self.daemon.get(opened.session, keys(n))[0][1], data)

    def test_bad_input(self):
        cache, opened = self.daemon.cache, self.daemon.open()
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        for wrong in (dict(head_dim_k=100), dict(block_tokens=17), dict(block_tokens=0), dict(layers=0), dict(heads=0),
                      dict(k_format=77), dict(k_format=pb.FORMAT_NONE), dict(fingerprint=b"x"), dict(layers=10**9),
                      dict(layout_version=99)):
            self.fails(invalid, cache.OpenSession, pb.OpenSessionRequest(layouts=[layout(**wrong)]))
        self.fails(invalid, cache.OpenSession, pb.OpenSessionRequest())
        self.fails(invalid, cache.OpenSession, pb.OpenSessionRequest(layouts=[layout()] * 65))
        self.fails(grpc.StatusCode.PERMISSION_DENIED, cache.OpenSession,
                   pb.OpenSessionRequest(tenant="somebody", layouts=[layout()]))
        for wrong in (pb.Keys(key_bytes=0, keys=b"a"), pb.Keys(key_bytes=65, keys=b"a" * 65),
                      pb.Keys(key_bytes=16, keys=b"a" * 17), pb.Keys(key_bytes=1, keys=b"a" * 4097)):
            self.fails(invalid, cache.Lookup, pb.LookupRequest(session=opened.session, keys=wrong), word="key")
        self.fails(grpc.StatusCode.NOT_FOUND, cache.Lookup, pb.LookupRequest(session=12345, keys=keys(1)))
        with self.assertRaises(grpc.RpcError) as caught:  # what the daemon fails is told from what gRPC does
            cache.Lookup(pb.LookupRequest(session=12345, keys=keys(1)), timeout=CALL_S)
        self.assertIn(("terrace-status", "NOT_FOUND"), [tuple(pair) for pair in caught.exception.trailing_metadata()])
        self.fails(grpc.StatusCode.FAILED_PRECONDITION, cache.Lease,
                   pb.LeaseRequest(session=opened.session, keys=keys(1)), word="attach")
        self.fails(grpc.StatusCode.NOT_FOUND, cache.Attach, pb.AttachRequest(token=b"0" * 16))
        self.fails(invalid, cache.Attach, pb.AttachRequest(token=b"short"))
        released = cache.Release(pb.ReleaseRequest(session=opened.session, leases=[1, 2]), timeout=CALL_S)
        self.assertEqual(list(released.status), [pb.NOT_FOUND] * 2)
        aborted = cache.Abort(pb.AbortRequest(session=opened.session, reservations=[3]), timeout=CALL_S)
        self.assertEqual(list(aborted.status), [pb.NOT_FOUND])

    def test_garbage_and_oversized_messages(self):
        raw = {"/terrace.v1.Cache/" + m: self.daemon.channel.unary_unary("/terrace.v1.Cache/" + m)
               for m in ("OpenSession", "Lookup", "Lease", "Reserve", "Commit", "Delete", "Touch", "Report", "Nothing")}
        rng = random.Random(1)
        for name, call in raw.items():
            for _ in range(30):
                try:
                    call(rng.randbytes(rng.randrange(200)), timeout=CALL_S)
                except grpc.RpcError as error:
                    self.assertNotIn(error.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
                                     name + " " + error.details())
        self.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, raw["/terrace.v1.Cache/Lookup"], b"x" * (64 << 20))
        self.assertTrue(self.daemon.open().session)

    def test_a_full_cache_evicts_the_least_recently_used(self):
        with running(TERRACED, "--host-bytes", "8MiB", "--extent-bytes", "1MiB") as small:
            opened = small.open(layout(layers=32, heads=8, total_heads=8))
            size = opened.layouts[0].block_bytes
            count = 3 * (8 << 20) // size
            for n in range(count):
                self.assertEqual(small.put(opened.session, [(key(n), block(n, size))], chunk=1 << 19), [pb.OK])
                small.get(opened.session, keys(0))
            self.assertEqual(small.get(opened.session, keys(0))[0], (pb.OK, block(0, size)))
            self.assertEqual(small.get(opened.session, keys(count - 1))[0], (pb.OK, block(count - 1, size)))
            self.assertEqual(small.get(opened.session, keys(1))[0], (pb.MISS, b""))

    def test_health_stats_config(self):
        self.assertEqual(self.daemon.health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status, 1)
        self.fails(grpc.StatusCode.NOT_FOUND, self.daemon.health.Check, health_pb2.HealthCheckRequest(service="nobody"))
        watch = self.daemon.health.Watch(health_pb2.HealthCheckRequest(service="terrace.v1.Cache"), timeout=CALL_S)
        self.assertEqual(next(watch).status, 1)
        watch.cancel()
        reply = self.daemon.admin.Stats(pb.StatsRequest(), timeout=CALL_S)
        self.assertEqual(reply.state, "serving")
        self.assertTrue(all(s.help and s.name.startswith("terrace_") for s in reply.stats))
        rows = {r.name: (r.value, r.origin) for r in self.daemon.admin.Config(pb.ConfigRequest(), timeout=CALL_S).rows}
        self.assertEqual(rows["host_bytes"][1], "flag")

    def test_inspect_and_verify(self):
        opened = self.daemon.open(layout(fingerprint=b"h" * 32))
        self.daemon.put(opened.session, [(key(1), block(1, opened.layouts[0].block_bytes))])
        found = self.daemon.admin.Inspect(pb.InspectRequest(key=key(1), layout_id=opened.layouts[0].layout_id),
                                          timeout=CALL_S).blocks
        self.assertEqual([(b.state, b.tokens, b.checksum_ok) for b in found], [("stored", 16, True)])
        verified = self.daemon.admin.Verify(pb.VerifyRequest(), timeout=CALL_S)
        self.assertGreaterEqual(verified.blocks, 1)
        self.assertEqual(verified.corrupt, 0)

    def test_drain_and_undo(self):
        with running(TERRACED, *SMALL) as other:
            opened = other.open()
            other.put(opened.session, [(key(1), block(1, opened.layouts[0].block_bytes))])
            drained = other.admin.Drain(pb.DrainRequest(wait_ms=100), timeout=CALL_S)
            self.assertEqual((drained.sessions, drained.leases), (1, 0))
            self.fails(grpc.StatusCode.UNAVAILABLE, other.cache.OpenSession, pb.OpenSessionRequest(layouts=[layout()]))
            self.assertEqual(other.health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status, 2)
            self.assertEqual(other.get(opened.session, keys(1))[0][0], pb.OK)
            other.admin.Drain(pb.DrainRequest(undo=True), timeout=CALL_S)
            self.assertTrue(other.open().session)

    def test_more_clients_than_a_shell_gives_descriptors(self):
        """gRPC's server that has once run out of them never accepts again."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        disk = tempfile.mkdtemp(prefix="terrace-disk-")
        self.addCleanup(shutil.rmtree, disk)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            other = running(TERRACED, *SMALL, "--disks", disk + ":8GiB", "--slab-bytes", "1MiB")
            daemon = other.__enter__()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            channels = [grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(100)]
            for channel in channels:
                grpc.channel_ready_future(channel).result(timeout=CALL_S)
            for channel in channels:
                channel.close()
            self.assertNotIn("event=files", daemon.log())  # 8 GiB are not 8192 slabs of 1 MiB: they are larger
        finally:
            other.__exit__(None, None, None)

    def test_one_client_leaves_sessions_to_others(self):
        """This process by the local socket, and its address by TCP; another process of the user, meanwhile."""
        def opens(cache, word):
            for n in range(100):
                try:
                    cache.OpenSession(pb.OpenSessionRequest(layouts=[layout()]), timeout=CALL_S)
                except grpc.RpcError as refused:
                    self.assertEqual(refused.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
                    self.assertRegex(refused.details(), "^too many sessions: %s holds .* of 64, .*: close some, or raise sessions_max$" % word)
                    return n
            return None

        with running(TERRACED, *SMALL, "--sessions-max", "64", "--listen", "127.0.0.1:0") as other:
            wait_for(lambda: "event=ready" in other.log(), CALL_S, "it is ready")
            port = re.search(r"event=ready .* port=(\d+)", other.log()).group(1)
            self.assertEqual(opens(other.cache, "process %d" % os.getpid()), 56)
            another = "import sys, grpc, terrace_pb2 as pb, terrace_pb2_grpc as s; " \
                      "c = s.CacheStub(grpc.insecure_channel(sys.argv[1])); q = pb.OpenSessionRequest.FromString(sys.stdin.buffer.read()); " \
                      "c.OpenSession(q, timeout=%d)" % CALL_S
            subprocess.run([sys.executable, "-c", another, other.address], input=pb.OpenSessionRequest(layouts=[layout()]).SerializeToString(),
                           env={**os.environ, "PYTHONPATH": os.path.dirname(pb.__file__)}, check=True)
            with grpc.insecure_channel("127.0.0.1:" + port) as channel:
                self.assertEqual(opens(terrace_pb2_grpc.CacheStub(channel), "address 127.0.0.1"), 4)
            stats = other.stats()
            self.assertEqual((stats["terrace_sessions"], stats["terrace_sessions_max"]), (61, 64))
            self.assertEqual([stats["terrace_quota_refused_total{thing=sessions,reason=%s}" % r] for r in ("full", "user", "process")], [0, 1, 1])

    def test_a_new_start_is_a_new_epoch(self):
        with running(TERRACED, *SMALL) as other:
            before = other.open()
            other.stop()
            other.start()
            after = other.open()
            self.assertNotEqual(before.epoch, after.epoch)
            self.assertEqual(other.cache.Lookup(pb.LookupRequest(session=after.session, keys=keys(1)), timeout=CALL_S).prefix, 0)
            with self.assertRaises(grpc.RpcError) as caught:
                other.cache.Lookup(pb.LookupRequest(session=before.session + 1000, keys=keys(1)), timeout=CALL_S)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        TERRACED = sys.argv.pop(1)
    unittest.main(verbosity=2)
