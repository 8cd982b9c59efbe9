"""What a round costs before it is played: counts of bytes and operations, times measured costs."""
