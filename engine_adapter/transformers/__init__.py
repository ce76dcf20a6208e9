"""The reference engine: Hugging Face transformers on CPU, with prefix reuse from the store.

::

    families.py   how each model family's linear layers are called and kept quiet
    states.py     the model's cache <-> linear states, keys and values
    engine.py     load, look up, resume, generate
    session.py    one live sequence: extend, decode, save full pages

Clarity first: every other engine's adapter is tested against this one.
"""
