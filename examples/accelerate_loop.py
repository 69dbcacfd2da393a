"""Accelerate: ``accelerator=`` makes a loader that it can work with, and its state is saved too.

    torchrun --nproc-per-node 2 examples/accelerate_loop.py folder-of-parquet-files checkpoints

The loader moves batches to the device of the accelerator and tells it which batch is the last, so
that the accumulation of gradients ends there. ``register_for_checkpointing`` saves the loader with
model and optimizer. Run it again after a crash: it continues from the last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from headrace import StructuredDataset

SAVE_EVERY = 5


def main(data: Path, checkpoints: Path, epochs: int = 1) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    # Without a GPU and without cpu=True, Accelerate considers every process the only one.
    on_cpu = not torch.cuda.is_available()
    accelerator = Accelerator(cpu=on_cpu, gradient_accumulation_steps=4)
    loader, dataset = StructuredDataset.create_dataloader(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2, accelerator=accelerator
    )
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    checkpoints.mkdir(parents=True, exist_ok=True)
    last = checkpoints / "last.txt"  # the name of the last complete checkpoint
    if last.exists():
        accelerator.load_state(str(checkpoints / last.read_text()))
    step = 0
    while dataset.epoch < epochs:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % SAVE_EVERY == 0:
                name = f"epoch-{dataset.epoch}-step-{step}"
                accelerator.save_state(str(checkpoints / name))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    last.write_text(name)
    print(f"rank {accelerator.process_index}: {step} steps, loss {loss.item():.4f}", flush=True)
    accelerator.wait_for_everyone()
    # A model of several ranks may hang when it is freed after its process group was destroyed.
    del model, loss
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
