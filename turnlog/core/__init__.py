"""The pure core: rules of a run, without clock, chance, I/O or logging. Standard library only (a test holds it)."""
