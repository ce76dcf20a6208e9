"""Goal: `status` and `top` say what lies in which tier, what moves and how the devices are.
Method: main() against a daemon of prepared answers; the text as printed, the JSON parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anchorstore.cli.top import Interval, screen
from anchorstore.testing.canned import CannedDaemon
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2, store_pb2
from tests.integration.harness import Say

MIB, GIB = 2**20, 2**30


def status(**counters: int) -> admin_pb2.StatusResponse:
    """Two tiers; the device has read and written as many blocks as the counters say."""
    read, written = counters.get("blocks_promoted", 0), counters.get("nvme_blocks_written", 0)
    device = admin_pb2.DeviceStatus(
        path="/mnt/nvme0/anchorstore.nvme",
        state="read-only",
        reason="No space left on device",
        engine="threads",
        capacity_bytes=1024 * GIB,
        blocks_read=read,
        bytes_read=read * MIB,
        blocks_written=written,
        bytes_written=written * MIB,
        write_errors=3,
        late_blocks=2,
        reads_waiting=5,
    )
    kv = admin_pb2.ComponentStatus(component=store_pb2.COMPONENT_KV, blocks=1000)
    space = admin_pb2.NamespaceStatus(
        domain="a", model="m", root_digest=bytes(32), nvme_bytes=GIB, enabled=True
    )
    return admin_pb2.StatusResponse(
        version="9.8.7",
        uptime_ms=60_000,
        pages=500,
        tiers=[
            admin_pb2.TierStatus(name="dram", capacity_bytes=4 * GIB, used_bytes=GIB),
            admin_pb2.TierStatus(
                name="nvme",
                capacity_bytes=1024 * GIB,
                used_bytes=512 * GIB,
                components=[kv],
                devices=[device],
            ),
        ],
        namespaces=[space],
        counters={"lookups_waiting": 4, "blocks_to_demote": 17, **counters},
    )


def moving() -> Callable[[admin_pb2.StatusRequest], admin_pb2.StatusResponse]:
    """A daemon that moves: each answer has more of everything."""

    def answers() -> Iterator[admin_pb2.StatusResponse]:
        for step in range(10):
            yield status(
                lookups_hit=90 * step,
                lookups_cold=10 * step,
                pages_hit=900 * step,
                blocks_promoted=20 * step,
                nvme_blocks_written=40 * step,
                pages_demoted=30 * step,
                pages_left_dram_age_600=28 * step,
                pages_left_dram_age_inf=2 * step,
                engines=2,
                events_touched=60 * step,
                pages_let_go=8 * step,
                pinned_pages=3,
            )

    left = answers()
    return lambda _: next(left)


def test_status_prints_devices_with_their_faults(say: Say, tmp_path: Path) -> None:
    with CannedDaemon(tmp_path / "s", {Method.STATUS: status(nvme_blocks_written=2)}):
        code, out, err = say("status")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["nvme", "all", "1TiB", "512GiB", "(50%)", "1,000", "0", "0", "no"] in lines
    [device] = [line for line in out.splitlines() if line.startswith("/mnt/nvme0")]
    assert "read-only: No space left on device" in device
    assert device.split()[-6:] == ["threads", "1TiB", "0B", "2MiB", "3", "2"]
    assert "NVME QUOTA" in out


def test_screen_of_an_interval_shows_rates() -> None:
    answer = moving()
    before, after = (answer(admin_pb2.StatusRequest()) for _ in range(2))
    text = screen(Interval(before, after, 2.0))
    lines = [line.split() for line in text.splitlines()]
    assert "lookups 50.0/s, 90% hits of 10 pages, 4 waiting; misses/s: cold 5.0" in text
    assert ["nvme", "1TiB", "512GiB", "(50%)", "1,000", "20.0", "0.0"] in lines
    [device] = [line for line in text.splitlines() if line.startswith("/mnt/nvme0")]
    assert device.split()[1:5] == ["10MiB/s", "20MiB/s", "5", "0"]
    assert "left dram/s, last used: within 10m00s 14.0, longer ago 1.0" in text
    assert "engines that tell 2: used 30.0 pages/s, let go 4.0/s, pinned 3\n" in text
    assert "pages demoted 15.0" in text and "waiting for nvme 17" in text


def test_screen_of_a_quiet_interval_divides_by_nothing() -> None:
    text = screen(Interval(status(), status(), 1.0))
    assert "lookups 0.0/s, 0% hits of 0 pages" in text and "gone/s: nothing" in text
    assert "engines that tell" not in text


def test_top_once_prints_one_screen_without_control_characters(say: Say, tmp_path: Path) -> None:
    with CannedDaemon(tmp_path / "s", {Method.STATUS: moving()}) as daemon:
        code, out, err = say("top", "--once", "--interval", "100ms")
    assert (code, err) == (0, "") and len(daemon.requests) == 2
    assert out.startswith("anchorstore 9.8.7, serving for 1m00s") and "\x1b" not in out


def test_top_as_json_is_a_document_a_line(say: Say, tmp_path: Path) -> None:
    with CannedDaemon(tmp_path / "s", {Method.STATUS: moving()}):
        code, out, _ = say("top", "--once", "--json", "--interval", "100ms")
    [line] = out.splitlines()
    found = json.loads(line)
    assert code == 0 and found["pages_a_hit"] == 10.0
    assert found["rates"]["lookups_hit"] > 0 == found["rates"]["lookups_waiting"]
    assert found["devices"]["/mnt/nvme0/anchorstore.nvme"]["bytes_read"] > 0
    assert found["status"]["tiers"][1]["devices"][0]["state"] == "read-only"


@pytest.mark.parametrize("interval", ["1ms", "soon", "0s"])
def test_top_with_a_wrong_interval_is_refused(say: Say, interval: str) -> None:
    code, _, err = say("top", "--interval", interval)
    assert code == 2 and interval in err


def test_top_for_no_operator_is_refused(say: Say, tmp_path: Path) -> None:
    own = admin_pb2.StatusResponse(version="9.8.7")
    with CannedDaemon(tmp_path / "s", {Method.STATUS: own}):
        code, _, err = say("top", "--once")
    assert code == 2 and "operators" in err


def test_remove_that_may_come_back_says_so(say: Say, tmp_path: Path) -> None:
    answers = {
        Method.LIST: admin_pb2.ListResponse(namespaces=status().namespaces),
        Method.REMOVE: admin_pb2.RemoveResponse(blocks_removed=7, may_come_back=True),
    }
    with CannedDaemon(tmp_path / "s", answers):
        code, out, err = say("remove", "a/m", "--yes")
    assert code == 0 and "removed 7 blocks" in out
    assert "after a restart blocks may be found again" in err
