"""Training jobs: everything that a command such as `pretrain` or `finetune` does before and after the training loop."""
