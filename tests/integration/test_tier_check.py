"""Goal: `check --checksums` of a running daemon proves what lies in nvme, says which slot is wrong,
and changes nothing.
Method: a daemon over a device whose file is damaged behind its back; the command itself.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from anchorstore.config import Config
from tests.integration.harness import Engine, Running, running
from tests.integration.test_operator import printed, say
from tests.integration.tiered import PAGES, WAIT_MS, assert_right, counter, put_to_nvme, tiered

pytestmark = pytest.mark.usefixtures("no_sockets_left")

QUIET = ("blocks_promoted", "blocks_corrupt", "pages_evicted", "pages_evicted_nvme")


@pytest.fixture
def config(tmp_path: pathlib.Path) -> Config:
    return tiered(tmp_path)


def checked(here: Running, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of the command; it moves nothing."""
    before = [counter(here, name) for name in QUIET]
    code, text = say(here, "check", *words, "--json")
    assert [counter(here, name) for name in QUIET] == before
    found: dict[str, Any] = json.loads(text)
    return code, found


def test_check_proves_each_place_of_a_block(config: Config) -> None:
    with running(config) as here:
        put_to_nvme(here)
        code, found = checked(here, "--checksums")
        assert (code, found["blocks"], found["blocks_verified"]) == (0, 2 * PAGES, 4 * PAGES)
        _, found = checked(here)
        assert not found.get("blocks_verified")


def test_check_proves_what_is_in_nvme_alone(config: Config) -> None:
    with running(config) as here:
        put_to_nvme(here)
    with running(config) as here:
        code, found = checked(here, "--checksums", "--rate", "1GiB")
        assert (code, found["blocks_verified"]) == (0, 2 * PAGES)


def test_check_names_the_slot_that_is_damaged_and_leaves_it(config: Config) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
        assert here.daemon.nvme is not None
        [device] = here.daemon.nvme.devices
        path = pathlib.Path(device.name)
    with path.open("r+b") as file:
        file.seek(device.data_offset + 100)
        byte = file.read(1)
        file.seek(device.data_offset + 100)
        file.write(bytes([byte[0] ^ 1]))
    with running(config) as here:
        for _ in range(2):
            code, found = checked(here, "--checksums")
            assert code == 1 and found["blocks_verified"] == 2 * PAGES - 1
            assert found["violations"] == [
                f"{path}, slot at byte {device.data_offset}: its bytes have another checksum"
            ]
        engine = Engine(here.socket)
        answer = engine.lookup(hashes, wait_ms=WAIT_MS)
        assert counter(here, "blocks_corrupt") == 1
        if not answer.miss:
            assert_right(engine, answer, answer.boundary_pages)
        engine.close()


@pytest.mark.parametrize("rate", ["0B", "fast", ""])
def test_check_with_a_senseless_rate_is_refused(rate: str) -> None:
    with pytest.raises(SystemExit) as caught:
        printed("check", "--checksums", "--rate", rate)
    assert caught.value.code == 2
