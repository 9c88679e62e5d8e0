"""A soak: what stays behind after thousands of tiny batches."""
