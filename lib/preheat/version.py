"""The version of preheat, in one place: the distribution's metadata is made from it."""

VERSION = "0.1.0"
