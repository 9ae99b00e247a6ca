"""Jobs: what a training command does from start to finish, around the one loop of `training.loop`."""
