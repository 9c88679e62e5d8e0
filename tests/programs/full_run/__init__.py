"""Targets of the Makefile, one after the other, and a table of the results: see __main__.py."""
