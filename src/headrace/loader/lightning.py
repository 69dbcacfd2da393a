"""What Lightning does with a loader and does not tell it.

Lightning fetches one batch ahead of a loader without a length, asks for the loader's state while
it works on the batch before that one, and calls ``set_epoch`` on samplers only. A loader that is
to resume exactly, without a callback in the user's code, has to look who is asking: both
functions search the stack for the loop of Lightning's that runs the loader.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

__all__ = ["batch_is_held", "epoch_of_fit"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def batch_is_held(loader: object) -> bool:
    """Whether Lightning has taken a batch of the loader that it has not begun to work on."""
    loop, _ = _loop_over(loader)
    return bool(getattr(getattr(loop, "_data_fetcher", None), "batches", None))


def epoch_of_fit(loader: object) -> int:
    """Epochs that lie behind Lightning's fit loop, if it is beginning the loader now, or 0.

    Lightning does not load the loader's state after an epoch that was complete, ends epochs
    early (``limit_train_batches``), and makes loaders anew
    (``reload_dataloaders_every_n_epochs``): in each case the loader would read the epochs that
    lie behind once more.
    """
    loop, is_beginning = _loop_over(loader)
    progress = getattr(loop, "epoch_progress", None)
    if progress is None or not is_beginning:
        return 0
    epochs = progress.current
    if not getattr(loop, "is_resuming", False):
        return int(epochs.completed)
    # The checkpoint is older than what Lightning counts once it has restarted.
    on_its_last_batch = loop.epoch_loop.batch_progress.is_last_batch
    return int(epochs.processed + (on_its_last_batch and epochs.started > epochs.processed))


def _loop_over(loader: object) -> tuple[Any, bool]:
    """The loop that runs the loader, and whether it is making an iterator for a new epoch."""
    frame = sys._getframe(2) if any(name in sys.modules for name in _PACKAGES) else None
    is_beginning = False
    while frame is not None:
        owner = _owner(frame)
        combined = getattr(owner, "_combined_loader", None)
        if any(loader is one for one in getattr(combined, "flattened", ())):
            if hasattr(owner, "_data_fetcher"):
                return owner, is_beginning
            is_beginning = is_beginning or frame.f_code.co_name == "__iter__"
        frame = frame.f_back
    return None, False


def _owner(frame: FrameType) -> Any:
    """The object whose method a frame of Lightning's runs."""
    if not frame.f_globals.get("__name__", "").startswith(_PACKAGES):
        return None
    return frame.f_locals.get("self")
