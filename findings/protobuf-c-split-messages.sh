#!/bin/sh
# protobuf-c 1.4.1 (Debian 12): a sub-message that comes in two parts loses values. The encoding says that two instances
# of a singular field are merged, so that joining the bytes of two messages merges them. Of a proto3 sub-message
# protobuf-c keeps the first part's strings and repeated fields, but sets its numbers to 0 unless the second part has
# them. In a oneof the second part replaces the first as a whole, in proto2 too.
# Guess before the run: it merges as protobuf does, oneof and all.
# Seen, of {layers 32, heads 8} joined with {name "m"}:
#     proto3 field: protobuf 32 8 m; protobuf-c 0 8 m
#     proto3 oneof: protobuf 32 8 m; protobuf-c 0 - m
#     proto2 field: protobuf 32 8 m; protobuf-c 32 8 m
#     proto2 oneof: protobuf 32 8 m; protobuf-c 0 - m
# A sender that appends a change to a message, as protobuf allows, loses values at a receiver that uses protobuf-c.
# Exits 0 if that is so, 1 if it has changed, 2 if the packages or a C compiler cannot be had.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
command -v cc >/dev/null || { echo "there is no C compiler (cc)"; exit 2; }
apt-get -qq download protobuf-c-compiler=1.4.1-1+b1 libprotobuf-c1=1.4.1-1+b1 libprotobuf-c-dev=1.4.1-1+b1 \
	protobuf-compiler libprotoc32 libprotobuf32 2>apt.log || { cat apt.log; exit 2; }
for package in ./*.deb; do dpkg-deb -x "$package" . || exit 2; done
python3 -m venv venv && venv/bin/pip -q install protobuf==7.36.2 || exit 2
libraries=$(echo "$folder"/usr/lib/*-linux-gnu)
export LD_LIBRARY_PATH="$libraries" PATH="$folder/usr/bin:$PATH"

for syntax in proto3 proto2; do
	optional=
	[ $syntax = proto3 ] || optional="optional "
	mkdir $syntax
	cat >$syntax/open.proto <<END_OF_PROTO
syntax = "$syntax";
message Layout { ${optional}int32 layers = 1; repeated int32 heads = 2; ${optional}string name = 3; }
message Open { ${optional}Layout layout = 1; oneof from { Layout copy = 2; uint32 id = 3; } }
END_OF_PROTO
	cat >$syntax/show.c <<'END_OF_C'
#include "open.pb-c.h"
#include <stdio.h>

int main(void)
{
	uint8_t bytes[256];
	Open *open = open__unpack(NULL, fread(bytes, 1, sizeof(bytes), stdin), bytes);
	const Layout *l = !open ? NULL : open->layout ? open->layout : open->copy;

	if (!l)
		return 1;
	printf("%d ", l->layers);
	if (l->n_heads)
		printf("%d ", l->heads[0]);
	else
		printf("- ");
	printf("%s\n", l->name);
	return 0;
}
END_OF_C
	(cd $syntax && protoc-c --c_out=. open.proto && protoc --descriptor_set_out=open.ds open.proto &&
		cc -I"$folder/usr/include" -L"$libraries" -o show show.c open.pb-c.c -l:libprotobuf-c.so.1) || exit 2
done
protoc-c --version
venv/bin/python - <<'END_OF_PYTHON'
import subprocess
import sys

import google.protobuf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

print("python protobuf", google.protobuf.__version__)
seen = []
for syntax in ("proto3", "proto2"):
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(open(syntax + "/open.ds", "rb").read())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    Open = message_factory.GetMessageClass(pool.FindMessageTypeByName("Open"))
    for field, kind in (("layout", "field"), ("copy", "oneof")):
        parts = [Open(**{field: values}) for values in ({"layers": 32, "heads": [8]}, {"name": "m"})]
        joined = b"".join(part.SerializeToString() for part in parts)
        merged = getattr(Open.FromString(joined), field)
        protobuf = "%d %s %s" % (merged.layers, merged.heads[0] if merged.heads else "-", merged.name)
        shown = subprocess.run([syntax + "/show"], input=joined, capture_output=True)
        protobuf_c = shown.stdout.decode().strip() or "refused"
        print("%s %s: protobuf %s; protobuf-c %s" % (syntax, kind, protobuf, protobuf_c))
        seen.append((protobuf, protobuf_c))
expected = [("32 8 m", c) for c in ("0 8 m", "0 - m", "32 8 m", "0 - m")]
sys.exit(0 if seen == expected else 1)
END_OF_PYTHON
