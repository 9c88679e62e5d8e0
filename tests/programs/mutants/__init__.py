"""`make mutants`: does a unit test fail when a line of a pure room, or of the boundary, is changed?"""
