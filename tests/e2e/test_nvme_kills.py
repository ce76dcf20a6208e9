"""Goal: a daemon killed at any moment under load comes back with its nvme tier, and never with a
wrong byte.
Method: a client puts and reads paths whose bytes follow from a seed, in more than memory holds; the
daemon is killed at random points, slots are scrambled now and then, and it is started again.  After
each start every path is asked for and compared, and the daemon checks itself.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import pathlib
import random
import re
import threading

import numpy as np
import numpy.typing as npt
import pytest

from anchorstore.cli.main import main
from anchorstore.client import Client, ClientOptions, NamespaceSpec, NeedAll
from anchorstore.errors import DataError, LeaseError, Unavailable
from anchorstore.testing.daemon import Daemon
from anchorstore.tiers.nvme.device import ENGINES
from anchorstore.tiers.nvme.format import slot_bytes_of
from anchorstore.tiers.nvme.offline import check_device
from tests.integration.client_world import LAYOUTS, Pages, pages

PATHS_MAX = 120
PAGES_MAX = 12
WAIT_SECONDS = 20.0
OPTIONS = ClientOptions(name="kills", deadline_seconds=20.0, retry_seconds=0.05)


class World:
    """A daemon, a client of it, and what was stored."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.device = folder / "device"
        self.device.mkdir()
        settings = {
            "tiers.dram.capacity": "8MiB",
            "tiers.dram.segment": "512KiB",
            "tiers.nvme.devices": f"{self.device}:40MiB",
            "tiers.nvme.segment": "1MiB",
            "tiers.nvme.engine": self.dice.choice(list(ENGINES)),
            "listen.tcp": "",  # its port would have to be free at every restart
        }
        self.daemon = Daemon(folder / "daemon", settings=settings, ready_seconds=180)
        self.daemon.start()
        self.space = NamespaceSpec("model", b"w" * 32)
        self.client = self.connected()
        self.paths: collections.OrderedDict[int, int] = collections.OrderedDict()
        self.next_seed = 1000 * seed
        self.damages: list[tuple[int, int]] = []
        self.counts = dict.fromkeys(("puts", "reads", "hits", "cold_hits", "damaged"), 0)

    def connected(self) -> Client:
        return Client.connect(
            self.daemon.address, namespace=self.space, layouts=LAYOUTS, options=OPTIONS
        )

    def put(self) -> None:
        """A new path; what of it is sealed is the daemon's affair."""
        root = self.client.root_digest
        if root is None:
            return
        self.next_seed += 1
        count = self.dice.randint(1, PAGES_MAX)
        self.paths[self.next_seed] = count
        if len(self.paths) > PATHS_MAX:
            self.paths.popitem(last=False)
        made = pages(self.client, count, self.next_seed)
        self.client.put(root, 0, made.hashes, made.blocks())
        self.counts["puts"] += 1

    def read(self, seed: int) -> bool:
        """Whether some of a path is there; every byte that is, is compared."""
        if self.client.root_digest is None:
            return False
        made = pages(self.client, self.paths[seed], seed)
        self.counts["reads"] += 1
        with self.client.lookup(
            made.hashes,
            [NeedAll(0, 0), NeedAll(1, 0)],
            margin_pages=0,
            wait_seconds=WAIT_SECONDS / 2,
        ) as window:
            if not window.hit:
                return False
            count = window.resume_pages
            found = [np.empty((count, layout.block_bytes()), np.uint8) for layout in LAYOUTS]
            try:
                for need, out in enumerate(found):
                    window.blocks(need).copy_into(out)
                window.verify()
            except (LeaseError, DataError, Unavailable):
                return False  # killed meanwhile: said so, which is right
            assert_right(made, found)
        return True

    def work(self, steps: int) -> None:
        """Puts and reads."""
        for _ in range(steps):
            if self.dice.random() < 0.6 or not self.paths:
                self.put()
            else:
                self.counts["hits"] += self.read(self.dice.choice(list(self.paths)))

    def work_until(self, is_killed: threading.Event) -> None:
        """Puts and reads until the daemon is dead, and a little longer."""
        while not is_killed.is_set():
            self.work(1)

    def damage(self) -> None:
        """Scrambles bytes of slots, as a torn write would."""
        file_path = self.device / "anchorstore.nvme"
        with file_path.open("r+b") as file:
            size = file.seek(0, 2)
            for _ in range(20):
                at = self.dice.randrange(4 * 2**20, size - 4096)
                junk = self.dice.randbytes(self.dice.choice([1, 200, 4096]))
                file.seek(at)
                file.write(junk)
                self.damages.append((at, at + len(junk)))
        self.counts["damaged"] += 1

    def check(self, outdated: int) -> None:
        """The daemon finds nothing broken but what was scrambled and not asked for since, and no
        more slots that a later block took than lay there before it started."""
        assert main(["check", "--socket", self.daemon.socket_path]) == 0
        answer = io.StringIO()
        with contextlib.redirect_stdout(answer):
            main(["check", "--socket", self.daemon.socket_path, "--checksums", "--json"])
        found = json.loads(answer.getvalue())
        assert int(found["nvme_blocks_outdated"]) <= outdated, found
        for text in found["violations"]:
            [start] = [int(number) for number in re.findall(r"slot at byte (\d+)", text)]
            stop = start + max(slot_bytes_of(layout.block_bytes()) for layout in LAYOUTS)
            assert any(start < end and at < stop for at, end in self.damages), text


def assert_right(made: Pages, found: list[npt.NDArray[np.uint8]]) -> None:
    for right, blocks in zip((made.kv, made.anchor), found, strict=True):
        assert np.array_equal(right[: len(blocks)], blocks), "wrong bytes"


def rounds(folder: pathlib.Path, seed: int, count: int) -> dict[str, int]:
    """Kills one daemon so often; what was seen, counted."""
    world = World(folder, seed)
    try:
        for turn in range(count):
            is_killed = threading.Event()

            def kill(event: threading.Event = is_killed) -> None:
                world.daemon.kill()
                event.set()

            world.work(world.dice.randint(2, 30))
            timer = threading.Timer(world.dice.uniform(0, 0.1), kill)
            timer.start()
            world.work_until(is_killed)
            timer.join()
            if turn % 3 == 2:
                world.damage()
            report = check_device(world.device, checksums=True, log=lambda text: None)
            world.daemon.start()
            world.client.close()
            world.client = world.connected()
            world.counts["cold_hits"] += sum(world.read(seed) for seed in list(world.paths))
            world.check(report.slots.get("outdated", 0))
    finally:
        world.client.close()
        world.daemon.kill()
    return world.counts


def test_daemon_killed_again_and_again_serves_no_wrong_byte(tmp_path: pathlib.Path) -> None:
    seen = rounds(tmp_path, seed=5, count=10)
    assert seen["cold_hits"] > 0 and seen["damaged"] == 3, seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_daemon_killed_two_hundred_times_serves_no_wrong_byte(
    tmp_path: pathlib.Path, seed: int
) -> None:
    seen = rounds(tmp_path, seed, count=20)
    assert seen["cold_hits"] > 0 and seen["damaged"] == 6, seen
