"""vLLM in a process of its own: JSON lines in, JSON lines out.

::

    Served(model, daemon)  --start-->  python -m tests.vllm.served   LLM(...) inside
        generate(prompt)   --line-->   {"tokens": [...], "cached": n, "logprobs": [...]}

Run as a module it is the process; imported it is the one that starts it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KV_CACHE_BYTES = 128 * 2**20
STOP_SECONDS = 60
Lora = tuple[str, int, pathlib.Path]


@dataclasses.dataclass(frozen=True)
class Reply:
    """One request's tokens, greedy.

    Attributes:
        tokens: generated ids.
        cached: prompt tokens that were not computed, as vLLM reports them.
        logprobs: of each generated token.
        margins: by how much each was likelier than the runner-up.
    """

    tokens: list[int]
    cached: int
    logprobs: list[float]
    margins: list[float]


class Served:
    """An engine's process; a context manager.

    Args:
        model: model directory.
        log: where its standard error goes.
        daemon: address; None is stock vLLM.
        extra: further extra config of the connector.
        role: "kv_both"; a "kv_consumer" never saves.
        options: arguments of LLM on top of the small ones.
        variables: of its environment, on top of `environment`.
    """

    def __init__(
        self,
        model: pathlib.Path,
        log: pathlib.Path,
        *,
        daemon: str | None = None,
        extra: Mapping[str, Any] | None = None,
        role: str = "kv_both",
        options: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        config: dict[str, Any] = {"model": str(model), "options": dict(options or {})}
        if daemon is not None:
            config |= {"extra": {"daemon": daemon, **(extra or {})}, "role": role}
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm.served", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**environment(), **(variables or {})},
        )
        self._path = log
        try:
            self._read()
        except RuntimeError:
            self.stop()
            raise

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine has ended:\n{self._path.read_text()[-4000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **request: Any) -> dict[str, Any]:
        """Any operation of `answer`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int = 24,
        *,
        salts: Sequence[str] = (),
        lora: Lora | None = None,
        loras: Sequence[Lora | None] = (),
    ) -> list[Reply]:
        """Greedy continuations of `prompts`, served together.

        `salts`: one a prompt, or none; `lora`: an adapter's name, number and directory;
        `loras`: one a prompt instead.
        """
        each_lora = loras or [lora] * len(prompts)
        found = self.ask(
            op="generate",
            prompts=[list(p) for p in prompts],
            tokens=tokens,
            salts=list(salts),
            loras=[[*each[:2], str(each[2])] if each else None for each in each_lora],
        )
        return [Reply(**each) for each in found["replies"]]

    def chances(self, prompt: Sequence[int]) -> tuple[list[float], int]:
        """Log-probabilities of every token as the next, by id, and the prompt tokens that were
        not computed.  Wants the option `max_logprobs` of -1."""
        found = self.ask(op="chances", prompt=list(prompt))
        return found["logprobs"], found["cached"]

    def reset(self) -> None:
        """Empties vLLM's own prefix cache."""
        self.ask(op="reset")

    def abort(self, prompt: Sequence[int], steps: int) -> int:
        """Drops a request after so many steps; blocks in use once the engine has settled."""
        found: int = self.ask(op="abort", prompt=list(prompt), steps=steps)["blocks"]
        return found

    def preemptions(self) -> int:
        """How often a request has lost its blocks so far."""
        found: int = self.ask(op="preemptions")["count"]
        return found

    def stop(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        if self._process.poll() is None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def environment() -> dict[str, str]:
    """Variables of an engine's process: no hub, one thread, the code that the tests see."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), str(ROOT)))),
    }


# ---- inside the process ----------------------------------------------------------------------


def mend_mamba_on_cpu() -> None:
    """vLLM's Mamba-2 asks its kernels for a state in the middle of a prefill; the CPU ones ignore
    that, and stock vLLM ends with an IndexError.  Without the request it does not."""
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    asked = MambaMixer2.get_kv_cache_spec

    def asking_less(self: Any, vllm_config: Any) -> Any:
        spec = asked(self, vllm_config)
        return dataclasses.replace(
            spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None
        )

    MambaMixer2.get_kv_cache_spec = asking_less


def build(config: dict[str, Any]) -> Any:
    """The LLM that the process serves."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    mend_mamba_on_cpu()
    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "mamba_ssm_cache_dtype": "float32",
        "seed": 0,
        **config["options"],
    }
    if "extra" in config:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="AnchorStoreConnector",
            kv_connector_module_path="engine_adapter.vllm",
            kv_role=config["role"],
            kv_connector_extra_config=config["extra"],
        )
    return LLM(model=config["model"], **options)


def answer(llm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One request's reply."""
    from vllm import SamplingParams

    if request["op"] == "reset":
        return {"done": llm.reset_prefix_cache()}
    if request["op"] == "abort":
        return {"blocks": abort(llm, request["prompt"], request["steps"])}
    if request["op"] == "preemptions":
        values = [m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions"]
        return {"count": int(sum(values))}
    if request["op"] == "chances":
        return chances(llm, request["prompt"])
    assert request["op"] == "generate", request["op"]
    from vllm.lora.request import LoRARequest

    sampling = SamplingParams(
        temperature=0, max_tokens=request["tokens"], ignore_eos=True, logprobs=2
    )
    prompts: list[dict[str, Any]] = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    for prompt, salt in zip(prompts, request["salts"], strict=False):
        prompt["cache_salt"] = salt
    loras = [LoRARequest(*each) if each else None for each in request["loras"]]
    outputs = llm.generate(
        prompts, sampling, use_tqdm=False, lora_request=loras if any(loras) else None
    )
    return {"replies": [reply(output) for output in outputs]}


def reply(output: Any) -> dict[str, Any]:
    """A request's output as a Reply's fields."""
    tokens = list(output.outputs[0].token_ids)
    steps = output.outputs[0].logprobs
    chances = [sorted((each.logprob for each in step.values()), reverse=True) for step in steps]
    return {
        "tokens": tokens,
        "cached": output.num_cached_tokens,
        "logprobs": [step[token].logprob for step, token in zip(steps, tokens, strict=True)],
        "margins": [first - second for first, second, *_ in chances],
    }


def chances(llm: Any, prompt: list[int]) -> dict[str, Any]:
    """See Served.chances."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=-1)
    [output] = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    [step] = output.outputs[0].logprobs
    return {
        "logprobs": [step[token].logprob for token in range(len(step))],
        "cached": output.num_cached_tokens,
    }


def abort(llm: Any, prompt: list[int], steps: int) -> int:
    """See Served.abort."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    engine.add_request("dropped", {"prompt_token_ids": prompt}, sampling)
    for _ in range(steps):
        engine.step()
    engine.abort_request(["dropped"])
    core = engine.engine_core.engine_core
    for _ in range(1000):
        if not core.scheduler.has_requests():
            break
        engine.step()
        core.step()
    pool = core.scheduler.kv_cache_manager.block_pool
    return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to standard output, too
    llm = build(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line))), file=replies, flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
