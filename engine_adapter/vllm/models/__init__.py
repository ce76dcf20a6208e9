"""The supported families as vLLM loads them: its own classes, with taps in their layers.

The plugin registers these classes under the names of vLLM's own, which is the documented way to
bring a model from outside.  A module each, so that a family that this vLLM cannot import does not
take the others along.  Where another connector, or none, is configured they do nothing more than
their base.
"""
