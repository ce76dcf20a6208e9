"""The daemon: a pure core that decides (`core/`) and a shell around it that acts."""
