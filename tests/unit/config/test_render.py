"""Goal: what is printed about the configuration is right and complete.
Method: feed what is printed back into the loader.  The page: tests/tidy/test_operations.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import hypothesis
import hypothesis.strategies as st

from anchorstore.config import SETTINGS, Config, load, parse_override, render
from anchorstore.config.schema import BY_KEY, build, section_docs, value_of


def test_defaults_toml_loads_to_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "defaults.toml"
    file.write_text(render.defaults_toml())
    loaded = load(file, {})
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {str(file)}, "every key stands in the file"


def test_defaults_toml_with_its_examples_switched_on_loads(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    text = render.defaults_toml().replace("rules = []\n", "")
    lines = [re.sub(r"^# (\[\[|\w+ = )", r"\1", line) for line in text.splitlines()]
    file.write_text("\n".join(lines))
    rules = load(file, {}).config.namespaces.rules
    assert [rule.max_lineage for rule in rules] == [0]


def test_values_text_loads_to_what_it_shows(tmp_path: Path) -> None:
    sets = ['node.name=a "b" \\ c', "lease.read_ttl=333ms", "tiers.dram.capacity=1234567891"]
    sets += ["auth.uids.1000=team a", "auth.admin_uids=1,2", "tiers.dram.segment=12MiB"]
    rules = tmp_path / "rules.toml"
    rules.write_text('[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nquota = "3B"\n')
    loaded = load(rules, {}, [parse_override(item) for item in sets])
    file = tmp_path / "shown.toml"
    file.write_text(render.values_text(loaded))
    assert load(file, {}).config == loaded.config
    assert "# --set lease.read_ttl\n" in file.read_text()


def test_values_plain_gives_base_units_and_sources() -> None:
    plain = render.values_plain(load(None, {"ANCHORSTORE__LEASE__READ_TTL": "1m"}))
    assert plain["lease.read_ttl"] == {
        "value": 60.0,
        "written": '"1m"',
        "unit": "seconds",
        "source": "environment ANCHORSTORE__LEASE__READ_TTL",
    }
    assert plain["tiers.dram.segment"]["value"] is None
    assert set(plain) == {item.key for item in SETTINGS}


@hypothesis.given(capacity=st.integers(8 * 2**20, 2**50), milliseconds=st.integers(100, 3_600_000))
def test_show_of_any_size_or_duration_parses_to_the_same(capacity: int, milliseconds: int) -> None:
    for key, value in ((("tiers.dram.capacity"), capacity), ("lease.read_ttl", milliseconds / 1e3)):
        kind = BY_KEY[key].kind
        assert kind.parse(tomllib.loads(f"x = {kind.show(value)}")["x"]) == value


@hypothesis.given(text=st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text))
def test_show_of_any_text_parses_to_the_same(text: str) -> None:
    kind = BY_KEY["auth.default_domain"].kind
    assert kind.parse(tomllib.loads(f"x = {kind.show(text)}")["x"]) == text


def test_settings_everywhere_say_what_and_when() -> None:
    for item in SETTINGS:
        assert item.meaning.endswith("."), f"{item.key}: a sentence ends with a full stop"
        assert item.when.endswith("."), f"{item.key}: a sentence ends with a full stop"
    assert {item.section for item in SETTINGS} == set(section_docs())


def test_build_with_an_unknown_key_is_refused() -> None:
    try:
        build({"tiers.dram.capcity": 1})
    except KeyError as error:
        assert "tiers.dram.capcity" in str(error)
    else:
        raise AssertionError("an unknown key was accepted")


def test_build_puts_every_value_where_its_key_says() -> None:
    for item in SETTINGS:
        changed = build({item.key: "marker"})
        assert value_of(changed, item) == "marker"
        others = [other for other in SETTINGS if other != item]
        assert all(value_of(changed, other) == other.default for other in others)
