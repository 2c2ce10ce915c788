"""Data-set runs: `whence.run` explains files of rows shard by shard, on one core, several, or a Ray cluster."""
