"""Goal: every file fits one head and every function one screen.
Method: measure lines with ast; each measure is first shown to catch an offender.
"""

from __future__ import annotations

import ast
import pathlib

from tests.tidy.checkout import python_files, relative, text_files

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 600
LINE_CHARACTERS_MAX = 100


def long_functions(source: str, limit: int = FUNCTION_LINES_MAX) -> list[str]:
    """Functions of more than `limit` lines, docstring included, decorators not."""
    return [
        f"{node.name}: {lines} lines, limit {limit}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > limit
    ]


def long_lines(text: str, limit: int = LINE_CHARACTERS_MAX) -> list[str]:
    """Lines of more than `limit` characters."""
    return [
        f"line {number}: {len(line)} characters, limit {limit}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > limit
    ]


def undocumented(source: str) -> list[str]:
    """Says so where a module has code but no docstring on top."""
    tree = ast.parse(source)
    return ["no docstring on top"] if tree.body and not ast.get_docstring(tree) else []


def file_limit(path: pathlib.Path) -> int:
    return TEST_FILE_LINES_MAX if relative(path).startswith("tests/") else FILE_LINES_MAX


def test_measures_on_offenders_report_them() -> None:
    body = "\n".join("    x = 1" for _ in range(FUNCTION_LINES_MAX))
    assert long_functions(f"async def far_too_long():\n{body}") == [
        "far_too_long: 71 lines, limit 70"
    ]
    assert long_functions("def short():\n    x = 1") == []
    assert long_lines("x" * 101) == ["line 1: 101 characters, limit 100"]
    assert undocumented("x = 1") and not undocumented('"""What."""\nx = 1') and not undocumented("")


def test_functions_in_every_file_fit_a_screen() -> None:
    found = [
        f"{relative(path)}: {problem}"
        for path in python_files()
        for problem in long_functions(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_files_everywhere_fit_one_head() -> None:
    found = [
        f"{relative(path)}: {lines} lines, limit {file_limit(path)}"
        for path in python_files()
        if (lines := len(path.read_text().splitlines())) > file_limit(path)
    ]
    assert not found, "\n".join(found)


def test_lines_in_code_fit_a_hundred_columns() -> None:
    found = [
        f"{relative(path)}: {problem}"
        for path in text_files()
        if path.suffix != ".md"
        for problem in long_lines(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_files_everywhere_open_with_a_docstring() -> None:
    found = [
        f"{relative(path)}: {problem}"
        for path in python_files()
        for problem in undocumented(path.read_text())
    ]
    assert not found, "\n".join(found)
