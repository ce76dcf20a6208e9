"""`anchorstore explain`: how far a prefix matches, and why it ends there."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorstore.cli import connection, names
from anchorstore.cli.options import integer
from anchorstore.cli.output import (
    add_json_option,
    component_word,
    digest,
    number,
    plain,
    print_json,
    shard_words,
)
from anchorstore.errors import InvalidKey, ModelError, UsageError
from anchorstore.keys import DIGEST_BYTES, PAGE_TOKENS_DEFAULT, path_hashes
from anchorstore.transport.frames import Method
from anchorstore.transport.reasons import reason_of
from anchorstore.wire.v1 import admin_pb2

_SEPARATORS = re.compile(r"[\s,]+")
_HASHES = re.compile(r"(?:[0-9a-f]{64})+", re.IGNORECASE)
_DESCRIPTION = """\
Says how far a prefix matches in a namespace of a running daemon, and why it ends there.

PROMPT is token ids ("1,2,3", a JSON list), path hashes in hex (64 letters each, page 0 first), a
completion request's body ({"prompt": [1, 2, 3], ...}), or text with --tokenizer; or a file with one
of these, or - for standard input.

An engine resumes its margin before the end of what is stored (vLLM: margin_tokens, 128 by default),
and computes the last page of a prompt that is stored whole."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `explain`."""
    parser = subparsers.add_parser(
        "explain",
        help="how far a prefix matches, and why it ends there",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="token ids, hashes, text, a file or -")
    parser.add_argument(
        "--namespace", metavar="NAMESPACE", help=f"{names.HELP} (default: the only one)"
    )
    parser.add_argument(
        "--page-tokens",
        type=integer(1, 2**31 - 1),
        default=PAGE_TOKENS_DEFAULT,
        metavar="N",
        help=f"tokens in a page of this namespace (default {PAGE_TOKENS_DEFAULT})",
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="model folder whose tokenizer turns text into token ids"
    )
    connection.add_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    given = read_prompt(args.prompt)
    if args.tokenizer and given.name == "prompt" and len(given.text.split()) == 1:
        print(
            "anchorstore explain: prompt is taken as text, no file has that name", file=sys.stderr
        )
    prompt = parse_prompt(given, args.tokenizer)
    with connection.connect(args) as daemon:
        space = names.resolve(names.namespaces(daemon), args.namespace)
        if has_salt(given) and not space.salted:
            raise UsageError(
                f"{given.name} has a cache_salt, and {space.domain}/{space.model} "
                f"{digest(space.root_digest)} none: an engine looks in a namespace with that salt"
            )
        hashes = (
            prompt
            if isinstance(prompt, bytes)
            else path_hashes(space.root_digest, prompt, args.page_tokens)
        )
        if not hashes:
            raise UsageError(f"prompt is shorter than one page of {args.page_tokens} tokens")
        request = admin_pb2.ExplainRequest(root_digest=space.root_digest, path_hashes=hashes)
        answer = daemon.call(Method.EXPLAIN, request, admin_pb2.ExplainResponse)
    if args.json:
        namespace = {"root_digest": space.root_digest.hex(), "model": space.model}
        print_json({**plain(answer), "page_tokens": args.page_tokens, "namespace": namespace})
    else:
        print(explain_text(answer, space, args.page_tokens), end="")
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked about, and how messages name it."""

    text: str
    name: str


def read_prompt(argument: str) -> Prompt:
    """The prompt itself: the argument, the file it names, or standard input for "-"."""
    name = "standard input" if argument == "-" else f"prompt file {argument}"
    try:
        if argument == "-":
            return Prompt(sys.stdin.read(), name)
        if argument and Path(argument).is_dir():
            raise UsageError(f"prompt {argument} is a folder, must be a file or the prompt itself")
        if Path(argument).is_file():
            return Prompt(Path(argument).read_text(encoding="utf-8"), name)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # far too long for a name: it is the prompt itself
            raise UsageError(f"{name}: {reason_of(error)}") from error
    return Prompt(argument, "prompt")


def parse_prompt(prompt: Prompt, tokenizer: str | None) -> bytes | Sequence[int]:
    """Path hashes (32 n bytes) or token ids, whichever `prompt` holds.

    With a tokenizer it is text, but for the token ids of a request's body.  UsageError where it is
    neither.
    """
    if prompt.text.lstrip().startswith("{"):
        prompt, is_text = _of_body(prompt, tokenizer is not None)
        if is_text and tokenizer is None:
            raise UsageError(f"{prompt.name} is text, which needs --tokenizer DIR")
    else:
        is_text = tokenizer is not None
    if tokenizer is not None and is_text:
        return _tokenize(prompt.text, tokenizer)
    words = _words(prompt)
    if not words:
        raise UsageError(f"{prompt.name} is empty")
    if all(word.isascii() and word.isdigit() and len(word) < 2 * DIGEST_BYTES for word in words):
        return [int(word) for word in words]
    words = [word.strip("\"'") for word in words]
    if all(_HASHES.fullmatch(word) for word in words):
        return bytes.fromhex("".join(words))
    shown = json.dumps(prompt.text[:40], ensure_ascii=False)
    # what stands on the command line may have been meant as the name of a file
    no_file = ", and names no file" if prompt.name == "prompt" else ""
    raise UsageError(
        f"{prompt.name} {shown} is neither token ids nor path hashes of {2 * DIGEST_BYTES} "
        f"hexadecimal letters{no_file}; text needs --tokenizer DIR"
    )


def has_salt(prompt: Prompt) -> bool:
    """Whether it is the body of a request with a cache salt of its own."""
    if not prompt.text.lstrip().startswith("{"):
        return False
    try:
        return bool(json.loads(prompt.text).get("cache_salt"))
    except (ValueError, RecursionError):
        return False  # text, for a tokenizer


def _of_body(prompt: Prompt, may_be_text: bool) -> tuple[Prompt, bool]:
    """The prompt in the body of a completion request, and whether it is text.

    What is no such body is text itself, where it may be.
    """
    try:
        body = json.loads(prompt.text)
    except (ValueError, RecursionError) as error:
        if may_be_text:
            return prompt, True
        raise UsageError(f"{prompt.name} starts as a JSON object and is none: {error}") from error
    name = f'{prompt.name}: its "prompt"'
    match body.get("prompt"):
        case str(text):
            return Prompt(text, name), True
        case list(tokens):
            return Prompt(json.dumps(tokens), name), False
    if "messages" in body:
        raise UsageError(
            f"{prompt.name} is the body of a chat, whose token ids follow from the model's chat "
            "template: ask the engine's /tokenize for them"
        )
    if may_be_text:
        return prompt, True
    raise UsageError(f'{prompt.name} is a JSON object without "prompt" (token ids or text)')


def _words(prompt: Prompt) -> list[str]:
    """Ids or hashes as they are written: the entries of a JSON list, or what separators leave."""
    if not prompt.text.lstrip().startswith("["):
        return [word for word in _SEPARATORS.split(prompt.text) if word]
    try:
        found = json.loads(prompt.text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{prompt.name} starts as a JSON list and is none: {error}") from error
    if found and all(isinstance(entry, list) for entry in found):
        raise UsageError(f"{prompt.name} holds {len(found)} prompts: ask for one at a time")
    for entry in found:
        if isinstance(entry, bool) or not isinstance(entry, int | str):
            shown = json.dumps(entry)[:40]
            raise UsageError(
                f"{prompt.name}: a JSON list holds token ids or path hashes alone, not {shown}"
            )
    return [str(entry) for entry in found]


def _tokenize(text: str, folder: str) -> list[int]:
    is_there = Path(folder).is_dir()
    if not is_there and (folder.startswith((".", "/")) or folder.count("/") != 1):
        raise UsageError(f"--tokenizer {folder}: no such folder")
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise UsageError("--tokenizer needs: pip install 'anchorstore[transformers]'") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        why = error if is_there else "no such folder, and no model of that name was downloaded"
        raise ModelError(f"--tokenizer {folder}: {why}") from error
    tokens = [int(token) for token in tokenizer.encode(text)]
    if not tokens:
        why = (
            "the prompt has no tokens" if not text else "its tokenizer knows no token of the prompt"
        )
        raise InvalidKey(f"--tokenizer {folder}: {why}")
    return tokens


def explain_text(
    answer: admin_pb2.ExplainResponse, space: admin_pb2.NamespaceStatus, page_tokens: int
) -> str:
    """The match as people read it."""
    lines = [f"namespace  {digest(space.root_digest)}  {space.domain}/{space.model}"]
    for name, pages in (("asked", answer.pages_asked), ("present", answer.pages_present)):
        lines.append(f"{name:<9}  {number(pages)} pages, {number(pages * page_tokens)} tokens")
    lines += [f"           {_layout_line(match, answer.pages_asked)}" for match in answer.layouts]
    lines.append(f"ends       {answer.ends_because}")
    if answer.pages_present:
        lines.append(
            "engines    resume their margin before that (vLLM: margin_tokens, 128 by default)"
        )
    return "\n".join(lines) + "\n"


def _layout_line(match: admin_pb2.LayoutMatch, asked: int) -> str:
    """E.g. "kv layout 01ab..., head 0: 21 of 22 pages, 21 up to the first hole, lineage 0"."""
    shard = f", {shard_words(match.shard)}" if match.shard else ""
    least, most = match.lineage_least, match.lineage_most
    return (
        f"{component_word(match.component)} layout {digest(match.layout_digest)}{shard}: "
        f"{number(match.pages)} of {number(asked)} pages, "
        f"{number(match.leading_pages)} up to the first hole, "
        f"lineage {least}"
        + (f" to {most}" if most > least else "")
        + "".join(f", {number(tier.pages)} in {tier.tier}" for tier in match.tiers)
    )
