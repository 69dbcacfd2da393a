"""A callback of Lightning that makes its checkpoints of loaders exact.

    trainer = Trainer(callbacks=[HeadraceCallback()])

Lightning saves and loads the state of a loader by itself, with three gaps. It fetches one batch
ahead of a loader whose length is not known, and saves the state behind that batch. It saves the
state of rank 0 only. It counts epochs itself and does not tell them to the loader: an epoch that
``limit_train_batches`` ends, or a loader that is made anew, would repeat an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import MissingExtraError
from headrace.integrations.ranks import gather_state
from headrace.loader import BucketedLoader, StatefulLoader

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise MissingExtraError(
                "Lightning is not installed; run: pip install lightning"
            ) from None

__all__ = ["HeadraceCallback"]


class HeadraceCallback(Callback):
    """Save the positions of training loaders, and keep their epochs equal to Lightning's.

    A run that is resumed from a checkpoint continues with the very next batch: in mid-epoch or
    between epochs, with one rank or several. Loaders of other libraries are left alone.

    Example::

        trainer = Trainer(callbacks=[HeadraceCallback(), ModelCheckpoint(every_n_train_steps=100)])
        trainer.fit(module, ckpt_path="last")
    """

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let loaders read the epoch that Lightning begins."""
        behind = [one for one in _loaders(trainer) if one.epoch < trainer.current_epoch]
        for loader in behind:
            loader.set_epoch(trainer.current_epoch)
        if behind and getattr(trainer.fit_loop, "is_resuming", False):
            # Lightning began to iterate before this hook, and does not do so again.
            iter(trainer.fit_loop._data_fetcher)

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Move to the next epoch after the last batch, before checkpoints are saved."""
        _end_epoch(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Move to the next epoch also if the module has skipped the rest of this one."""
        _end_epoch(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Replace the states that Lightning has saved, on all ranks."""
        saved = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
        if not saved:  # no training, or no loader with a state
            return
        # Lightning may have fetched a batch that it has not begun to work on.
        unused: Literal[0, 1] = 1 if getattr(trainer.fit_loop._data_fetcher, "batches", ()) else 0
        for place, loader in enumerate(filter(_has_state, _combined(trainer))):
            if isinstance(loader, StatefulLoader):
                saved[place] = gather_state(loader, unused_batches=unused)
            elif isinstance(loader, BucketedLoader):  # the same on all ranks
                saved[place] = loader.state_dict(unused_batches=unused)


def _combined(trainer: Any) -> list[Any]:
    """Return the training loaders, in the order in which Lightning saves their states."""
    combined = trainer.fit_loop._combined_loader
    return [] if combined is None else list(combined.flattened)


def _has_state(loader: object) -> bool:
    """Return True if Lightning saves the state of a loader."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _loaders(trainer: Any) -> Iterator[StatefulLoader | BucketedLoader]:
    for loader in _combined(trainer):
        if isinstance(loader, StatefulLoader | BucketedLoader):
            yield loader


def _end_epoch(trainer: Any) -> None:
    if trainer.is_last_batch:
        for loader in _loaders(trainer):
            loader.set_epoch(max(loader.epoch, trainer.current_epoch + 1))
