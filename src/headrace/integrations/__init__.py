"""Code for training frameworks: one module for each, imported on request.

headrace.integrations.lightning   HeadraceCallback: exact checkpoints of Lightning
headrace.integrations.trainer     HeadraceTrainer: a Hugging Face Trainer over a loader
headrace.integrations.ray         report, restore: checkpoints of Ray Train
headrace.integrations.ranks       gather_state: one state for the loaders of all ranks
"""
