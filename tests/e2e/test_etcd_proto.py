"""proto/etcd.proto against etcd itself: `test_etcd_proto.py`. The installed server has the descriptions of its messages
inside, each as a compressed FileDescriptorProto; every message, field, enum and method of ours must be one of those."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib

from google.protobuf import descriptor_pb2

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = ("etcdserverpb", "mvccpb")


def descriptions(binary):
    """The FileDescriptorProtos inside a program that protoc-gen-gogo made parts of."""
    with open(binary, "rb") as file:
        data = file.read()
    at = data.find(b"\x1f\x8b\x08")
    while at >= 0:
        try:
            yield descriptor_pb2.FileDescriptorProto.FromString(
                zlib.decompressobj(31).decompress(data[at:at + 200000]))
        except Exception:  # not a description
            pass
        at = data.find(b"\x1f\x8b\x08", at + 3)


def last(name):
    return name.rsplit(".", 1)[-1]


def facts(files):
    """Every message's fields, enum's values and service's methods, by names without packages."""
    out = {}

    def enum(path, e):
        for v in e.value:
            out["%s.%s.%s" % (path, e.name, v.name)] = v.number

    def message(path, m):
        name = path + m.name
        out[name] = "message"
        for f in m.field:
            oneof = m.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else None
            out["%s.%s" % (name, f.name)] = (f.number, f.type, f.label, last(f.type_name), oneof)
        for e in m.enum_type:
            enum(name, e)
        for n in m.nested_type:
            message(name + ".", n)

    for f in files:
        for m in f.message_type:
            message("", m)
        for s in f.service:
            for r in s.method:
                out["/%s.%s/%s" % (f.package, s.name, r.name)] = (
                    last(r.input_type), last(r.output_type), r.client_streaming, r.server_streaming)
    return out


class EtcdProto(unittest.TestCase):
    def test_every_line_is_etcds(self):
        theirs = facts(f for f in descriptions(shutil.which("etcd")) if f.package in PACKAGES)
        with tempfile.NamedTemporaryFile() as made:
            subprocess.run(["protoc", "--proto_path=" + os.path.join(ROOT, "proto"), "-o", made.name, "etcd.proto"],
                           check=True)
            ours = facts(descriptor_pb2.FileDescriptorSet.FromString(made.read()).file)
        self.assertGreater(len(ours), 90)
        self.assertGreater(len(theirs), len(ours))
        for name, fact in ours.items():
            self.assertEqual(fact, theirs.get(name), name)


if __name__ == "__main__":
    if not shutil.which("etcd"):
        print("skipped: there is no etcd (Debian's etcd-server)")
        sys.exit(77)
    unittest.main()
