"""Goal: pages go under the name of the adapter that computed them and of the caller's salt, or
under none; one key that is wrong is not in the way of others.
Method: an adapter's folder that changes under its number; salts of every size; a connect that
fails.
"""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

from anchorstore.errors import AnchorStoreError, ConnectFailed, InvalidKey
from anchorstore.keys import SALT_BYTES_MAX, TEXT_BYTES_MAX
from engine_adapter.vllm.adapters import Adapters
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.subject import space_of
from tests.unit.test_model_digest import adapter


def lora(folder: pathlib.Path, number: int = 1, name: str = "style", **changes: Any) -> Any:
    fields = {"lora_path": str(folder), "lora_int_id": number, "lora_name": name}
    flags = {"load_inplace": False, "is_3d_lora_weight": False}
    return types.SimpleNamespace(**{**fields, **flags, **changes})


def request(salt: str | None) -> Any:
    return types.SimpleNamespace(cache_salt=salt, lora_request=None)


def test_adapter_keeps_its_name_as_long_as_its_files_stand(tmp_path: pathlib.Path) -> None:
    names, folder = Adapters(None), adapter(tmp_path / "a")
    first = names(lora(folder))
    assert first.startswith("style:")
    assert names(lora(folder)) == first == names(lora(folder, number=2))


def test_adapter_overwritten_under_its_number_has_no_name_until_it_is_loaded_anew(
    tmp_path: pathlib.Path,
) -> None:
    names, folder = Adapters(None), adapter(tmp_path / "a")
    first = names(lora(folder))
    adapter(folder, b"xyzw")
    assert names(lora(folder)) == ""
    other = names(lora(folder, number=2))
    assert other not in ("", first)
    assert names(lora(folder, load_inplace=True)) == other
    assert names(lora(folder)) == other
    adapter(folder)  # the first content again: vLLM still holds the other
    assert names(lora(folder)) == ""


def test_adapter_s_number_under_another_path_has_no_name(tmp_path: pathlib.Path) -> None:
    names = Adapters(None)
    assert names(lora(adapter(tmp_path / "a")))
    assert names(lora(adapter(tmp_path / "b"))) == ""
    assert names(lora(tmp_path / "a")) == ""  # and which one it is now, nobody knows


def test_adapter_without_files_has_no_name(tmp_path: pathlib.Path) -> None:
    names = Adapters(None)
    assert names(lora(tmp_path)) == ""
    adapter(tmp_path)  # beside what vLLM may have loaded in another format
    assert names(lora(tmp_path)) == ""
    assert names(lora(tmp_path, number=2))


def test_adapter_s_name_depends_on_what_vllm_makes_of_it(tmp_path: pathlib.Path) -> None:
    folder = adapter(tmp_path / "a")
    configs = [
        None,
        types.SimpleNamespace(lora_dtype="float16", target_modules=None),
        types.SimpleNamespace(lora_dtype="float16", target_modules=["q_proj"]),
    ]
    found = {Adapters(config)(lora(folder)) for config in configs}
    assert len(found | {Adapters(None)(lora(folder, is_3d_lora_weight=True))}) == 4


@pytest.mark.parametrize("name", ["n" * 5000, "\U0001f600" * 5000, "\ud800" * 5000], ids=range(3))
def test_adapter_s_name_fits_a_namespace(name: str, tmp_path: pathlib.Path) -> None:
    found = Adapters(None)(lora(adapter(tmp_path / "a"), name=name))
    assert 0 < len(found.encode()) <= TEXT_BYTES_MAX


def test_salt_that_is_too_long_stands_as_its_hash() -> None:
    fits, long, other = ("s" * SALT_BYTES_MAX, "s" * (SALT_BYTES_MAX + 1), "s" * 5000)
    salts = [space_of(request(salt), str, b"").salt for salt in (fits, long, other)]
    assert salts[0] == fits.encode()
    assert [len(salt) for salt in salts[1:]] == [32, 32]
    assert len(set(salts)) == 3
    assert space_of(request(None), str, b"") == SpaceKey()


def test_salt_of_half_a_character_is_a_salt() -> None:
    assert space_of(request("\ud800"), str, b"").salt not in (b"", b"?")


@pytest.mark.parametrize(
    ("error", "others"), [(InvalidKey("no"), "connected"), (ConnectFailed("no"), "unreachable")]
)
def test_key_that_is_wrong_bars_no_other(error: AnchorStoreError, others: str) -> None:
    class Connected(Exception):
        pass

    def connect(key: SpaceKey) -> Any:
        if key.adapter == "wrong":
            raise error
        raise Connected

    spaces = Spaces(connect, 4, 60.0)
    assert spaces.get(SpaceKey("wrong")) == "refused"
    if others == "connected":
        with pytest.raises(Connected):
            spaces.get(SpaceKey())
    else:
        assert spaces.get(SpaceKey()) == others
