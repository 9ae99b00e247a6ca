"""The verbs: pretune's public functions, the same in Python and on the command line.

One function per verb: its signature defines the options of its command, and its docstring is the command's help. Heavy imports
happen inside the functions, so that `--help` never loads torch.
"""
