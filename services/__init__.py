"""The services: thin shells around the library `turnlog`."""
