"""The project that ``preheat bench`` measures. It runs as a copy, in processes of its own."""
