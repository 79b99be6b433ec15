"""The command line: one file per group of verbs; `main` puts them together. `turnlog --help` is where to begin."""
