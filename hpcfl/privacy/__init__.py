"""What protocols hide from a curious server, and what that can be counted on."""
