"""The verbs: what users do with pretune, the same in Python and on the command line.

One function a verb. Its signature is its options, its docstring its help. Heavy imports happen inside, so that asking
for help never loads torch.
"""
