"""Two ranks under Accelerate, which prepares a loader or a bare dataset."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from common_ground import KEPT, leave_together, write_results
from torch.utils.data import DataLoader

from headrace import StructuredDataset

STEPS_TO_ACCUMULATE = 5


def make_loader(data: Path, accelerator: Any, **options: Any) -> Any:
    options = {"batch_size": 32, "shuffle": True, "split_rows": 50, "mix": 2, **options}
    return StructuredDataset.create_dataloader(data, accelerator=accelerator, **options)[0]


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def accumulate(data: Path, **options: Any) -> dict[str, Any]:
    """Train for two epochs with an accumulation of gradients that does not divide their steps."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=STEPS_TO_ACCUMULATE)
    model = torch.nn.Linear(1, 1)
    headrace_loader = make_loader(data, accelerator, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, headrace_loader)
    epochs = []
    for _ in range(2):
        steps = []
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch["x"][:, None]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            at_end = accelerator.gradient_state.end_of_dataloader
            steps.append([batch["id"].tolist(), accelerator.sync_gradients, at_end])
        epochs.append(steps)
        accelerator.wait_for_everyone()
    outside = accelerator.gradient_state.in_dataloader
    return {
        "epochs": epochs,
        "same loader": loader is headrace_loader,
        "in a loader afterwards": outside,
    }


def resume(data: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Return the batches after a state is loaded, and after ``accelerator.load_state``."""
    accelerator = Accelerator(cpu=True)
    whole = ids(make_loader(data, accelerator, **options))
    found: dict[str, Any] = {"whole": whole, "resumed": {}}
    for count in (0, 1, 4, len(whole) - 1):
        loader = accelerator.prepare(make_loader(data, accelerator, **options))
        batches = iter(loader)
        for _ in range(count):
            next(batches)
        state = loader.state_dict()
        accelerator._custom_objects.clear()
        accelerator.register_for_checkpointing(loader)
        accelerator.save_state(str(folder / f"at-{count}"))
        accelerator.wait_for_everyone()
        rest = make_loader(data, accelerator, **options)
        rest.load_state_dict(state)
        found["resumed"][f"state {count}"] = [count, ids(rest)]
        again = make_loader(data, accelerator, **options)
        accelerator._custom_objects.clear()
        accelerator.register_for_checkpointing(again)
        accelerator.load_state(str(folder / f"at-{count}"))
        found["resumed"][f"save_state {count}"] = [count, ids(again)]
    return found


def bare_dataset(data: Path, *, dispatch: bool) -> dict[str, Any]:
    """Return the rows of Accelerate's own loaders over a dataset in a plain loader."""
    settings = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    dataset = StructuredDataset(data, batch_size=32, columns=["id"])
    plain = DataLoader(dataset, batch_size=1, collate_fn=lambda batches: batches[0])
    if dispatch:
        plain = DataLoader(dataset, batch_size=None, collate_fn=dataset.collate)
    return {"epochs": [ids(accelerator.prepare(plain))]}


def metrics(data: Path) -> list[int]:
    """Return all ids that ``gather_for_metrics`` collects."""
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(make_loader(data, accelerator, even="pad", shuffle=False, mix=1))
    return [row for batch in loader for row in accelerator.gather_for_metrics(batch["id"]).tolist()]


def broken_off(data: Path) -> list[bool]:
    """Return if the loader is active in a loop, after a break, in a second loop, and at the end."""
    accelerator = Accelerator(cpu=True)
    loader = make_loader(data, accelerator)
    state = accelerator.gradient_state
    active = []
    first = iter(loader)
    next(first)
    active.append(state.in_dataloader)
    second = iter(loader)
    next(second)
    del first
    active.append(state.in_dataloader)
    del second
    active.append(state.in_dataloader)
    return active


def main(data: Path, folder: Path) -> None:
    Accelerator(cpu=True)
    results: dict[str, Any] = {
        "counted": accumulate(data / "uneven"),
        "filtered": accumulate(data / "uneven", filters=KEPT),
        "pad": accumulate(data / "uneven", even="pad"),
        "resume": resume(data / "uneven", folder / "counted"),
        "resume, filtered": resume(data / "uneven", folder / "filtered", filters=KEPT),
        "metrics": metrics(data / "one row too many"),
        "active": broken_off(data / "uneven"),
    }
    made_without = StructuredDataset.create_dataloader(data / "uneven", batch_size=32)[0]
    prepared = Accelerator(cpu=True).prepare(made_without)
    results["made without the accelerator"] = {"epochs": [ids(prepared), ids(prepared)]}
    for dispatch in (True, False):
        results[f"bare, dispatch={dispatch}"] = bare_dataset(data / "even", dispatch=dispatch)
    write_results(folder, results)
    leave_together()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
