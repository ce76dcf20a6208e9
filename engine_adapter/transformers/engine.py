"""The reference engine: generate with prefix reuse, on transformers.

One request::

    tokens --> find prefix in the store --hit--> kv into a fresh cache, replay --> session
                        |                        (states at the resume point)        |
                        +--miss, any reason--> empty session ------------------------+
                                                                                     v
                             first token <-- extend the rest of the prompt in one pass
                             then: save full pages, decode, save a page whenever one fills

The same call runs the controls: `NoReuse` (exact), `KvOnly` (kv and a margin, states from zero),
`zero_state`.  The engine without a daemon is the plain engine.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time
from collections.abc import Sequence

import torch

from anchorstore.client import Client, ClientOptions, NamespaceSpec
from anchorstore.errors import ModelError
from anchorstore.weights import weights_digest
from engine_adapter.budget import (
    MARGIN_TOKENS_DEFAULT,
    MAX_ROWS_DEFAULT,
    PAGE_TOKENS_DEFAULT,
    RATIO_DEFAULT,
    ROWS_PER_PAGE_DEFAULT,
    Budget,
)
from engine_adapter.pages import layer_tensors
from engine_adapter.replay import ReplayHit, replay
from engine_adapter.strategy import Strategy, SuffixReplay
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.session import Session
from engine_adapter.transformers.states import put_attention_tensors, put_linear_states
from engine_adapter.transformers.store import Miss, PageStore, Prefix

RESIDENT = "resident"
"""Miss reason of a request that continued a live session: the store was not asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resume:
    """How a session began.

    Attributes:
        shared_tokens: the longest prefix that the store could resume, in whole pages.
        reused_tokens: what was taken over: shared_tokens less the margin.
        rows_replayed: anchors replayed for the linear states.
        lineage: replays behind what the session computes.
        miss: why nothing was reused; "" where something was.
        strategy: name of the one that was used; "" where none was.
    """

    shared_tokens: int = 0
    reused_tokens: int = 0
    rows_replayed: int = 0
    lineage: int = 0
    miss: str = ""
    strategy: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What one request gave.

    Attributes:
        tokens: generated token ids, greedy.
        logits: float32 [len(tokens), vocabulary] where asked for, else None.
        prompt_tokens: tokens of the prompt, those of the session before it included.
        resume: what was reused.
        ttft_seconds: from the call to the first token's logits.
        session: the live sequence, to go on with.
    """

    tokens: list[int]
    logits: torch.Tensor | None
    prompt_tokens: int
    resume: Resume
    ttft_seconds: float
    session: Session


class Engine:
    """Greedy generation with prefix reuse.

    Attributes:
        loaded: the model and its layouts.
        strategy: how a request reuses, unless it says otherwise.
        store: the connection to the daemon; None where there is none.
        fallback: what is tried where kv is stored and the window is not; None: a full prefill.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        store: PageStore | None,
        strategy: Strategy,
        fallback: Strategy | None = None,
    ) -> None:
        """ModelError where a strategy does not fit the model's layouts."""
        self.loaded = loaded
        self.strategy = strategy
        self.store = store
        self.fallback = fallback
        for each in (strategy, fallback):
            if each is not None:
                self._check(each)

    @classmethod
    def load(
        cls,
        model_dir: str | pathlib.Path,
        *,
        client_address: str | None = None,
        options: ClientOptions | None = None,
        model_name: str = "",
        rows_per_page: int = ROWS_PER_PAGE_DEFAULT,
        ratio: float = RATIO_DEFAULT,
        max_rows: int = MAX_ROWS_DEFAULT,
        margin_tokens: int = MARGIN_TOKENS_DEFAULT,
        page_tokens: int = PAGE_TOKENS_DEFAULT,
        dtype: str = "float32",
        max_lineage: int | None = None,
        adapter: str = "",
        salt: bytes = b"",
        fallback: Strategy | None = None,
    ) -> Engine:
        """Load a model directory and attach to the daemon at `client_address`, if any.

        Args:
            model_dir: local directory with config.json and safetensors.
            client_address: "unix:///path" or "tcp://host:port"; None runs without a store.
            options: the client's own; by default its defaults.
            model_name: the namespace's model; the directory's name by default.
            max_lineage: deepest lineage a lookup accepts; None for any that is stored.
            fallback: a cheaper strategy (KvOnly) for prefixes whose anchors are missing.

        Raises:
            ModelError: a directory or model family that cannot be handled, with the reason.
        """
        directory = pathlib.Path(model_dir)
        loaded = LoadedModel.load(directory, dtype, rows_per_page, page_tokens)
        budget = Budget(rows_per_page, ratio, max_rows, margin_tokens, page_tokens)
        store = None
        if client_address is not None:
            namespace = NamespaceSpec(
                model_name or directory.resolve().name,
                loaded.digest(weights_digest(directory)),
                adapter=adapter,
                page_tokens=page_tokens,
                salt=salt,
            )
            client = Client.connect(
                client_address,
                namespace=namespace,
                layouts=[loaded.kv_layout, loaded.anchor_layout],
                options=options or ClientOptions(),
            )
            store = PageStore(client, loaded.kv_layout, loaded.anchor_layout, max_lineage)
        return cls(loaded, store, SuffixReplay(budget), fallback)

    @property
    def counters(self) -> collections.Counter[str]:
        """Hits, misses by reason, blocks put by outcome, since the engine started."""
        return collections.Counter() if self.store is None else self.store.counters

    def close(self) -> None:
        """Detach from the store and take the hooks off the model."""
        self.loaded.tap.close()
        if self.store is not None:
            self.store.close()

    def generate(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        *,
        session: Session | None = None,
        strategy: Strategy | None = None,
        keep_logits: bool = False,
        store_pages: bool = True,
    ) -> Result:
        """Continue `tokens` greedily by `max_new_tokens` (at least one).

        Args:
            tokens: the prompt; with `session`, what comes after all of that session's tokens.
            session: a live sequence to go on with; the store is then not asked.
            strategy: how to reuse; the engine's own by default.
            keep_logits: return the logits behind every generated token.
            store_pages: put the pages that fill; ignored with `session`.
        """
        started = time.perf_counter()
        prompt = list(tokens)
        if session is None:
            session, resume = self._open(prompt, strategy or self.strategy, store_pages)
            fresh = prompt[resume.reused_tokens :]
        else:
            held = len(session.tokens)
            resume = Resume(held, held, 0, session.lineage, RESIDENT)
            fresh = session.take_pending() + prompt
        prompt_tokens = len(session.tokens) + len(fresh)
        logits = session.extend(fresh)[-1]
        ttft_seconds = time.perf_counter() - started
        session.save_pages()
        generated, kept = self._decode(session, logits, max_new_tokens)
        stacked = torch.stack(kept) if keep_logits else None
        return Result(generated, stacked, prompt_tokens, resume, ttft_seconds, session)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        strategy: Strategy | None = None,
        store_pages: bool = True,
    ) -> tuple[Session, Resume]:
        """A session that holds `tokens`, reusing what the store has."""
        prompt = list(tokens)
        session, resume = self._open(prompt, strategy or self.strategy, store_pages)
        session.extend(prompt[resume.reused_tokens :])
        session.save_pages()
        return session, resume

    def _decode(
        self, session: Session, logits: torch.Tensor, max_new_tokens: int
    ) -> tuple[list[int], list[torch.Tensor]]:
        """Greedy tokens and the logits behind each; the last token stays pending."""
        generated, kept = [int(logits.argmax())], [logits]
        while len(generated) < max_new_tokens:
            logits = session.extend(generated[-1:])[-1]
            session.save_pages()
            generated.append(int(logits.argmax()))
            kept.append(logits)
        session.leave_pending(generated[-1])
        return generated, kept

    def _open(
        self, tokens: list[int], strategy: Strategy, store_pages: bool
    ) -> tuple[Session, Resume]:
        """A session at the resume point of `tokens`, empty after a miss."""
        if not tokens:
            raise ModelError("the prompt is empty: there is nothing to continue")
        self._check(strategy)
        found = self._find(tokens, strategy)
        if found == Miss("incomplete") and self.fallback is not None:
            strategy = self.fallback
            found = self._find(tokens, strategy)
        target = self.store if store_pages else None
        if isinstance(found, Miss):
            empty = Session(self.loaded, target, self.loaded.new_cache(), [], 0)
            return empty, Resume(miss=found.reason)
        session, resume = self._resume(tokens, found, target)
        return session, dataclasses.replace(resume, strategy=strategy.name)

    def _find(self, tokens: list[int], strategy: Strategy) -> Prefix | Miss:
        return Miss("no_store") if self.store is None else self.store.find(tokens, strategy)

    def _resume(
        self, tokens: list[int], prefix: Prefix, target: PageStore | None
    ) -> tuple[Session, Resume]:
        """A session whose cache holds the prefix: kv copied, linear states replayed."""
        loaded = self.loaded
        cache = loaded.new_cache()
        layers = layer_tensors(prefix.kv, loaded.kv_layout, loaded.latent_rank, loaded.model.dtype)
        put_attention_tensors(cache, loaded.spec, layers)
        kept = torch.tensor(tokens)[torch.from_numpy(prefix.positions)]
        (states,) = replay(loaded.stack, [ReplayHit(prefix.positions, kept, prefix.anchors)])
        put_linear_states(cache, states)
        lineage = min(prefix.lineage + 1, 255)
        session = Session(loaded, target, cache, tokens[: prefix.resume_tokens], lineage)
        resume = Resume(
            prefix.boundary_tokens, prefix.resume_tokens, len(prefix.positions), lineage
        )
        return session, resume

    def _check(self, strategy: Strategy) -> None:
        budget, layout = strategy.budget, self.loaded.anchor_layout
        needs = strategy.needs()
        if needs and budget.page_tokens != layout.page_tokens:
            raise ModelError(
                f"strategy {strategy.name}: pages of {budget.page_tokens} tokens, "
                f"the engine's have {layout.page_tokens}"
            )
        if len(needs) > 1 and budget.rows_per_page != layout.rows:
            raise ModelError(
                f"strategy {strategy.name}: {budget.rows_per_page} rows a page, "
                f"the engine keeps {layout.rows}"
            )
