"""Who is where, how a phase's messages move, and what that cost."""
