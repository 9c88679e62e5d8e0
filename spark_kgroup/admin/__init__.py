"""The `kgroup` command."""
