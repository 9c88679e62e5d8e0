"""A soak: memory, files, sockets and threads that stay behind after thousands of tiny batches."""
