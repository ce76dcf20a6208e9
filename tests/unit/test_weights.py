"""Goal: the weights digest names the tensors and nothing else, and no header can fool the reader.

Method: write safetensors files by hand (and once with the reference library), cut and reorder them;
generate hostile headers; look at what the cache remembers.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstore.errors import ModelError
from anchorstore.weights import (
    CACHE_NAME,
    DTYPE_BITS,
    HEADER_BYTES_MAX,
    read_header,
    weights_digest,
)

Tensor = tuple[str, tuple[int, ...], bytes]
TENSORS: dict[str, Tensor] = {
    "embed.weight": ("BF16", (3, 2), bytes(range(12))),
    "layers.0.a": ("F32", (1,), b"abcd"),
    "layers.0.b": ("U8", (5,), b"hello"),
    "empty": ("F32", (0, 4), b""),
    "scalar": ("I64", (), b"12345678"),
}


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def safetensors(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    return file_of(header, data)


def write(folder: pathlib.Path, files: dict[str, bytes]) -> pathlib.Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def digest(folder: pathlib.Path) -> bytes:
    return weights_digest(folder, cache=folder.parent / "cache")


def only(names: set[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in TENSORS.items() if name in names}


def test_digest_of_the_same_tensors_is_the_same_however_they_are_filed(
    tmp_path: pathlib.Path,
) -> None:
    half = {"embed.weight", "scalar"}
    parts = {"a.safetensors": only(half), "b.safetensors": only(set(TENSORS) - half)}
    index = {"weight_map": {n: file for file, tensors in parts.items() for n in tensors}}
    shards = {file: safetensors(tensors) for file, tensors in parts.items()}
    backwards = dict(reversed(TENSORS.items()))
    folders = [
        {"model.safetensors": safetensors(TENSORS)},
        {"model.safetensors": safetensors(backwards, metadata={"format": "pt"})},
        {"any name.safetensors": safetensors(TENSORS)},
        shards,
        shards
        | {
            "model.safetensors.index.json": json.dumps(index).encode(),
            "consolidated.safetensors": safetensors(TENSORS),
        },
    ]
    found = {digest(write(tmp_path / str(i), files)) for i, files in enumerate(folders)}
    assert len(found) == 1


def test_digest_after_any_change_of_a_tensor_differs(tmp_path: pathlib.Path) -> None:
    changed: list[dict[str, Tensor]] = [
        TENSORS,
        TENSORS | {"layers.0.a": ("F32", (1,), b"abce")},
        TENSORS | {"layers.0.a": ("I32", (1,), b"abcd")},
        TENSORS | {"layers.0.a": ("F32", (1, 1), b"abcd")},
        TENSORS | {"embed.weight": ("BF16", (2, 3), bytes(range(12)))},
        TENSORS | {"extra": ("U8", (0,), b"")},
        {n: t for n, t in TENSORS.items() if n != "empty"},
        {n.replace("layers.0.a", "layers.0.c"): t for n, t in TENSORS.items()},
    ]
    found = {
        digest(write(tmp_path / str(i), {"model.safetensors": safetensors(tensors)}))
        for i, tensors in enumerate(changed)
    }
    assert len(found) == len(changed)


def test_digest_of_a_file_by_the_reference_library_is_that_of_ours(tmp_path: pathlib.Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    (tmp_path / "theirs").mkdir()
    library.save_file(
        {"x.weight": array, "step": np.array([7], np.int64)},
        tmp_path / "theirs" / "model.safetensors",
        metadata={"format": "np"},
    )
    tensors: dict[str, Tensor] = {
        "step": ("I64", (1,), (7).to_bytes(8, "little")),
        "x.weight": ("F16", (2, 3), array.tobytes()),
    }
    ours = write(tmp_path / "ours", {"model.safetensors": safetensors(tensors)})
    assert digest(tmp_path / "theirs") == digest(ours)


# ---- hostile files ---------------------------------------------------------------------------

ENTRY = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"1234567", "7 bytes"),
        ((2**64 - 1).to_bytes(8, "little"), "limit 0"),
        ((100).to_bytes(8, "little") + b"{}", "limit 2"),
        (file_of(b"{"), "not JSON"),
        (file_of(b"\xff\xfe\xfd"), "not JSON"),
        (file_of(b"[" * 100_000), "not JSON"),
        (file_of(b'{"a": ' + b"9" * 5000 + b"}"), "not JSON"),
        (file_of([]), "must be an object"),
        (file_of(b'{"a": {}, "a": {}}'), "twice"),
        (file_of({"a": 1}), "must have dtype"),
        (file_of({"a": ENTRY | {"more": 1}}, b"xy"), "must have dtype"),
        (file_of({"a": ENTRY | {"dtype": "Q4"}}, b"xy"), "dtype 'Q4'"),
        (file_of({"a": ENTRY | {"dtype": ["U8"]}}, b"xy"), "dtype"),
        (file_of({"a": ENTRY | {"shape": [-2]}}, b"xy"), "not a list of sizes"),
        (file_of({"a": ENTRY | {"shape": [2.0]}}, b"xy"), "not a list of sizes"),
        (file_of({"a": ENTRY | {"shape": [True, 2]}}, b"xy"), "not a list of sizes"),
        (file_of({"a": ENTRY | {"shape": [2**63]}}, b"xy"), "not a list of sizes"),
        (file_of({"a": ENTRY | {"shape": [1] * 33}}, b"xy"), "not a list of sizes"),
        (file_of({"a": ENTRY | {"shape": [2**62, 2**62]}}, b"xy"), "takes"),
        (file_of({"a": ENTRY | {"shape": [3]}}, b"xy"), "takes 24 bits"),
        (file_of({"a": ENTRY | {"data_offsets": [2, 0]}}, b"xy"), "a start and a stop"),
        (file_of({"a": ENTRY | {"data_offsets": [0]}}, b"xy"), "a start and a stop"),
        (file_of({"a": ENTRY | {"data_offsets": [-2, 0]}}, b"xy"), "a start and a stop"),
        (file_of({"a": ENTRY | {"data_offsets": [1, 3]}}, b"xyz"), "must start at"),
        (file_of({"a": ENTRY, "b": ENTRY}, b"xy"), "must start at"),
        (file_of({"a": ENTRY}, b"x"), "tensors end at byte"),
        (file_of({"a": ENTRY}, b"xyz"), "tensors end at byte"),
        (file_of({"n" * 1025: ENTRY}, b"xy"), "a name of 1025 bytes"),
        (
            file_of(b'{"\\ud800": {"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xy"),
            "Unicode",
        ),
    ],
    ids=range(30),
)
def test_file_that_breaks_the_format_is_refused(
    content: bytes, message: str, tmp_path: pathlib.Path
) -> None:
    folder = write(tmp_path / "model", {"model.safetensors": content})
    with pytest.raises(ModelError, match=message):
        digest(folder)
    assert not (folder / CACHE_NAME).exists()


def test_header_of_more_than_the_limit_is_refused_unread() -> None:
    size = HEADER_BYTES_MAX + 1
    file = io.BytesIO(size.to_bytes(8, "little"))
    with pytest.raises(ModelError, match=f"limit {HEADER_BYTES_MAX}"):
        read_header(file, 2 * size, "huge")


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(sorted(DTYPE_BITS)), VALUES),
        "shape": st.one_of(st.lists(st.integers(-1, 4), max_size=3), VALUES),
        "data_offsets": st.one_of(st.lists(st.integers(-1, 20), max_size=3), VALUES),
    }
)


@settings(max_examples=300)
@given(st.dictionaries(st.text(max_size=4), st.one_of(ENTRIES, VALUES)), st.binary(max_size=30))
def test_header_of_any_content_is_refused_or_tiles_the_file(
    header: dict[str, Any], data: bytes
) -> None:
    content = file_of(header, data)
    try:
        entries = read_header(io.BytesIO(content), len(content), "any")
    except ModelError:
        return
    at = len(content) - len(data)
    for entry in entries:
        assert entry.start == at
        at = entry.stop
    assert at == len(content)


@settings(max_examples=300)
@given(st.data())
def test_file_with_bytes_changed_is_refused_or_stays_in_bounds(data: st.DataObject) -> None:
    content = bytearray(safetensors(TENSORS))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        entries = read_header(io.BytesIO(content), len(content), "any")
    except ModelError:
        return
    assert all(8 <= entry.start <= entry.stop <= len(content) for entry in entries)


@pytest.mark.parametrize(
    "index",
    [
        b"{",
        b"[]",
        b'{"weight_map": 3}',
        b'{"weight_map": {"a": "../../etc/passwd"}}',
        b'{"weight_map": {"a": "sub/x.safetensors"}}',
        b'{"weight_map": {"a": "model.bin"}}',
        b'{"weight_map": {"a": ["x"]}}',
        b'{"weight_map": {"a": 7}}',
        b'{"weight_map": {"a": "absent.safetensors"}}',
        b'{"weight_map": {}}',
    ],
)
def test_index_that_names_no_file_of_the_folder_is_refused(
    index: bytes, tmp_path: pathlib.Path
) -> None:
    files = {"model.safetensors": safetensors(TENSORS), "model.safetensors.index.json": index}
    with pytest.raises(ModelError):
        digest(write(tmp_path / "model", files))


def test_folder_without_safetensors_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match="0 safetensors files"):
        digest(write(tmp_path / "model", {"pytorch_model.bin": b"x"}))


def test_tensor_in_two_files_is_refused(tmp_path: pathlib.Path) -> None:
    one = safetensors(only({"layers.0.a"}))
    with pytest.raises(ModelError, match=r"'layers\.0\.a' is there twice"):
        digest(write(tmp_path / "model", {"x.safetensors": one, "y.safetensors": one}))


# ---- the cache -------------------------------------------------------------------------------


def model(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path / "model", {"model.safetensors": safetensors(TENSORS)})


def test_digest_asked_again_comes_from_the_cache(tmp_path: pathlib.Path) -> None:
    folder = model(tmp_path)
    digest(folder)
    held = json.loads((folder / CACHE_NAME).read_text())
    held["digest"] = "ab" * 32
    (folder / CACHE_NAME).write_text(json.dumps(held))
    assert digest(folder) == b"\xab" * 32, "the planted digest shows that no file was read"


@pytest.mark.parametrize("change", ["size", "mtime", "name"])
def test_digest_after_a_file_changed_is_computed_again(change: str, tmp_path: pathlib.Path) -> None:
    folder = model(tmp_path)
    first = digest(folder)
    file = folder / "model.safetensors"
    stamp = file.stat().st_mtime_ns
    other = TENSORS | {"layers.0.a": ("F32", (1,), b"wxyz")}
    match change:
        case "size":
            file.write_bytes(safetensors(other, metadata={"more": "bytes"}))
            os.utime(file, ns=(stamp, stamp))
        case "mtime":
            file.write_bytes(safetensors(other))
            os.utime(file, ns=(stamp, stamp + 1_000_000))
        case "name":
            file.unlink()
            (folder / "renamed.safetensors").write_bytes(safetensors(other))
            os.utime(folder / "renamed.safetensors", ns=(stamp, stamp))
    assert digest(folder) != first


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": 1}', b'{"files": 3, "digest": 4}', b"\xff", b"[" * 100_000],
    ids=range(7),
)
def test_cache_with_rubbish_is_ignored_and_replaced(content: bytes, tmp_path: pathlib.Path) -> None:
    folder = model(tmp_path)
    first = digest(folder)
    good = (folder / CACHE_NAME).read_text()
    (folder / CACHE_NAME).write_bytes(content)
    assert digest(folder) == first
    assert (folder / CACHE_NAME).read_text() == good


def test_cache_is_not_good_for_weights_whose_time_was_set_back(tmp_path: pathlib.Path) -> None:
    folder = model(tmp_path)
    first, path = digest(folder), folder / "model.safetensors"
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert digest(folder) != first


def test_cache_with_a_digest_of_another_length_is_ignored(tmp_path: pathlib.Path) -> None:
    folder = model(tmp_path)
    first = digest(folder)
    held = json.loads((folder / CACHE_NAME).read_text()) | {"digest": "abcd"}
    (folder / CACHE_NAME).write_text(json.dumps(held))
    assert digest(folder) == first


def test_cache_of_a_folder_that_takes_no_file_goes_to_the_other_place(
    tmp_path: pathlib.Path,
) -> None:
    folder = model(tmp_path)
    (folder / CACHE_NAME).mkdir()  # stands in for a read-only folder: nothing can be put there
    first = digest(folder)
    (held,) = (tmp_path / "cache").iterdir()
    planted = json.loads(held.read_text()) | {"digest": "cd" * 32}
    assert planted != json.loads(held.read_text())
    held.write_text(json.dumps(planted))
    assert digest(folder) == b"\xcd" * 32 != first
    assert sorted(path.name for path in folder.iterdir()) == [CACHE_NAME, "model.safetensors"]


def test_digest_without_any_place_for_a_cache_is_still_given(tmp_path: pathlib.Path) -> None:
    folder = model(tmp_path)
    (folder / CACHE_NAME).mkdir()
    (tmp_path / "cache").write_text("a file, not a folder")
    assert digest(folder) == digest(folder)


def test_cache_by_default_is_below_the_users_cache_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path)
    (folder / CACHE_NAME).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    weights_digest(folder)
    assert len(list((tmp_path / "home" / "anchorstore" / "weights").iterdir())) == 1
