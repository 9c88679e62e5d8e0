"""Members of several clients in one group, each a process that reports its partitions, and stories of such groups."""
