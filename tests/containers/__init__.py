"""The containers of ``compose`` under Docker."""
