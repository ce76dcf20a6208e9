"""The weights digest: which weights a model directory holds, however its files are cut.

::

    model-00001.safetensors --+   (name, dtype, shape, SHA-256 of the bytes)
    model-00002.safetensors --+-> (name, dtype, shape, SHA-256 of the bytes)  sorted by name
                                  ...                                              |
    .anchorstore-weights.json  <-- digest, names, sizes, times   <-- SHA-256 of canonical CBOR

Reads the safetensors format itself (8 bytes of length, a JSON header, the data), with bounds, a
megabyte at a time; torch is not needed.  The result is cached beside the weights, or in the
user's cache directory where that one is read-only (docs/formats.md, section 6).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import os
import pathlib
import re
from typing import Any, BinaryIO

from anchorstore.errors import ModelError
from anchorstore.keys import DIGEST_BYTES, canonical_cbor

FORMAT = "anchorstore/weights/1"
CACHE_NAME = ".anchorstore-weights.json"
CACHE_BYTES_MAX = 2**20
HEADER_BYTES_MAX = 100_000_000  # the format's own limit
INDEX_BYTES_MAX = 100_000_000
FILES_MAX = 4096
TENSORS_MAX = 1_000_000
DIMENSIONS_MAX = 32
NAME_BYTES_MAX = 1024
READ_BYTES = 2**20
READERS = 4

DTYPE_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
DTYPE_BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
DTYPE_BITS |= dict.fromkeys(("U16", "I16", "F16", "BF16"), 16)
DTYPE_BITS |= dict.fromkeys(("U32", "I32", "F32"), 32)
DTYPE_BITS |= dict.fromkeys(("U64", "I64", "F64", "C64"), 64)

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a safetensors file; `start` and `stop` count bytes from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def weights_digest(directory: pathlib.Path, cache: pathlib.Path | None = None) -> bytes:
    """32 bytes that name the weights in `directory`.

    Args:
        directory: a model directory with safetensors files.
        cache: where to remember the digest when `directory` is read-only; the user's cache
            directory by default.

    Raises:
        ModelError: no safetensors file, one that breaks the format, or one that changed meanwhile.
    """
    return digest_of_files(directory, weight_files(directory), cache)


def digest_of_files(
    directory: pathlib.Path, files: list[pathlib.Path], cache: pathlib.Path | None = None
) -> bytes:
    """The same of `files`, which lie in `directory`."""
    before = stamps_of(files)
    places = (directory / CACHE_NAME, _fallback(directory, cache))
    for place in places:
        cached = _read_cache(place, before)
        if cached is not None:
            return cached
    with concurrent.futures.ThreadPoolExecutor(min(READERS, len(files))) as pool:
        hashed = [row for rows in pool.map(_hash_file, files) for row in rows]
    if stamps_of(files) != before:
        raise ModelError(f"{directory}: the weights changed while they were read")
    digest = digest_of_tensors(hashed)
    _write_cache(places, before, digest)
    return digest


def digest_of_tensors(tensors: list[tuple[TensorEntry, bytes]]) -> bytes:
    """SHA-256 over the sorted (name, dtype, shape, SHA-256 of the content)."""
    ordered = sorted(tensors, key=lambda pair: pair[0].name.encode())
    for (tensor, _), (following, _) in itertools.pairwise(ordered):
        if tensor.name == following.name:
            raise ModelError(f"tensor {tensor.name!r:.200} is there twice")
    rows = [[t.name, t.dtype, list(t.shape), content] for t, content in ordered]
    return hashlib.sha256(canonical_cbor({"format": FORMAT, "tensors": rows})).digest()


def weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """The safetensors files of a model: those in its index, else model.safetensors, else all."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = _index_names(index)
    elif (directory / "model.safetensors").exists():
        names = {"model.safetensors"}
    else:
        names = {path.name for path in directory.glob("*.safetensors")}
    if not 1 <= len(names) <= FILES_MAX:
        raise ModelError(
            f"{directory} has {len(names)} safetensors files, must be 1 to {FILES_MAX}"
        )
    return [directory / name for name in sorted(names)]


def _index_names(index: pathlib.Path) -> set[str]:
    try:
        if index.stat().st_size > INDEX_BYTES_MAX:
            raise ModelError(f"{index}: more than {INDEX_BYTES_MAX} bytes")
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is not an index of safetensors files: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise ModelError(f"{index} names {name!r:.200}, which is no file of this directory")
    return names


# ---- the format ------------------------------------------------------------------------------


