"""What tables and figures of scaling are drawn over."""

# What there can be more and more of, and what one of it is called.
SCALES = {
    "ranks": "ranks that hold devices",
    "nodes": "nodes",
    "server-ranks": "ranks of the server",
    "threads": "threads of a rank",
}
