"""Launching with device copies: refresh, launch, note, copy back; the same for every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda_captures import mirrors
from cuda_captures.errors import CaptureError
from cuda_captures.instances import Instance
from cuda_captures.whereabouts import say_whose


def launch_with_copies(
    instance: Instance,
    stream: int,
    owner: Any,
    start: Callable[[Any], None],
    rebind: Callable[[], Instance],
    kernel: Any,
) -> None:
    """Launch a module instance whose NumPy arrays have device copies.

    Parameters
    ----------
    instance
        The instance for what the names mean now.
    stream
        The driver's handle of the stream.
    owner
        The stream's object, if it has one: kept while copies wait for what was enqueued on it.
    start
        Launches what a backend knows an instance by.
    rebind
        Another instance, when a copy has been replaced by a larger one.
    kernel
        The Python function, to say in an error which of its arrays it is about.
    """
    try:
        while True:
            with mirrors.LAUNCH_LOCK:  # no other thread's update falls between refreshing and launching
                if instance.ready(stream):
                    try:
                        start(instance.launchable)
                    finally:
                        instance.launched(stream, owner)
                    break
            instance = rebind()
        instance.copy_back(stream, owner)
    except CaptureError as error:
        say_whose(error, kernel, instance.copied())
        raise
