"""Let torchvision be imported where its compiled part does not load.

Its wheels are built for a torch with CUDA. Mosaic streaming imports it for its image data sets,
which are not used here; the Python part needs two operators of the compiled one.
"""

from __future__ import annotations

import torch

for _operator in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{_operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )
