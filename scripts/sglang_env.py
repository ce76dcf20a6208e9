"""Builds an environment in which SGLang's own radix tree runs on CPU: for `make test-sglang`, not
for users.

::

    torch (CPU build, the pin)  ->  those requirements of SGLang that importing its cache takes
    ->  SGLang itself, without the others: they bring CUDA  ->  torchvision, shimmed
    ->  what the tests need  ->  pins.json: what is installed now, before the wheel comes

No server can start in it, and none is needed: the tests drive the tree alone.

    PYTHONPATH=. python scripts/sglang_env.py .venv-sglang [--index URL]
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from scripts.vllm_env import (
    SHIM,
    TEST_TOOLS,
    TORCH,
    TORCHVISION,
    project_of,
    record,
    requirements,
    run,
)

SGLANG = "sglang==0.5.23"
IMPORTED = {
    "aiohttp",
    "apache-tvm-ffi",
    "compressed-tensors",
    "fastapi",
    "gguf",
    "ipython",
    "msgspec",
    "numpy",
    "openai",
    "orjson",
    "packaging",
    "partial_json_parser",
    "pillow",
    "psutil",
    "pybase64",
    "pydantic",
    "pyzmq",
    "requests",
    "sentencepiece",
    "tqdm",
    "transformers",
    "xxhash",
}
"""Of what SGLang declares."""

UNDECLARED = ("dill", "triton")
"""datasets, which is left out, would bring the one; torch for CUDA the other."""


def build(folder: pathlib.Path, index: str | None) -> None:
    """Installs everything into `folder`, made anew."""
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--clear", folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", *(("--index-url", index) if index else ()), TORCH)
    with tempfile.TemporaryDirectory() as scratch:
        run(*pip, "download", "-q", "--no-deps", "--only-binary=:all:", "-d", scratch, SGLANG)
        (wheel,) = pathlib.Path(scratch).glob("*.whl")
        wanted = [line for line in requirements(wheel) if project_of(line) in IMPORTED]
        missing = IMPORTED - set(map(project_of, wanted))
        assert not missing, f"{SGLANG} declares no {', '.join(sorted(missing))}"
        run(*pip, "install", "-q", *wanted, *UNDECLARED, *TEST_TOOLS)
        run(*pip, "install", "-q", "--no-deps", wheel, TORCHVISION)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / "torchvision_shim.pth").write_text(SHIM)
    record(folder, pip)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds an environment with SGLang's cache.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--index", help="an index of CPU builds of torch")
    options = parser.parse_args()
    build(options.folder.resolve(), options.index)


if __name__ == "__main__":
    main()
