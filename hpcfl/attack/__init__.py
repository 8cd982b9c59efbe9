"""An attack by a curious server and colluding devices on the messages of a real round."""
