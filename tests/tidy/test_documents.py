"""Goal: what README and docs/ say to type works, and what they point at exists.
Method: parse each command with the real parser, resolve each link, compare tables with the code.
"""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest

from anchorstore.cli.main import make_parser
from scripts.lanes import APART, LANES
from tests.tidy.checkout import ROOT, documents, python_files, relative

FENCE = re.compile(r"^```(?:sh|bash|console|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
MENTION = re.compile(r"\bdocs/[\w/-]+\.md\b")
TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)

NOT_OURS = {"vllm"}
"""Packages whose commands are shown, in environments of their own."""


def commands(text: str) -> list[str]:
    """Commands in the shell blocks of `text`, one a line, continuation lines joined."""
    found = []
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ").split("  #")[0].strip()
            if line and not line.startswith("#"):
                found.append(line)
    return found


def problem_of(command: str) -> str:
    """Why `command` cannot work, or "" where it can or is none of ours."""
    words = shlex.split(command.partition(" > ")[0], comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["make"]:
        targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
        asked = [word for word in words[1:] if "=" not in word]
        return "".join(f"no make target {word}" for word in asked if word not in targets)
    if words[:1] == ["anchorstore"]:
        arguments = [word for word in words[1:] if word != "&"]
        parser, _ = make_parser(next((word for word in arguments if word[0] != "-"), None))
        try:
            parser.parse_args(arguments)
        except SystemExit as exit_:
            return "" if exit_.code == 0 else f"anchorstore refuses {words[1:]}"
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] not in NOT_OURS:
        return "" if importlib.util.find_spec(words[2]) else f"no module {words[2]}"
    return ""


def slug(heading: str) -> str:
    """Anchor of a heading, as the usual renderers make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize(
    "command", ["make lunch", "anchorstore no-such-command", "python -m benchmarks.nothing_there"]
)
def test_problem_of_a_wrong_command_is_found(command: str) -> None:
    assert problem_of(command)


def test_commands_in_the_documents_parse() -> None:
    found = [
        f"{relative(path)}: {command}: {problem}"
        for path in documents()
        for command in commands(path.read_text())
        if (problem := problem_of(command))
    ]
    assert not found, "\n".join(found)


def test_readme_names_its_two_commands() -> None:
    assert {"make demo", "make test"} <= set(commands((ROOT / "README.md").read_text()))


def test_links_in_the_documents_resolve() -> None:
    found = []
    for path in documents():
        for link in LINK.findall(path.read_text()):
            if link.startswith(("http://", "https://")):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists():
                found.append(f"{relative(path)}: {link}: no such file")
            elif anchor and anchor not in {slug(h) for h in HEADING.findall(target.read_text())}:
                found.append(f"{relative(path)}: {link}: no such heading")
    assert not found, "\n".join(found)


def test_documents_mentioned_in_code_exist() -> None:
    found = [
        f"{relative(path)}: {name}"
        for path in (*python_files(), *documents())
        for name in MENTION.findall(path.read_text())
        if not (ROOT / name).exists()
    ]
    assert not found, "\n".join(found)


def test_files_in_the_reading_order_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    order = text.partition("## Reading order")[2]
    names = re.findall(r"`((?:anchorstore|engine_adapter|proto|benchmarks|tests)/[\w./]*)`", order)
    assert len(names) > 10, "the reading order has moved: mend this test"
    missing = [name for name in names if not (ROOT / name).exists()]
    assert not missing, missing


def test_lanes_in_the_document_are_those_of_the_script() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9]+)` \| (\d+) \|", text, re.MULTILINE)
    assert rows == [(lane.name, str(lane.minutes)) for lane in (*LANES, *APART)]


def test_tests_named_in_the_document_exist() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 20, "the table has moved: mend this test"
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert named <= there, named - there


def test_folders_of_tests_have_a_lane() -> None:
    """A folder without a lane would never run."""
    placed = {folder for lane in (*LANES, *APART) for folder in lane.folders}
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    tops = {folder.relative_to(ROOT / "tests").parts[0] for folder in folders}
    assert tops <= placed, tops - placed
