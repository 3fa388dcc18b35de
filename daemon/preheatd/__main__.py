"""``python -m preheatd``: the command ``preheat`` where its script is not on the path."""

from preheatd.cli import main

if __name__ == "__main__":
    main()
