"""Goal: the script for a machine with a device works the first time that it meets one.
Method: its parts on the shipped fake; the script itself where there is no device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import xxhash

from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu
from anchorstore.tiers.device_slab import OwnSlab
from anchorstore.transport.cuda_driver import device_count
from tests.gpu import probe
from tests.gpu.other import serve, to_json
from tests.gpu.report import ROOT, counted


@pytest.mark.skipif(device_count() > 0, reason="there is a device: run.sh would use it")
def test_script_on_a_host_without_a_device_says_so() -> None:
    done = subprocess.run(
        [ROOT / "tests/gpu/run.sh"],
        env=os.environ | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["device"] is None and "CUDA" in found["reason"]


def test_question_of_registration_on_the_fake_has_an_answer_a_mapping() -> None:
    found = probe.host_register(FakeCuda(FakeGpu()), size=probe.MIB)
    assert found["daemon"]["right"] and found["client"]["right"]
    assert found["client_read_only_flag"]["accepted"] is False
    assert "not supported" in found["client_read_only_flag"]["error"]


def test_question_of_rates_on_the_fake_has_an_answer_a_size() -> None:
    found = probe.tier_rates(FakeCuda(FakeGpu()), total_bytes=8 * probe.MIB)
    assert list(found) == ["64KiB", "1024KiB", "8192KiB"]
    assert all(rate > 0 for rates in found.values() for rate in rates.values())


def asked(device: FakeCuda, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What the other process would answer."""
    answers: SimpleQueue[str] = SimpleQueue()
    lines = [json.dumps(request) for request in requests]
    thread = threading.Thread(target=serve, args=(device, lines, answers.put))
    thread.start()
    thread.join()
    return [json.loads(answers.get()) for _ in requests]


def test_other_process_on_the_fake_sees_a_slab_and_tells_its_errors() -> None:
    gpu = FakeGpu()
    slab = OwnSlab(FakeCuda(gpu), 2 * probe.MIB)
    export = to_json(slab.export())
    fresh = np.full(1000, 0xA5, np.uint8)  # as the fake leaves new memory
    found = asked(
        FakeCuda(gpu),
        {"do": "open", "export": export},
        {"do": "sum", "start": 4096, "size": 1000},
        {"do": "close"},
        {"do": "open", "export": {**export, "size_bytes": 4 * probe.MIB}},
        {"do": "own", "size_bytes": 4096},
    )
    assert found[0] == {"found": 2 * probe.MIB}
    assert found[1] == {"found": xxhash.xxh3_64_intdigest(fresh)}
    assert found[2] == {"found": True}
    assert "exceed the allocation" in found[3]["error"]
    assert found[4]["found"]["bus_id"] == gpu.bus_id
    assert not gpu.misuses


def test_counts_of_a_report_name_what_failed() -> None:
    found = counted(
        '<testsuites><testsuite><testcase classname="a" name="x"/>'
        '<testcase classname="a" name="y"><failure>no</failure></testcase>'
        '<testcase classname="a" name="w"><error/></testcase>'
        '<testcase classname="b" name="z"><skipped/></testcase></testsuite></testsuites>'
    )
    assert found == {"passed": 1, "failed": 2, "skipped": 1, "failures": ["a::y", "a::w"]}
