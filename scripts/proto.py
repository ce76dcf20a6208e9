"""Generates the protobuf and gRPC stubs in anchorstore/wire/v1 from proto/anchorstore/v1.

Stubs refuse a runtime older than their generator, so the generator is old on purpose:
grpcio-tools 1.74.0 writes gencode 6.31.1, which imports under protobuf 6.31 to 7.x.

    python scripts/proto.py           write the stubs
    python scripts/proto.py --check   fail where the committed stubs differ
"""

import argparse
import filecmp
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "anchorstore" / "wire" / "v1"
GENERATOR = "grpcio-tools 1.74.0"


def generate(out: pathlib.Path) -> list[pathlib.Path]:
    """Writes the stubs below `out`; returns them."""
    protos = sorted((ROOT / "proto" / "anchorstore" / "v1").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}"]
    command += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(command + [str(path) for path in protos], check=True)
    stubs = [p for p in sorted((out / "anchorstore" / "v1").iterdir()) if p.stat().st_size]
    for path in stubs:
        text = path.read_text()
        text = text.replace("from anchorstore.v1 import", "from anchorstore.wire.v1 import")
        path.write_text(text)
    return stubs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        stubs = generate(pathlib.Path(folder))
        if check:
            stale = [
                p.name
                for p in stubs
                if not (TARGET / p.name).exists()
                or not filecmp.cmp(p, TARGET / p.name, shallow=False)
            ]
            print("stale stubs: " + ", ".join(stale) if stale else "stubs are up to date")
            return 1 if stale else 0
        TARGET.mkdir(parents=True, exist_ok=True)
        (TARGET / "__init__.py").touch()
        for path in stubs:
            (TARGET / path.name).write_text(path.read_text())
        print(f"wrote {len(stubs)} files with {GENERATOR}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
