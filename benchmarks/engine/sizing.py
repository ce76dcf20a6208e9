"""Which random-weight model is slow enough here: made, served and timed, once a machine.

::

    SIZES: 256 . 384 . 512 ...    serve one -> seconds of 1024 new tokens -> over a second: keep it
                                      |------- too fast: the next size that should do -------|

Reuse is worth its trouble where prefill takes time, and how large a model that needs is the
machine's affair.  The answer is kept beside the models, by processor and flags.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
from collections.abc import Sequence

from benchmarks import harness
from benchmarks.engine.client import Client
from benchmarks.engine.events import EndpointError
from benchmarks.engine.models import SIZES, VOCABULARY, random_folder
from benchmarks.engine.run import PREFILL_TOKENS, Say, prefill_seconds
from benchmarks.engine.servers import Server, Setup, Variant
from benchmarks.engine.traces import Shape

LEAST_SECONDS = 1.0
AIM_SECONDS = 1.4
"""A quieter moment must not bring a model below the least."""

MAKE_SECONDS = 900
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KV_CACHE_BYTES = 512 * 2**20


def next_size(hidden: int, seconds: float) -> int | None:
    """The smallest size that should reach the aim, given what `hidden` took; None: none does.

    Between linear and quadratic in the hidden size; taken as linear, so that no step is too long.
    """
    wanted = hidden * AIM_SECONDS / max(seconds, 1e-3)
    larger = [size for size in SIZES if size > hidden]
    if not larger:
        return None
    return next((size for size in larger if size >= wanted / 1.5), larger[-1])


def made(cache: pathlib.Path, python: pathlib.Path, hidden: int, say: Say) -> pathlib.Path:
    """The model's folder, made where it is not there."""
    folder = random_folder(cache.resolve(), hidden)
    if folder.is_dir():
        return folder
    say(f"making a random-weight model of hidden size {hidden}")
    words = [str(python), "-m", "benchmarks.engine.models", str(folder), str(hidden)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=MAKE_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise EndpointError(f"the model was not made:\n{done.stderr.strip()[-1000:]}")
    return folder


def timed(
    model: pathlib.Path, python: pathlib.Path, logs: pathlib.Path, flags: Sequence[str], say: Say
) -> float:
    """Seconds that stock vLLM takes for 1024 new tokens of the model."""
    shape = Shape(0, VOCABULARY, 2 * PREFILL_TOKENS, 1, 1)
    setup = Setup(python, model, 2 * PREFILL_TOKENS, KV_CACHE_BYTES, logs, tuple(flags))
    with Server(setup, Variant("sizing", None), say) as server:
        client = Client(server.url)
        client.prepare([0] * 8)
        prefill_seconds(shape, client, 1)
        return prefill_seconds(shape, client, 2)


def random_model(
    cache: pathlib.Path, python: pathlib.Path, logs: pathlib.Path, flags: Sequence[str], say: Say
) -> pathlib.Path:
    """A random-weight model whose 1024 new tokens take over a second on this machine."""
    machine = harness.machine()
    known = json.dumps([machine["processor"], machine["cores"], sorted(flags), list(SIZES)])
    note = cache / f"sizing-{hashlib.sha256(known.encode()).hexdigest()[:8]}.json"
    if note.is_file():
        return made(cache, python, int(json.loads(note.read_text())["hidden"]), say)
    hidden: int | None = SIZES[0]
    while hidden is not None:
        model = made(cache, python, hidden, say)
        seconds = timed(model, python, logs, flags, say)
        say(f"hidden size {hidden}: 1024 new tokens take {seconds:.2f} s")
        if seconds >= LEAST_SECONDS * 1.1:
            note.write_text(json.dumps({"hidden": hidden, "seconds": round(seconds, 3)}))
            return model
        hidden = next_size(hidden, seconds)
    raise EndpointError(f"no model of {SIZES} takes a second for 1024 new tokens here")
