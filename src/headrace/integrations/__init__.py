"""Code for training frameworks: a module for each, which is imported when it is asked for.

headrace.integrations.lightning   HeadraceCallback: exact checkpoints of Lightning
headrace.integrations.trainer     HeadraceTrainer: a Hugging Face Trainer over a loader
headrace.integrations.ray         report, restore: checkpoints of Ray Train
headrace.integrations.ranks       gather_state: one state for the loaders of all ranks
"""
