"""Goal: nothing unfinished and nothing of the author's machine in what people read.
Method: search every text file for patterns; the patterns are first shown to catch offenders.
"""

from __future__ import annotations

import re

import pytest

from tests.tidy.checkout import relative, text_files

PATTERNS = {
    "unfinished": re.compile(r"\b(FIXME|TODO|XXX|HACK)\b"),
    "path of one machine": re.compile(r"(?<![\w.])/(work|root|home|opt/venv|Users)/"),
    "conflict": re.compile(r"^(<{7}|>{7}) ", re.MULTILINE),
}
THIS_FILE = "tests/tidy/test_leftovers.py"


def leftovers(text: str) -> list[str]:
    """What of `text` should not be there, with its line."""
    return [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {kind}: {match.group().strip()}"
        for kind, pattern in PATTERNS.items()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize(
    "text", ["x = 1  # TODO: more", "open('/root/x')", "see /home/me/notes", "<<<<<<< mine"]
)
def test_patterns_on_offenders_report_them(text: str) -> None:
    assert len(leftovers(text)) == 1


def test_text_of_every_file_has_no_leftovers() -> None:
    found = [
        f"{relative(path)}: {problem}"
        for path in text_files()
        if relative(path) != THIS_FILE
        for problem in leftovers(path.read_text())
    ]
    assert not found, "\n".join(found)
