"""Launching with device copies: refresh, launch, note, copy back; the same for every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda_captures import mirrors
from cuda_captures.errors import CaptureError
from cuda_captures.instances import Instance
from cuda_captures.ordering import LEGACY
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
                        try:
                            start(instance.launchable)
                        finally:
                            instance.launched(stream, owner)
                    except BaseException:
                        instance.forsake()  # nobody brings home what it may have written
                        raise
                    break
            instance = rebind()
            if stream not in LEGACY:
                instance.launched_elsewhere(stream)
        instance.copy_back(stream, owner)
    except CaptureError as error:
        say_whose(error, kernel, instance.copied())
        raise


def make_ready(instance: Instance, stream: int, rebind: Callable[[], Instance], kernel: Any) -> Instance:
    """Bring the copies of a module instance up to date ahead of a launch.

    Parameters are those of :func:`launch_with_copies`.

    Returns
    -------
    Instance
        The one that is ready: another, if a copy has been replaced by a larger one.
    """
    try:
        while True:
            with mirrors.LAUNCH_LOCK:
                if instance.ready(stream):
                    instance.unused()
                    return instance
            instance = rebind()
    except CaptureError as error:
        say_whose(error, kernel, instance.copied())
        raise
