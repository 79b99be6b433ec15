"""The tool worker: hosts toolsets. See README.md beside this file."""
