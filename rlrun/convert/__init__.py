"""`rlrun convert`: checkpoints from Hugging Face's format to Megatron's and back, in one process on the CPU.

Megatron's `dist_checkpointing` stores whole tensors with a global name each, so a checkpoint belongs to no parallel
layout: what is written here loads into any, and what a run of any layout has saved is read here. A conversion therefore
takes no tp, pp or ep; it holds the model once, in the type of its weights.
"""
