"""Goal: after a failure calls are not tried for a while, then by one caller alone.
Method: walk the gate through its states with moments of our own.
"""

from __future__ import annotations

from anchorstore.client.gate import Gate


def test_gate_at_first_lets_everybody_through() -> None:
    assert Gate().refuses(0.0) == ""


def test_gate_after_a_failure_refuses_until_the_pause_is_over() -> None:
    gate = Gate()
    gate.shut("deadline", until=10.0)
    assert gate.refuses(9.9) == "deadline"
    assert gate.refuses(10.0) == ""


def test_gate_while_one_probes_refuses_the_others() -> None:
    gate = Gate()
    gate.shut("unreachable", until=10.0)
    gate.probe(until=11.0)
    assert gate.refuses(10.5) == "unreachable"
    gate.open()
    assert gate.refuses(10.5) == ""


def test_gate_probe_while_open_changes_nothing() -> None:
    gate = Gate()
    gate.probe(until=11.0)
    assert gate.refuses(10.5) == ""


def test_gate_after_a_probe_that_asked_nothing_lets_the_next_one_try() -> None:
    gate = Gate()
    gate.shut("unreachable", until=10.0)
    gate.probe(until=15.0)
    assert gate.refuses(11.0) == "unreachable"
    gate.settle()
    assert gate.refuses(11.0) == ""
    assert gate.reason == "unreachable"


def test_gate_settled_after_a_failure_stays_shut() -> None:
    gate = Gate()
    gate.shut("unreachable", until=10.0)
    gate.probe(until=15.0)
    gate.shut("unreachable", until=12.0)
    gate.settle()
    assert gate.refuses(11.9) == "unreachable"
