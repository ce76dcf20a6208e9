"""What vLLM's own cache holds, as told to the daemon.

Goal: each block is told of when it comes, is used and goes, once, however many copies there are;
what was lost is told again; a page is pinned while any request runs behind it; a step looks at a
bounded number of blocks.  Method: a pool that is a dict, a publisher that writes down.
"""

from __future__ import annotations

from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.resident import SWEPT_A_STEP, Resident
from engine_adapter.vllm.tally import Tally

SPACE = SpaceKey()
PAGES_PER_BLOCK = 2


class Notebook:
    """A publisher."""

    def __init__(self) -> None:
        self.epoch: object = object()
        self.told: list[tuple[str, str]] = []

    def _write(self, kind: str, path_hashes: bytes) -> None:
        self.told.append((kind, path_hashes[::32].decode()))

    def stored(self, path_hashes: bytes) -> None:
        self._write("stored", path_hashes)

    def removed(self, path_hashes: bytes) -> None:
        self._write("removed", path_hashes)

    def touched(self, path_hashes: bytes) -> None:
        self._write("touched", path_hashes)

    def pinned(self, path_hashes: bytes) -> None:
        self._write("pinned", path_hashes)

    def unpinned(self, path_hashes: bytes) -> None:
        self._write("unpinned", path_hashes)

    def take(self) -> list[tuple[str, str]]:
        told, self.told = self.told, []
        return told


def hashes(names: str) -> bytes:
    """A page a letter."""
    return b"".join(name.encode() * 32 for name in names)


class World:
    """A pool, a notebook, and what is told between them."""

    def __init__(self) -> None:
        self.pool: dict[int, str] = {}
        self.notebook: Notebook | None = Notebook()
        self.tally = Tally()
        self.resident = Resident(
            self.pool.get, lambda space: self.notebook, PAGES_PER_BLOCK, self.tally
        )

    def note(self, names: str, ids: list[int], reused: int = 0) -> list[tuple[str, str]]:
        """A request whose pages have these names fills these blocks."""
        blocks = range(len(names) // PAGES_PER_BLOCK)
        for number in blocks[reused:]:
            self.pool[ids[number]] = names[: PAGES_PER_BLOCK * (number + 1)]
        self.resident.note(SPACE, hashes(names), ids, blocks, reused)
        return self.told()

    def sweep(self) -> list[tuple[str, str]]:
        self.resident.sweep()
        return self.told()

    def told(self) -> list[tuple[str, str]]:
        return [] if self.notebook is None else self.notebook.take()


def test_blocks_are_told_of_when_they_come_are_used_and_go() -> None:
    world = World()
    assert world.note("abcd", [7, 8]) == [("stored", "ab"), ("stored", "cd")]
    assert world.note("abef", [7, 9], reused=1) == [("touched", "ab"), ("stored", "ef")]
    assert world.sweep() == []
    del world.pool[8]
    assert world.sweep() == [("removed", "cd")]
    assert world.tally.take() == {"events/stored": 6, "events/touched": 2, "events/removed": 2}


def test_block_given_to_others_is_removed_before_it_is_stored() -> None:
    world = World()
    world.note("ab", [7])
    assert world.note("xy", [7]) == [("removed", "ab"), ("stored", "xy")]
    assert world.sweep() == []


def test_copies_of_a_block_are_gone_with_the_last_one() -> None:
    world = World()
    world.note("ab", [7])
    assert world.note("ab", [8]) == [("stored", "ab")]
    del world.pool[7]
    assert world.sweep() == []
    del world.pool[8]
    assert world.sweep() == [("removed", "ab")]


def test_blocks_that_vllm_does_not_cache_are_not_told_of() -> None:
    world = World()
    world.resident.note(SPACE, hashes("abc"), [7, 8], range(2), 0)
    assert world.told() == [] and world.sweep() == []


def test_what_was_lost_is_told_again_in_turn() -> None:
    world, ids = World(), list(range(SWEPT_A_STEP + 10))
    world.note("ab" * len(ids), ids)
    world.resident.pin("r", SPACE, hashes("b"))
    assert world.told() == [("pinned", "b")]
    assert world.notebook is not None
    world.notebook.epoch = object()
    first = world.sweep()
    assert len(first) == SWEPT_A_STEP + 1 and first.count(("pinned", "b")) == 1
    assert len(world.sweep()) == 10 and world.sweep() == []


def test_what_happens_without_a_session_is_told_with_the_next() -> None:
    world = World()
    notebook, world.notebook = world.notebook, None
    world.note("ab", [7])
    world.note("cd", [8])
    world.resident.pin("r", SPACE, hashes("b"))
    del world.pool[8]
    world.resident.sweep()
    world.notebook = notebook
    assert world.sweep() == [("stored", "ab"), ("pinned", "b")]


def test_page_is_pinned_while_any_request_runs_behind_it() -> None:
    world = World()
    world.resident.pin("one", SPACE, hashes("b"))
    world.resident.pin("two", SPACE, hashes("b"))
    assert world.told() == [("pinned", "b")]
    world.resident.pin("one", SPACE, hashes("c"))
    assert world.told() == [("pinned", "c")]
    world.resident.unpin("two")
    world.resident.unpin("two")
    assert world.told() == [("unpinned", "b")]
    world.resident.unpin("one")
    assert world.told() == [("unpinned", "c")]


def test_sweep_tells_each_space_its_own_and_asks_for_it_once_a_run_of_its_blocks() -> None:
    spaces = [SpaceKey(salt=b"one"), SpaceKey(salt=b"two")]
    notebooks = {space: Notebook() for space in spaces}
    pool: dict[int, str] = {}
    asked: list[SpaceKey] = []

    def publisher_of(space: SpaceKey) -> Notebook:
        asked.append(space)
        return notebooks[space]

    resident = Resident(pool.get, publisher_of, 1, Tally())
    for first, space, names in ((0, spaces[0], "abc"), (3, spaces[1], "de"), (5, spaces[0], "f")):
        ids = list(range(first, first + len(names)))
        pool |= dict(zip(ids, names, strict=True))
        resident.note(space, hashes(names), ids, range(len(names)), 0)
    for notebook in notebooks.values():
        notebook.take()
        notebook.epoch = object()
    asked.clear()
    resident.sweep()
    assert asked == [spaces[0], spaces[1], spaces[0]]
    assert notebooks[spaces[0]].take() == [("stored", name) for name in "abcf"]
    assert notebooks[spaces[1]].take() == [("stored", name) for name in "de"]
    resident.sweep()
    assert not any(notebook.take() for notebook in notebooks.values())
