"""The vLLM adapter: hybrid prefixes from the shared store, in stock vLLM.

::

    --kv-transfer-config '{"kv_connector": "AnchorStoreConnector",
                           "kv_connector_module_path": "engine_adapter.vllm", "kv_role": "kv_both",
                           "kv_connector_extra_config": {"daemon": "unix:///path"}}'

    decide (no torch, no vLLM)          act
      settings.py   what the user said    plugin.py     loaded in every vLLM process: version gate
      checks.py     what is refused       models.py     the families, with taps in their layers
      geometry.py   pages, blocks, heads  taps.py       capture: rows of the residual stream
      jobs.py       what workers are told paged.py      pages <-> vLLM's paged cache
      subject.py    what of a request     stack.py      a group's layers, called from zero
      ledger.py     what is saved         replay.py     anchors -> states
      tally.py      what is counted       spaces.py     sessions by adapter and salt
      matching.py   which prefix          loader.py     a thread: store -> host memory
      scheduler.py  one half: match,      saver.py      a thread: host memory -> store
                    agree, save, finish
                                          worker.py     the other half: load, replay, save
                                          setup.py      from vLLM's configuration to both
                                          connector.py  both under vLLM's interface

Importing this package loads neither torch nor vLLM; asking for the connector does.
"""

from __future__ import annotations

from typing import Any

__all__ = ["AnchorStoreConnector"]


def __getattr__(name: str) -> Any:
    if name == "AnchorStoreConnector":
        from engine_adapter.vllm.connector import AnchorStoreConnector

        return AnchorStoreConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
