"""Goal: the command starts quickly, needs only the packages of what it does, and ends cleanly.
Method: run it as a process of its own, with packages hidden where that is the point.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anchorstore import __version__
from anchorstore.cli.main import COMMANDS

RUN = "from anchorstore.cli.main import main; sys.exit(main(sys.argv[1:]))"


def anchorstore(
    *words: str, hidden: tuple[str, ...] = (), code: str = RUN
) -> subprocess.CompletedProcess[str]:
    """Runs a command line in a process where the `hidden` packages cannot be imported."""
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in hidden)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {hide}{code}", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if "ANCHORSTORE__" not in name},
    )


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "from anchorstore.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.partition('.')[0] in"
        " ('google', 'numpy', 'grpc', 'torch', 'structlog', 'cbor2')])"
    )
    result = anchorstore(code=f"exec({code!r})")
    assert result.stdout.endswith("\n[]\n"), result.stdout + result.stderr
    for command in COMMANDS:
        assert f"\n    {command.name}" in result.stdout


def test_version_is_the_package_s() -> None:
    assert anchorstore("--version").stdout == f"anchorstore {__version__}\n"


def test_wrong_command_exits_with_2_and_the_choice() -> None:
    result = anchorstore("stats")
    assert result.returncode == 2
    assert "status" in result.stderr


DAEMON_ONLY = ("structlog", "prometheus_client", "grpc_health", "grpc_reflection", "torch", "redis")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "--socket", "/does/not/exist"), 3),
        (("ls", "--socket", "/does/not/exist"), 3),
        (("config", "check", "--socket", "/dev/null/engine.sock"), 2),
        (("config", "show"), 0),
        (("config", "defaults"), 0),
    ],
)
def test_command_of_the_base_install_works_without_the_daemon_s_packages(
    words: tuple[str, ...], code: int
) -> None:
    result = anchorstore(*words, hidden=DAEMON_ONLY)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("config", "defaults"), 4),
        (("config", "show"), 4),
        (("size", "--model", "/does/not/exist"), 2),
    ],
)
def test_command_whose_output_cannot_be_written_says_so(words: tuple[str, ...], code: int) -> None:
    result = anchorstore(*words, code=f"sys.stdout = open('/dev/full', 'w'); {RUN}")
    assert result.returncode == code
    assert result.stderr.startswith(f"anchorstore {words[0]}: ") and "\n" in result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr


def test_command_with_closed_output_does_its_work() -> None:
    result = anchorstore("config", "defaults", code=f"sys.stdout = None; {RUN}")
    assert (result.returncode, result.stderr) == (0, "")


def test_serve_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    result = anchorstore("serve", "--socket", str(tmp_path / "s"), hidden=("structlog",))
    assert result.returncode == 2
    wanted = "anchorstore serve: needs the package structlog: pip install 'anchorstore[server]'\n"
    assert result.stderr == wanted


def test_demo_without_its_packages_names_them_all_and_what_to_install() -> None:
    result = anchorstore("demo", hidden=("structlog", "prometheus_client", "torch"))
    assert result.returncode == 2
    assert result.stderr == (
        "anchorstore demo: needs structlog, prometheus_client, torch: "
        "pip install 'anchorstore[server,transformers]'\n"
    )


def test_serve_with_a_wrong_configuration_exits_with_2_and_one_message(tmp_path: Path) -> None:
    file = tmp_path / "anchorstore.toml"
    file.write_text("[tiers.dram]\ncapcity = '4GiB'\n")
    for command in (("serve",), ("config", "check"), ("config", "show")):
        result = anchorstore(*command, "--config", str(file))
        assert result.returncode == 2
        name = command[0]
        assert result.stderr == (
            f"anchorstore {name}: configuration: {file}: unknown key tiers.dram.capcity; "
            "did you mean tiers.dram.capacity?\n"
        )


def test_serve_without_asserts_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-O", "-m", "anchorstore", "serve"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "python -O" in result.stderr


def test_config_check_of_a_good_configuration_exits_with_0(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    words = ["config", "check", "--socket", str(tmp_path / "s"), "--dram", "8GiB"]
    words += ["--set", f"auth.token_file={tokens}"]
    missing = anchorstore(*words)
    assert missing.returncode == 2
    assert f"auth.token_file: cannot read {tokens}" in missing.stderr
    tokens.write_text("")
    good = anchorstore(*words)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("ok: ")
    assert "3 not at their default" in good.stdout


def test_config_check_of_the_default_file_finds_no_key_changed(tmp_path: Path) -> None:
    """What counts is the value, not that a file names it."""
    file = tmp_path / "anchorstore.toml"
    file.write_text(anchorstore("config", "defaults").stdout)
    words = ("config", "check", "--config", str(file), "--socket", str(tmp_path / "s"))
    assert anchorstore(*words).stdout.endswith(" keys, 1 not at their default\n")


def test_config_check_s_help_leaves_memory_to_serve() -> None:
    words = anchorstore("config", "check", "--help").stdout.split()
    assert "checked by serve alone" in " ".join(words)


def test_config_check_accepts_a_socket_folder_that_serve_makes_and_no_other(tmp_path: Path) -> None:
    good = anchorstore("config", "check", "--socket", str(tmp_path / "new" / "folder" / "s"))
    assert (good.returncode, good.stderr) == (0, "")
    (tmp_path / "file").write_text("")
    bad = anchorstore("config", "check", "--socket", str(tmp_path / "file" / "s"))
    assert bad.returncode == 2
    assert f"listen.socket: cannot make {tmp_path}/file/s: " in bad.stderr


def test_command_whose_reader_has_left_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "anchorstore", "config", "defaults"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")
