"""What may be raised in the midst of any code that runs in the main thread."""

from __future__ import annotations

import signal
import threading

__all__ = ["nothing_but_interrupt"]

_HARMLESS = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, None)
_SIGNALS = tuple(signal.valid_signals())


def nothing_but_interrupt() -> bool:
    """Whether that can only be a KeyboardInterrupt, in this thread.

    Handlers of signals run in the main thread and may raise anything: a TimeoutError that comes in
    the midst of a read would be taken for a fault of the file.
    """
    if threading.current_thread() is not threading.main_thread():
        return True
    return all(signal.getsignal(number) in _HARMLESS for number in _SIGNALS)
