#!/bin/sh
# protobuf-c 1.4.1 (Debian 12): a message that has a field of a newer schema can be refused as a whole. An unknown field
# that is a group makes unpack return NULL. A group is what a message field of edition 2023 is with
# features.message_encoding = DELIMITED. So does a known number with another wire type (varint, now fixed32). protobuf
# keeps both among the unknown fields and reads the rest.
# Guess before the run: a group is skipped or kept as an unknown field, as an unknown varint is.
# Seen, of a Stats of a newer schema, {blocks 5, ...}, in a reader whose schema has {int32 blocks = 1, int32 epoch = 3}:
#     varint of an unknown number: protobuf 5; protobuf-c 5
#     length-prefixed message of an unknown number: protobuf 5; protobuf-c 5
#     delimited message of an unknown number: protobuf 5; protobuf-c refused
#     fixed32 of a known number: protobuf 5; protobuf-c refused
# A schema with readers in protobuf-c can grow, but not by delimited fields. Exits 0 if that is so, 1 if it has changed,
# 2 if the packages or a C compiler cannot be had.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
command -v cc >/dev/null || { echo "there is no C compiler (cc)"; exit 2; }
apt-get -qq download protobuf-c-compiler=1.4.1-1+b1 libprotobuf-c1=1.4.1-1+b1 libprotobuf-c-dev=1.4.1-1+b1 \
	libprotoc32 libprotobuf32 2>apt.log || { cat apt.log; exit 2; }
for package in ./*.deb; do dpkg-deb -x "$package" . || exit 2; done
python3 -m venv venv && venv/bin/pip -q install grpcio-tools==1.85.1 protobuf==7.36.2 || exit 2
libraries=$(echo "$folder"/usr/lib/*-linux-gnu)

cat >old.proto <<'END_OF_PROTO'
syntax = "proto3";
message Stats { int32 blocks = 1; int32 epoch = 3; }
END_OF_PROTO
cat >new.proto <<'END_OF_PROTO'
edition = "2023";
message Note { int32 code = 1; }
message Stats {
  int32 blocks = 1;
  fixed32 epoch = 3;
  int32 number = 4;
  Note prefixed = 5;
  Note delimited = 6 [features.message_encoding = DELIMITED];
}
END_OF_PROTO
cat >show.c <<'END_OF_C'
#include "old.pb-c.h"
#include <stdio.h>

int main(void)
{
	uint8_t bytes[256];
	Stats *stats = stats__unpack(NULL, fread(bytes, 1, sizeof(bytes), stdin), bytes);

	if (stats)
		printf("%d\n", stats->blocks);
	else
		printf("refused\n");
	return 0;
}
END_OF_C
export LD_LIBRARY_PATH="$libraries"
usr/bin/protoc-c --version
usr/bin/protoc-c --c_out=. old.proto &&
	cc -Iusr/include -L"$libraries" -o show show.c old.pb-c.c -l:libprotobuf-c.so.1 || exit 2
for schema in old new; do
	venv/bin/python -m grpc_tools.protoc -I. --descriptor_set_out=$schema.ds $schema.proto || exit 2
done
venv/bin/python - <<'END_OF_PYTHON'
import subprocess
import sys

import google.protobuf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def message_of(schema):
    files = descriptor_pb2.FileDescriptorSet.FromString(open(schema + ".ds", "rb").read())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Stats"))


print("python protobuf", google.protobuf.__version__)
Old, New = message_of("old"), message_of("new")
cases = (("varint of an unknown number", {"number": 7}, "5"),
         ("length-prefixed message of an unknown number", {"prefixed": {"code": 7}}, "5"),
         ("delimited message of an unknown number", {"delimited": {"code": 7}}, "refused"),
         ("fixed32 of a known number", {"epoch": 7}, "refused"))
same = True
for name, fields, expected in cases:
    data = New(blocks=5, **fields).SerializeToString()
    protobuf = str(Old.FromString(data).blocks)
    protobuf_c = subprocess.run(["./show"], input=data, capture_output=True).stdout.decode().strip()
    print("%s: protobuf %s; protobuf-c %s" % (name, protobuf, protobuf_c))
    same = same and (protobuf, protobuf_c) == ("5", expected)
sys.exit(0 if same else 1)
END_OF_PYTHON
