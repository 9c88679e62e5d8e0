"""`make bench`: format("kafka") and format("kgroup") on the same topics of one broker, in turn, in one run."""
