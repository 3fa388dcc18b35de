"""Programs and edits that probe when a package must not be used any more."""
