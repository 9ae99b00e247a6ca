"""`python -m pretune` is the command `pretune`."""

from pretune.cli import main

if __name__ == "__main__":
    main()
