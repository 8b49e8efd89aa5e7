"""Benchmarks on a GPU: ``python -m benchmarks [--quick] [--json FILE] [NAME ...]``.

Every figure is a ratio between versions that are interleaved in one process: absolute times of a shared machine mean
little.
"""
