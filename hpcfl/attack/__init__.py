"""The curious server: what it makes of the messages of a real round, with devices that collude."""