def read_header(file: BinaryIO, file_bytes: int, name: str) -> list[TensorEntry]:
    """Checked entries of a safetensors file; ModelError names what breaks the format."""
    if file_bytes < 8:
        raise ModelError(f"{name}: {file_bytes} bytes, a safetensors file has 8 or more")
    header_bytes = int.from_bytes(file.read(8), "little")
    limit = min(HEADER_BYTES_MAX, file_bytes - 8)
    if header_bytes > limit:
        raise ModelError(f"{name}: header of {header_bytes} bytes, limit {limit}")
    try:
        header = json.loads(file.read(header_bytes), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name}: header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{name}: header is a {type(header).__name__}, must be an object")
    header.pop("__metadata__", None)
    if len(header) > TENSORS_MAX:
        raise ModelError(f"{name}: {len(header)} tensors, limit {TENSORS_MAX}")
    base = 8 + header_bytes
    entries = [_entry(f"{name}: {key!r:.200}", key, value, base) for key, value in header.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    at = base
    for entry in entries:
        if entry.start != at:
            raise ModelError(
                f"{name}: {entry.name!r:.200} starts at byte {entry.start}, must start at {at}"
            )
        at = entry.stop
    if at != file_bytes:
        raise ModelError(f"{name}: tensors end at byte {at}, the file at {file_bytes}")
    return entries


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _entry(thing: str, name: str, value: Any, base: int) -> TensorEntry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ModelError(f"{thing} must have dtype, shape and data_offsets")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ModelError(f"{thing}: the name is not Unicode text") from error
    if size > NAME_BYTES_MAX:
        raise ModelError(f"{thing}: a name of {size} bytes, limit {NAME_BYTES_MAX}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ModelError(f"{thing}: dtype {dtype!r:.80} is unknown")
    if not _sizes(shape) or len(shape) > DIMENSIONS_MAX:
        raise ModelError(f"{thing}: shape {shape!r:.80} is not a list of sizes")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelError(f"{thing}: data_offsets {offsets!r:.80} are not a start and a stop")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise ModelError(
            f"{thing}: {offsets[1] - offsets[0]} bytes, but {dtype} {shape!r:.80} takes {bits} bits"
        )
    return TensorEntry(name, dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _hash_file(path: pathlib.Path) -> list[tuple[TensorEntry, bytes]]:
    try:
        with path.open("rb") as raw:
            entries = read_header(raw, os.fstat(raw.fileno()).st_size, path.name)
            return [(entry, _hash_range(raw, entry, path.name)) for entry in entries]
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _hash_range(file: BinaryIO, entry: TensorEntry, name: str) -> bytes:
    digest, left = hashlib.sha256(), entry.stop - entry.start
    file.seek(entry.start)
    while left:
        piece = file.read(min(left, READ_BYTES))
        if not piece:
            raise ModelError(f"{name}: ends within {entry.name!r:.200}")
        digest.update(piece)
        left -= len(piece)
    return digest.digest()


# ---- the cache -------------------------------------------------------------------------------


def stamps_of(files: list[pathlib.Path]) -> list[list[Any]]:
    """Name, size, times of modification and of change, and inode of each file.

    A tool can set the modification time back (`cp -p`, `rsync -t`), but not the time of change; a
    file that is moved into another's place has another inode.
    """
    try:
        stats = [(path.name, path.stat()) for path in files]
    except OSError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}") from error
    return [
        [name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        for name, stat in stats
    ]


def _fallback(directory: pathlib.Path, cache: pathlib.Path | None) -> pathlib.Path:
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME", "")
        base = pathlib.Path(home) if os.path.isabs(home) else pathlib.Path.home() / ".cache"
        cache = base / "anchorstore" / "weights"
    return cache / f"{hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]}.json"


def _read_cache(place: pathlib.Path, stamps: list[list[Any]]) -> bytes | None:
    """The digest remembered for exactly these files, or None."""
    try:
        if place.stat().st_size > CACHE_BYTES_MAX:
            return None
        held = json.loads(place.read_bytes())
        if held["format"] != FORMAT or held["files"] != stamps:
            return None
        digest = bytes.fromhex(held["digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # absent or not ours: hash again
    return digest if len(digest) == DIGEST_BYTES else None


def _write_cache(places: tuple[pathlib.Path, ...], stamps: list[list[Any]], digest: bytes) -> None:
    """Remembers the digest at the first place that can be written; without one it is lost."""
    text = json.dumps({"format": FORMAT, "files": stamps, "digest": digest.hex()}) + "\n"
    for place in places:
        draft = place.with_name(f"{place.name}.{os.getpid()}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text)
            os.replace(draft, place)
            return
        except OSError as error:
            _log.info("weights digest not cached at %s: %s", place, error.strerror)
        finally:
            if draft.exists():
                draft.unlink()
