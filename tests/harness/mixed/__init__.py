"""Members of several clients in one group, each a process that tells what it owns; and the stories they go through."""
