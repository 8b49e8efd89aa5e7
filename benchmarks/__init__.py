"""Benchmarks on a GPU: ``python -m benchmarks [--quick] [--json FILE] [--compiler MODULE] [NAME ...]``.

Every figure is a ratio between versions that are interleaved in one process: absolute times of a shared machine mean
little.  With ``--sass FOLDER`` nothing runs and no GPU is needed: the machine code of the versions is written there,
and counted.
"""
