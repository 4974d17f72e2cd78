"""One module a kind of sink; each implements ``publish.Sink``."""
