"""The nvme tier: blocks on files and block devices, found again after a restart.

Reading order: `format` (the bytes), `plans` (what is asked), `device` and `tier` (one, several);
then what a device is made of: `seam` (the file), `jobs`, `scheduler` and `engines` (blocks),
`queue_engine` over `uring` or `aio` (the same by calls that do not wait), `journal`, `region` and
`replay` (what lives), `health` (what errors mean).
"""
