"""preheat keeps compiled PyTorch programs warm."""
