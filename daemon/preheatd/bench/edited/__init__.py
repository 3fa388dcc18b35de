"""The project that ``preheat bench edit`` edits. It runs as a copy, in processes of its own."""
