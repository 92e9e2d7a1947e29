"""A limit for calls that know none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def answer_within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """``call()``, made in a daemon thread that is left behind when it takes too long.

    Name look-ups, and connecting to one address after another, have no total limit.

    Raises:
        TimeoutError: after ``seconds``; whatever ``call`` raises before that.

    Examples:
        >>> answer_within(1.0, lambda: 7)
        7
    """
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # handed to the waiting thread
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
