"""Options of commands, each defined once, as a field of a dataclass.

Nothing here imports a heavy package: the command line is built from it.
"""
