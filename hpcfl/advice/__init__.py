"""Which protocol to take: what qualifies, what it would cost, and why others do not qualify."""
