"""Trace lab: what a memory of so many bytes keeps of what a workload shares.

::

    kinds.py | jsonl.py --> trace.py: pages of every request
                               |
         caches, each of the same bytes            lab.py asks them request by request
         core.py          the daemon's own core, in simulated time
         belady.py        the optimum, told the future
         checkpoints.py   exact states at a few places, as engines keep them
         infinite.py      what is ever shared
                               |
                            report.py, plot.py: pages hit, bytes moved, reuse lost by reason

Nothing is stored and nothing is timed, so a run says the same on every machine.
"""
