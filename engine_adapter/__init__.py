"""The thin part that lives inside an engine: capture anchors, find a prefix, replay, resume.

Reading order::

    budget.py     how many rows, where to resume, what to ask the store for      (pure)
    packing.py    several hits' kept rows in one rectangular batch               (numpy)
    capture.py    the residual stream entering each group -> anchor blocks       (torch)
    pages.py      keys and values <-> kv blocks                                  (torch)
    replay.py     anchors -> conv and recurrent states, a group at a time        (torch)
    strategy.py   the reuse methods behind one small interface
    transformers/ the reference engine that every other engine is tested against

Importing this package loads none of them: an engine takes what it needs.
"""
