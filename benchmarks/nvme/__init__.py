"""The nvme tier beside fio: the same file system, direct I/O, engine and depth, in turns."""
