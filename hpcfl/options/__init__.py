"""Options of commands, each defined once, as a field of a dataclass.

No module here imports a heavy package, because the command line is built from these options.
"""
