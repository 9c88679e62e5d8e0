"""Times the sticky assignor beside Java's: see `__main__`."""
