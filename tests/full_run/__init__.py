"""Targets of the Makefile, one after the other, and a table of what came out: see __main__.py."""
