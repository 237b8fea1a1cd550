"""The user's functions, called beside the event loop: one that never returns holds up no deadline and no exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


def in_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Calls `function` in a daemon thread. Not in an executor: those are joined at exit, and a function that never
    returns would keep the whole run from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(value: Any, error: BaseException | None) -> None:
        if future.done():  # timed out or cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def call() -> None:
        value, error = None, None
        try:
            value = function(*arguments)
        except Exception as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run ended while the function was busy
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=call, name=getattr(function, "__name__", "function"), daemon=True).start()
    return future
