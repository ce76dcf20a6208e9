"""Build the byte corpus from the King James Bible of the Debian package ``bible-kjv``.

The translation of 1611 is in the public domain (the package's copyright file: "the copyright for
the King James Version text of the Bible is expired"). Three short books, Ruth, Esther and Jonah,
are held out: the model never sees them, and they are the sample shipped beside it.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

EVERYTHING = "Gen1:1-Rev22:21"
HELD_OUT = {"Ruth": "Ruth", "Est": "Esther", "Jonah": "Jonah"}
"""Books kept away from training: the program's abbreviation, and the name to print."""


def print_bible(passage: str = EVERYTHING) -> str:
    """What the ``bible`` program prints for ``passage``: a line ``Ge1:1 text`` a verse."""
    command = ["bible", "-f", passage]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return done.stdout.decode("ascii")


def split_reference(line: str) -> tuple[str, str, str]:
    """``Ge1:2 And the earth`` -> ``("Ge", "1", "And the earth")``."""
    reference, _, text = line.partition(" ")
    place = reference.partition(":")[0]
    book = place.rstrip("0123456789")
    return book, place[len(book) :], text.strip()


def read_books(printed: str) -> dict[str, str]:
    """Books in their order; a chapter is a heading, then a line a verse, without numbers."""
    books: dict[str, list[str]] = {}
    heading = ("", "")
    for line in printed.splitlines():
        book, chapter, text = split_reference(line)
        lines = books.setdefault(book, [])
        if (book, chapter) != heading:
            heading = (book, chapter)
            lines.append(f"\n{HELD_OUT.get(book, book)}, chapter {chapter}.\n")
        lines.append(text)
    return {book: "\n".join(lines) + "\n" for book, lines in books.items()}


def build_corpus() -> tuple[bytes, bytes]:
    """``(training text, held-out text)``."""
    books = read_books(print_bible())
    missing = set(HELD_OUT) - set(books)
    if missing:
        raise ValueError(f"the bible program printed no {sorted(missing)}")
    train = "".join(text for book, text in books.items() if book not in HELD_OUT)
    held_out = "".join(books[book] for book in HELD_OUT).lstrip("\n")
    return train.encode("ascii"), held_out.encode("ascii")


def main() -> None:
    """Write ``train.txt`` and ``held_out.txt``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, data in zip(("train.txt", "held_out.txt"), build_corpus(), strict=True):
        (out / name).write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
