"""A Hugging Face Trainer that trains on a loader of headrace, with exact checkpoints.

    trainer = HeadraceTrainer(model=model, args=arguments, make_loader=make_loader)
    trainer.train(resume_from_checkpoint=True)

A plain Trainer would share the rows of the loader a second time, skip batches when it resumes, and
forget the state of the loader. This Trainer uses the loader unchanged, skips nothing, and saves
the state of the loader in ``trainer_state.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import MissingExtraError, OptionError

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError:
    raise MissingExtraError(
        "transformers is not installed; run: pip install transformers accelerate"
    ) from None

__all__ = ["HeadraceTrainer", "LoaderStateCallback"]


class LoaderStateCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves the state of the training loader with the state of the Trainer, and loads it.

    Rank 0 writes that file. All ranks take the same number of steps, so its state is enough for
    all of them. The Trainer makes the callback anew from the value of ``state``.
    """

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.saved = saved
        self.loader: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Continue where the loaded state was taken."""
        if len(train_dataloader) % args.gradient_accumulation_steps:
            # With ignore_data_skip the Trainer does not see the end of a resumed epoch.
            raise OptionError(
                f"gradient_accumulation_steps={args.gradient_accumulation_steps} does not divide "
                f"the {len(train_dataloader)} batches of an epoch, so the Trainer would leave out "
                "the last step of a resumed epoch; choose another number, or drop_last=True"
            )
        self.loader = train_dataloader
        if self.saved is not None:
            self.loader.load_state_dict(self.saved)

    def state(self) -> dict[str, Any]:
        """Return the arguments with which the Trainer makes the callback anew."""
        if self.loader is not None:
            self.saved = self.loader.state_dict()
        return {"args": {"saved": self.saved}, "attributes": {}}


class HeadraceTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose training batches come from a loader of headrace.

    Args:
        make_loader: Called with the accelerator and the batch size of a device when training
            begins; returns the training loader. Pass the accelerator to ``create_dataloader``.
        *args: Arguments of ``transformers.Trainer``.
        **options: Keywords of ``transformers.Trainer``, without ``train_dataset``.

    Example::

        def make_loader(accelerator, batch_size):
            return StructuredDataset.create_dataloader(
                "data/", batch_size=batch_size, shuffle=True, accelerator=accelerator
            )[0]

        trainer = HeadraceTrainer(model=model, args=arguments, make_loader=make_loader)
    """

    def __init__(self, *args: Any, make_loader: Callable[[Any, int], Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.make_loader = make_loader
        # The loader continues by itself: without these two the Trainer would skip batches as well,
        # and would not load the state.
        self.args.ignore_data_skip = True
        self.args.restore_callback_states_from_checkpoint = True
        self.add_callback(LoaderStateCallback())

    def get_train_dataloader(self) -> Any:
        """Return the loader unchanged, without ``accelerator.prepare``."""
        return self.make_loader(self.accelerator, self.args.per_device_train_batch_size)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of rows; ``len`` of a dataset of headrace is a number of batches."""
        rows = getattr(dataloader.dataset, "num_rows", None)
        return int(super().num_examples(dataloader)) if rows is None else int(rows)
