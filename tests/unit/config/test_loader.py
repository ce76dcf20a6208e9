"""Goal: the configuration is loaded in the documented order, and whatever is wrong is refused.
Method: load() with files in a temporary folder and environments as plain dicts; every refusal must
name the place, the key, the value and, where there is one, the nearest name or the limit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorstore.config import (
    SETTINGS,
    Config,
    NamespaceRule,
    Override,
    load,
    parse_override,
)
from anchorstore.config.combine import problems
from anchorstore.config.loader import FILE_BYTES_MAX
from anchorstore.errors import ConfigError
from anchorstore.units import GIB, MIB

CAPACITY = "tiers.dram.capacity"
CAPACITY_VARIABLE = "ANCHORSTORE__TIERS__DRAM__CAPACITY"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "anchorstore.toml"


def refusal(
    text: str | None = None,
    environment: dict[str, str] | None = None,
    sets: tuple[str, ...] = (),
    file: Path | None = None,
) -> str:
    """The message with which load() refuses."""
    if text is not None:
        assert file is not None
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environment or {}, [parse_override(item) for item in sets])
    return str(caught.value)


def test_load_of_nothing_gives_the_defaults() -> None:
    loaded = load(None, {})
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert len(loaded.sources) == len(SETTINGS)


def test_load_with_every_layer_takes_the_last_one(file: Path) -> None:
    file.write_text('[tiers.dram]\ncapacity = "8GiB"\n[lease]\nread_ttl = "1500ms"\n')
    environment = {CAPACITY_VARIABLE: "16GiB"}
    assert load(file, {}).config.tiers.dram.capacity_bytes == 8 * GIB
    assert load(file, environment).config.tiers.dram.capacity_bytes == 16 * GIB
    loaded = load(file, environment, [Override(CAPACITY, "32GiB", "--dram")])
    assert loaded.config.tiers.dram.capacity_bytes == 32 * GIB
    assert loaded.sources[CAPACITY] == "--dram"
    assert loaded.config.lease.read_ttl_seconds == 1.5
    assert loaded.sources["lease.read_ttl"] == str(file)


def test_load_with_the_same_option_twice_takes_the_last_one() -> None:
    sets = [parse_override(f"{CAPACITY}=1GiB"), parse_override(f"{CAPACITY}=2GiB")]
    assert load(None, {}, sets).config.tiers.dram.capacity_bytes == 2 * GIB


def test_load_of_uids_from_every_layer_merges_them(file: Path) -> None:
    file.write_text('[auth.uids]\n1000 = "team-a"\n1001 = "team-b"\n')
    environment = {"ANCHORSTORE__AUTH__UIDS__1001": "team-c"}
    loaded = load(file, environment, [parse_override("auth.uids.7=ops")])
    assert loaded.config.auth.uids == {1000: "team-a", 1001: "team-c", 7: "ops"}
    assert "file" not in loaded.sources["auth.uids"]
    for source in (str(file), "environment", "--set auth.uids.7"):
        assert source in loaded.sources["auth.uids"]


def test_load_of_rules_gives_quotas_and_lineages(file: Path) -> None:
    file.write_text(
        '[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nquota = "1GiB"\n'
        '[[namespaces.rules]]\ndomain = "b"\nmodel = "m"\nmax_lineage = 0\n'
    )
    spaces = load(file, {}).config.namespaces
    assert spaces.rules == (NamespaceRule("a", "m", GIB, None), NamespaceRule("b", "m", None, 0))
    assert spaces.quotas() == {("a", "m"): GIB}
    assert spaces.max_lineages() == {("b", "m"): 0}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('[tiers.dram]\ncapcity = "4GiB"', ("tiers.dram.capcity", f"did you mean {CAPACITY}?")),
        ('[tier.dram]\ncapacity = "4GiB"', ("tier.dram.capacity", f"did you mean {CAPACITY}?")),
        ('[lease]\ncapacity = "4GiB"', ("lease.capacity", "did you mean")),
        ("[nonsense]\n", ("unknown key nonsense", "anchorstore config defaults")),
        ("[nonsense.deeper]\n", ("unknown key nonsense.deeper",)),
        ("tiers = 3", ("tiers is a section",)),
        ('tiers.dram = "4GiB"', ("tiers.dram is a section",)),
        ('[tiers.dram.capacity]\nx = "1"', (CAPACITY, "must be a size in quotes")),
        ("[tiers.dram]\ncapacity = 64", (CAPACITY, "64", "must be a size in quotes")),
        ('[tiers.dram]\ncapacity = "64GB!"', (CAPACITY, "'64GB!'")),
        ('[lease]\nread_ttl = "3"', ("lease.read_ttl", "'3'", "it has no unit", "ms")),
        ('[tiers.dram]\ncapacity = "64Gib"', (CAPACITY, "unknown unit 'Gib'", "GiB")),
        ('[limits]\nstaging_total = "0B"', ("limits.staging_total", "is 0B", "1MiB to 16TiB")),
        ('[tiers.dram]\nprefault = "true"', ("tiers.dram.prefault", "must be true or false")),
        ("[tiers.dram]\nprefault = 1", ("tiers.dram.prefault", "must be true or false")),
        ("[tiers.dram]\nkv_share = 0.0", ("tiers.dram.kv_share", "above 0")),
        ("[tiers.dram]\nkv_share = nan", ("tiers.dram.kv_share", "above 0")),
        ("[tiers.dram]\nkv_share = true", ("tiers.dram.kv_share", "must be a number")),
        ('[tiers.dram]\nhuge_pages = "yes"', ("tiers.dram.huge_pages", '"require"')),
        ('[lease]\nread_ttl = "10"', ("lease.read_ttl", "'10'")),
        ('[lease]\nread_ttl = "0s"', ("lease.read_ttl", "is 0s", "100ms to 1h")),
        ("[limits]\nsessions = 1.5", ("limits.sessions", "1.5", "whole number")),
        ("[limits]\nsessions = true", ("limits.sessions", "whole number")),
        ("[limits]\nsessions = 0", ("limits.sessions", "is 0", "1 to 65536")),
        ('[listen]\nhttp = "9464"', ("listen.http", "'9464' is not host:port")),
        ('[listen]\nhttp = "off"', ("listen.http", '"" is off')),
        ('[listen]\nhttp = "::1:9464"', ("listen.http", "brackets")),
        ('[listen]\nhttp = "a:65536"', ("listen.http", "65536", "65535")),
        ('[listen]\nsocket = ""', ("listen.socket", "is empty")),
        (f'[listen]\nsocket = "/{"x" * 107}"', ("listen.socket", "108 bytes", "limit 107")),
        ('[listen]\nsocket_mode = "660"', ("listen.socket_mode", "four octal digits")),
        ('[listen]\nsocket_mode = "0066"', ("listen.socket_mode", "own user")),
        ('[auth.uids]\nroot = "a"', ("auth.uids", "'root' is not a user id")),
        ('[auth.uids]\n1 = ""', ("auth.uids", "empty")),
        ("[auth]\nadmin_uids = [4294967295]", ("auth.admin_uids", "4294967295", "4294967294")),
        ('[[namespaces.rules]]\ndomain = "a"', ("rule 1", "lacks model")),
        ('[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nquoat = "1B"', ("rule 1", "'quoat'")),
        (
            '[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nquota = 3',
            ("rule 1: quota", "size in quotes"),
        ),
        ('[node]\nname = "a\\u0000b"', ("node.name", "zero byte")),
    ],
)
def test_load_of_a_wrong_file_names_file_key_and_reason(
    text: str, wanted: tuple[str, ...], file: Path
) -> None:
    message = refusal(text, file=file)
    for part in (str(file), *wanted):
        assert part in message
    assert "\n" not in message, "one problem is one line"


def test_load_of_a_file_that_is_not_toml_names_the_line(file: Path) -> None:
    assert "line 2" in refusal("[lease]\nread_ttl = 10s\n", file=file)
    file.write_bytes(b"\xff\xfe")
    assert "is not TOML" in refusal(file=file)


def test_load_of_a_missing_or_huge_file_names_it(file: Path) -> None:
    assert f"cannot read {file}: No such file" in refusal(file=file)
    assert f"limit {FILE_BYTES_MAX}" in refusal("#" * (FILE_BYTES_MAX + 1), file=file)


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("ANCHORSTORE__TIERS__DRAM__CAPCITY", "4GiB", f"did you mean {CAPACITY}?"),
        ("ANCHORSTORE__TIERS", "4GiB", "tiers is a section"),
        ("ANCHORSTORE__", "4GiB", "unknown key"),
        (CAPACITY_VARIABLE, "", f"{CAPACITY} is wrong"),
        ("ANCHORSTORE__TIERS__DRAM__PREFAULT", "yes", "must be true or false"),
        ("ANCHORSTORE__AUTH__UIDS", "1000=a", "auth.uids is a table"),
        ("ANCHORSTORE__NAMESPACES__RULES", "[]", "in a file alone"),
        ("ANCHORSTORE__LIMITS__SESSIONS", "many", "whole number"),
    ],
)
def test_load_of_a_wrong_environment_names_the_variable(
    variable: str, value: str, wanted: str
) -> None:
    message = refusal(environment={variable: value, "ANCHORSTORE_HOME": "not ours", "PATH": "/"})
    assert f"environment {variable}" in message
    assert wanted in message


def test_load_of_text_reads_every_kind_of_value() -> None:
    config = load(
        None,
        {
            "ANCHORSTORE__TIERS__DRAM__PREFAULT": "False",
            "ANCHORSTORE__TIERS__DRAM__KV_SHARE": "1",
            "ANCHORSTORE__TIERS__DRAM__SEGMENT": "2MiB",
            "ANCHORSTORE__LIMITS__SESSIONS": "7",
            "ANCHORSTORE__LISTEN__SOCKET_MODE": "0600",
            "ANCHORSTORE__AUTH__ADMIN_UIDS": "7, 1000",
            "ANCHORSTORE__LISTEN__HTTP": "",
        },
    ).config
    assert config.tiers.dram.prefault is False
    assert config.tiers.dram.kv_share == 1.0
    assert config.tiers.dram.segment_bytes == 2 * MIB
    assert config.limits.sessions == 7
    assert config.listen.socket_mode == 0o600
    assert config.auth.admin_uids == (7, 1000)
    assert config.listen.http == ""


def test_load_with_several_problems_reports_all_of_them(file: Path) -> None:
    message = refusal(
        '[tiers.dram]\ncapacity = "x"\n', {"ANCHORSTORE__NOPE": "1"}, ("log.level=loud",), file
    )
    assert "3 problems" in message
    for part in (CAPACITY, "unknown key nope", "log.level is 'loud', must be one of \"debug\""):
        assert part in message


@pytest.mark.parametrize("text", ["", "=4GiB", CAPACITY, " = "])
def test_parse_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_override(text)


def test_parse_override_with_equals_in_the_value_keeps_it() -> None:
    assert parse_override("node.name=a=b").text == "a=b"


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        (
            ("tiers.dram.low_watermark=0.95",),
            ("tiers.dram.low_watermark is 0.95", "tiers.dram.high_watermark, 0.95"),
        ),
        (("tiers.dram.capacity=7MiB",), ("is 7MiB", "2 segments of 4MiB")),
        (("tiers.dram.capacity=10",), ("is 10B, must be at least 8MiB: 2 segments of 4MiB",)),
        (
            ("tiers.dram.capacity=1MiB", "tiers.dram.segment=1MiB"),
            ("is 1MiB, must be at least 2MiB: 2 segments of 1MiB",),
        ),
        (("tiers.dram.segment=2049MiB",), ("2 segments", "2.0GiB")),
        (("tiers.dram.segment=64KiB", "tiers.dram.capacity=8GiB"), ("131072", "limit 65536")),
        (("tiers.dram.segment=65537",), ("65537 bytes", "multiple of 4KiB")),
        (
            ("tiers.dram.segment=1MiB", "tiers.dram.huge_pages=require"),
            ("multiple of 2MiB", "require"),
        ),
        (("listen.tcp=0.0.0.0:9465",), ("listen.tcp", "tls.certificate", "auth.token_file")),
        (("listen.grpc=[::]:9465",), ("listen.grpc", "beyond loopback")),
        (("listen.tcp=store.example:1", "auth.token_file=t"), ("without tls.certificate:",)),
        (("listen.tcp=127.0.0.1:9464",), ("listen.tcp and listen.http", "127.0.0.1:9464")),
        (("tls.certificate=c",), ("tls.certificate", "without tls.key")),
        (("tls.key=k",), ("tls.key", "without tls.certificate")),
        (("tls.client_ca=c",), ("tls.client_ca", "without tls.certificate")),
        (("limits.staging_per_session=3GiB",), ("limits.staging_total", "3GiB", "2GiB")),
        (
            ("limits.sessions=8", "limits.sessions_per_domain=9"),
            ("limits.sessions_per_domain is 9", "limits.sessions, 8"),
        ),
        (
            ("limits.connections_per_domain=1025",),
            ("limits.connections_per_domain is 1025", "limits.connections, 1024"),
        ),
        (("limits.reserved_pages=9",), ("limits.reserved_pages is 9", "pages_per_call, 16384")),
        (("limits.leased_blocks=9",), ("limits.leased_blocks is 9", "pages_per_call, 16384")),
        (("limits.sessions=1025",), ("limits.sessions is 1025", "limits.connections, 1024")),
    ],
)
def test_load_of_a_wrong_combination_names_keys_and_limits(
    sets: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    message = refusal(sets=sets)
    for part in wanted:
        assert part in message


def test_load_of_two_rules_for_one_model_is_refused(file: Path) -> None:
    rule = '[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nquota = "1GiB"\n'
    assert "two rules for domain a, model m" in refusal(rule + rule, file=file)


NVME = '[tiers.nvme]\ndevices = ["/mnt/a:1GiB", "/mnt/b:1GiB"]\n'


@pytest.mark.parametrize(
    ("before", "rules", "wanted"),
    [
        ("", ['quota = "1GiB"\nreserve = "2GiB"'], "reserve of domain a, model m0 is 2GiB"),
        ("", ['reserve = "3GiB"'] * 2, "reserve sums to 6GiB, must not exceed the tier's 4GiB"),
        (NVME, ['nvme_reserve = "1.5GiB"'] * 2, "nvme_reserve sums to 3GiB"),
        (
            '[namespaces]\nnvme_quota = "1GiB"\n' + NVME,
            ['nvme_reserve = "1.5GiB"'],
            "must not exceed its nvme_quota, 1GiB",
        ),
    ],
)
def test_load_of_reserves_that_cannot_be_kept_is_refused(
    before: str, rules: list[str], wanted: str, file: Path
) -> None:
    text = before + "".join(
        f'[[namespaces.rules]]\ndomain = "a"\nmodel = "m{number}"\n{rule}\n'
        for number, rule in enumerate(rules)
    )
    assert wanted in refusal(text, file=file)


def test_load_of_reserves_that_fit_is_accepted(file: Path) -> None:
    rule = '[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nquota = "1GiB"\nreserve = "1GiB"\n'
    file.write_text(rule + 'nvme_reserve = "9TiB"\n')  # of a tier that is not there
    assert load(file, {}).config.namespaces.reserves() == {("a", "m"): GIB}


@pytest.mark.parametrize(
    "sets",
    [
        ("listen.tcp=127.0.0.9:1", "listen.grpc=[::1]:2"),
        ("listen.tcp=localhost:0", "listen.grpc=localhost:0"),
        ("listen.tcp=0.0.0.0:1", "listen.insecure_bind=true"),
        ("listen.tcp=0.0.0.0:1", "tls.certificate=c", "tls.key=k", "auth.token_file=t"),
        ("listen.http=0.0.0.0:9464",),
    ],
)
def test_load_of_a_safe_bind_is_accepted(sets: tuple[str, ...]) -> None:
    assert problems(load(None, {}, [parse_override(item) for item in sets]).config) == []


@pytest.mark.parametrize(
    ("capacity", "segment_bytes", "segments"),
    [
        ("8MiB", 4 * MIB, 2),
        ("4GiB", 64 * MIB, 64),
        ("1000MiB", 14 * MIB, 71),
        ("512GiB", GIB, 512),
    ],
)
def test_segment_auto_follows_the_capacity(
    capacity: str, segment_bytes: int, segments: int
) -> None:
    dram = load(None, {}, [Override(CAPACITY, capacity)]).config.tiers.dram
    assert (dram.pool_segment_bytes, dram.pool_segments) == (segment_bytes, segments)
