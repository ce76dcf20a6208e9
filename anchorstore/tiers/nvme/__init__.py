"""The nvme tier: blocks on files and block devices, found again after a restart.

Reading order: `format` (the bytes), `plans` (what is asked), `device`, then what it is made of:
`seam` (the file), `jobs`, `scheduler` and `engines` (blocks), `journal` and `replay` (what lives),
`health` (what errors mean).
"""
