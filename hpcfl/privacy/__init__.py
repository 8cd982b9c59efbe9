"""What protocols hide from a curious server, and under which assumptions."""
