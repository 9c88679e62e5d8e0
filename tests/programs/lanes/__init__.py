"""`make test` as lanes that run side by side: see `__main__`."""
