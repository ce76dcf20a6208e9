"""anchorstore: a shared, tiered store of anchors and KV pages for hybrid language models."""

__version__ = "0.1.0"
