"""The versions of vLLM that this connector was run with. vLLM changes the interfaces below its connectors between
minor versions, so a version that is not listed is refused with a sentence, and not tried."""

from __future__ import annotations

from typing import Optional

# Minor versions, each with the release that tests/engines/run.sh runs.
VERSIONS = {"0.31": "0.31.0", "0.32": "0.32.0"}


def minor(version: str) -> str:
    """"0.32" of "0.32.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def refusal(version: str) -> Optional[str]:
    """None, or the sentence that says why this version is refused."""
    if minor(version) in VERSIONS:
        return None
    return ("terrace.vllm was run with vLLM %s and not with %s, whose connector interface may differ: install one of those, or run "
            "tests/engines/run.sh of Terrace with yours and add it to terrace/vllm/compatibility.py"
            % (" and ".join(sorted(VERSIONS.values())), version))


def check() -> None:
    """Raises RuntimeError if the installed vLLM is none of those."""
    import vllm
    sentence = refusal(vllm.__version__)
    if sentence:
        raise RuntimeError(sentence)
