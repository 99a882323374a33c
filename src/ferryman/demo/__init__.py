"""The demos of `ferryman demo`: messages that cross, and payments whose processes are killed and come back."""
